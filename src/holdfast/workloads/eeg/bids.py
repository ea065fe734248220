"""A data set in BIDS form: which recordings it has, what is known of its subjects, what happened in each recording.

    dataset = bids.look("data/R5")                  # UserError if it is no BIDS set; a folder of sets is one, too
    dataset.recordings[0].name                      # "sub-NDARAC904DMU_task-RestingState"
    dataset.subject("sub-NDARAC904DMU").age         # 11.3, or None: n/a, empty and nonsense are unknown
    bids.events(dataset.recordings[0])              # [Event(onset=0.0, value="resting_start", ...), ...]

Nothing here reads a signal, and no content of a file raises: what cannot be understood is unknown.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.workloads.eeg.faults import DataFault

FORMATS = (".bdf", ".edf", ".set", ".vhdr", ".fif")
FACTORS = ("p_factor", "attention", "internalizing", "externalizing")
DESCRIPTION, PARTICIPANTS = "dataset_description.json", "participants.tsv"
_ENTITY = re.compile(r"(sub|ses|task|acq|run)-([A-Za-z0-9]+)")
_MAX_TABLE = 64 << 20


@dataclass(frozen=True, slots=True)
class Subject:
    """A line of participants.tsv; None is unknown."""

    name: str
    release: str = ""
    age: float | None = None
    sex: str = ""
    factors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recording:
    """One file of signals and the files beside it."""

    path: Path
    name: str
    subject: str
    task: str
    run: str
    root: Path
    events: Path | None
    channels: Path | None
    sidecar: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)


@dataclass(frozen=True, slots=True)
class Event:
    """A line of events.tsv. `onset` and `duration` are NaN where the cell is no number; `cell` is what stood there."""

    onset: float
    duration: float
    value: str
    feedback: str = ""
    cell: str = ""
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSet:
    """What was found below one folder."""

    root: Path
    name: str
    simulated: bool
    recordings: tuple[Recording, ...]
    subjects: dict[str, Subject]
    twice: tuple[str, ...] = ()
    """Recordings that are in several of the sets; the first is the one that counts."""
    sets: tuple[Path, ...] = ()
    """The folders of the sets."""

    def subject(self, name: str) -> Subject:
        return self.subjects.get(name) or Subject(name)


def look(folder: str | os.PathLike[str]) -> DataSet:
    """Find every recording below `folder`."""
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"there is no folder {root}", hints=["`holdfast eeg simulate DATA` makes a data set to try"])
    sets = _sets(root)
    if not sets:
        raise UserError(
            f"{root} is not a BIDS data set",
            cause=f"it has no {DESCRIPTION} and no sub-… folders, nor have the folders in it",
            hints=["name the folder that holds participants.tsv and the sub-… folders"],
        )
    descriptions = [files.read_json(each / DESCRIPTION) or {} for each in sets]
    recordings = [recording for each in sets for recording in _recordings(each)]
    subjects = {name: subject for each in sets for name, subject in participants(each).items()}
    first: dict[str, Recording] = {}
    for each in recordings:
        first.setdefault(each.name, each)
    return DataSet(
        root=root,
        name=str(descriptions[0].get("Name") or sets[0].name),
        simulated=any(is_simulated(each) for each in descriptions),
        recordings=tuple(sorted(first.values(), key=lambda each: each.name)),
        subjects=subjects,
        twice=tuple(sorted({each.name for each in recordings if first[each.name] is not each})),
        sets=tuple(sets),
    )


def is_simulated(description: dict[str, Any]) -> bool:
    """What `holdfast eeg simulate` writes into dataset_description.json."""
    made = description.get("GeneratedBy")
    makers = made if isinstance(made, list) else []
    return any(isinstance(each, dict) and each.get("Name") == "holdfast eeg simulate" for each in makers)


def _sets(root: Path) -> list[Path]:
    if _is_set(root):
        return [root]
    return sorted(each for each in _folders(root) if _is_set(each))


def _is_set(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file() or any(each.name.startswith("sub-") for each in _folders(folder))


def _folders(folder: Path) -> list[Path]:
    try:
        return [Path(each.path) for each in os.scandir(folder) if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _recordings(root: Path) -> list[Recording]:
    found: dict[str, Recording] = {}
    for folder in sorted(each for each in _folders(root) if each.name.startswith("sub-")):
        for eeg in (folder / "eeg", *sorted(folder.glob("ses-*/eeg"))):
            for path in sorted(eeg.glob("*_eeg.*")) if eeg.is_dir() else ():
                if path.suffix.lower() in FORMATS:
                    recording = _recording(path, root)
                    found.setdefault(f"{recording.name}", recording)
    return list(found.values())


def _recording(path: Path, root: Path) -> Recording:
    name = path.name.removesuffix(path.suffix).removesuffix("_eeg")
    entities = dict(_ENTITY.findall(name))
    task = entities.get("task", "")
    sidecar: dict[str, Any] = {}
    for each in _sidecars(path, name, root, task):
        sidecar.update(files.read_json(each) or {})
    return Recording(
        path=path,
        name=name,
        subject=f"sub-{entities.get('sub', '')}",
        task=task,
        run=entities.get("run", ""),
        root=root,
        events=_beside(path, name, root, task, "events.tsv"),
        channels=_beside(path, name, root, task, "channels.tsv"),
        sidecar=sidecar,
    )


def _sidecars(path: Path, name: str, root: Path, task: str) -> tuple[Path, ...]:
    """The one of the whole task, then the one of the recording, which counts more."""
    return root / f"task-{task}_eeg.json", path.with_name(f"{name}_eeg.json")


def sidecar_paths(recording: Recording) -> tuple[Path, ...]:
    """Where what is known of a recording stands; not each of them has to be there."""
    return _sidecars(recording.path, recording.name, recording.root, recording.task)


def _beside(path: Path, name: str, root: Path, task: str, ending: str) -> Path | None:
    """The file beside the signals, else the one for the whole task: BIDS lets a set share it."""
    for candidate in (path.with_name(f"{name}_{ending}"), root / f"task-{task}_{ending}"):
        if candidate.exists():
            return candidate
    return None


# Tables -----------------------------------------------------------------------------------------------------


def participants(root: Path) -> dict[str, Subject]:
    """Every subject of participants.tsv; none where there is no such file, or it cannot be read."""
    return {name: _subject(row) for name, row in people(root).items()}


def people(root: Path) -> dict[str, dict[str, str]]:
    """The lines of participants.tsv by subject, with all of their columns."""
    try:
        rows = table(root / PARTICIPANTS, needs="participant_id")
    except (OSError, DataFault):
        return {}
    return {row["participant_id"]: row for row in rows if row.get("participant_id")}


def _subject(row: dict[str, str]) -> Subject:
    factors = {name: number(row.get(name)) for name in FACTORS}
    age = number(row.get("age"))
    release, sex = row.get("release_number", ""), row.get("sex", "")
    return Subject(
        name=row["participant_id"],
        release="" if release.lower() == "n/a" else release,
        age=None if math.isnan(age) else age,
        sex=sex[:1].upper() if sex[:1].upper() in ("F", "M") else "",
        factors={name: value for name, value in factors.items() if not math.isnan(value)},
    )


def events(recording: Recording) -> list[Event]:
    """What happened, in the order of the file; DataFault if there is no file or it is no table."""
    if recording.events is None:
        raise DataFault("no events", "no events.tsv stands beside it")
    try:
        rows = table(recording.events, needs="onset")
    except OSError as error:
        raise DataFault("no events", f"{recording.events.name}: {error.strerror or error}") from error
    return [_event(row) for row in rows]


def once(events: Iterable[Event]) -> tuple[list[Event], int]:
    """Every event one time, and how many stood there again with the same onset and value."""
    kept: dict[tuple[float, str], Event] = {}
    odd, seen = [], 0
    for each in events:
        seen += 1
        if math.isnan(each.onset):
            odd.append(each)  # nobody can say that two of these are the same one
        else:
            kept.setdefault((each.onset, each.value), each)
    found = [*kept.values(), *odd]
    return found, seen - len(found)


def _event(row: dict[str, str]) -> Event:
    value = row.get("value") or row.get("trial_type") or ""
    return Event(
        onset=number(row.get("onset")),
        duration=number(row.get("duration")),
        value=value,
        feedback=row.get("feedback", ""),
        cell=row.get("duration", ""),
        extra=row,
    )


def channel_table(recording: Recording) -> list[dict[str, str]]:
    """channels.tsv, or nothing."""
    if recording.channels is None:
        return []
    try:
        return table(recording.channels)
    except (OSError, DataFault):
        return []


def table(path: Path, needs: str = "") -> list[dict[str, str]]:
    """A tab-separated file with a header; rows that are too short have empty cells. DataFault without `needs`."""
    text = files.read_bounded(path, _MAX_TABLE).decode("utf-8-sig", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    try:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    except csv.Error as error:
        raise DataFault("unreadable", f"{path.name}: {error}") from error
    header = [name.strip() for name in rows[0]]
    if needs and needs not in header:
        raise DataFault("broken table", f"{path.name}: {_why_not(lines[0], needs)}")
    return [
        {name: cell.strip() for name, cell in zip(header, [*row, *[""] * len(header)], strict=False)}
        for row in rows[1:]
    ]


def _why_not(header: str, needs: str) -> str:
    """Why a header does not have a column."""
    for sign, word in ((",", "commas"), (";", "semicolons"), (None, "spaces")):
        if needs in [name.strip().strip('"') for name in header.split(sign)] and "\t" not in header:
            return f"it is separated by {word}, not by tabs"
    return f"its header has no column `{needs}`"


def number(cell: str | None) -> float:
    """A finite number, or NaN for everything else that stands in such cells."""
    try:
        value = float(cell) if cell is not None else math.nan
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


# Writing ----------------------------------------------------------------------------------------------------


def write_table(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    lines = ["\t".join(header), *("\t".join(_cell(value) for value in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "n/a"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
