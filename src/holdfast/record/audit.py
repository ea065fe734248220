"""What of a run folder is good: checkpoints, weights, records and faults, each with a reason where it is not.

    audit = look(path)
    audit.usable          # the checkpoint a resume would take, or None
    audit.damaged         # what is not as it was written

It reads only. The folder may be copied, crashed, live or somebody else's: links are not followed, sizes are bounded,
and nothing in it is believed before its digest agrees. No torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.files import MAX_JSON, kind_of, open_regular, read_bounded
from holdfast.base.human import counted
from holdfast.run.digests import Origin
from holdfast.run.folder import FORMAT, RunFolder, name_of
from holdfast.run.states import ENDED_STATES, LIVE_STATES, RunState
from holdfast.state import checkpoint
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.weights_file import NO_DIGEST, check_weights

GOOD, READABLE, DAMAGED, MISSING, UNKNOWN, NOTED = "good", "readable", "damaged", "missing", "unknown", "noted"
"""Good is what has a digest that agrees; what has none can only be readable."""
BAD = frozenset({DAMAGED, MISSING})
MAX_LINE = 1 << 20
"""Bytes of one line of a journal; a longer one is none of ours."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was looked at."""

    name: str
    """As it is called in the run folder: `checkpoints/003600`, `best.safetensors`, …"""
    state: str
    why: str | None = None
    size: int | None = None
    step: int | None = None
    tensors: tuple[str, ...] = ()
    lines: int | None = None
    torn: int = 0

    @property
    def bad(self) -> bool:
        return self.state in BAD


@dataclass(slots=True)
class Audit:
    """A whole run folder."""

    path: Path
    run: str
    workload: str | None
    state: str
    checkpoints: list[Item] = field(default_factory=list)
    weights: list[Item] = field(default_factory=list)
    records: list[Item] = field(default_factory=list)
    faults: list[Item] = field(default_factory=list)
    leftovers: list[Item] = field(default_factory=list)

    @property
    def usable(self) -> Item | None:
        """The checkpoint that `holdfast resume` would take."""
        return next((item for item in self.checkpoints if item.state == GOOD), None)

    @property
    def damaged(self) -> list[Item]:
        everything = (*self.checkpoints, *self.weights, *self.records, *self.faults)
        return [item for item in everything if item.bad]


def look(path: Path) -> Audit:
    """Look at everything once."""
    info, about_info = _read_object(path, "run.json")
    if isinstance(info.get("format"), int) and info["format"] > FORMAT:
        about_info = Item("run.json", UNKNOWN, "it was written by a newer holdfast", about_info.size)
    said = str(info.get("state") or RunState.CRASHED)
    live = said in LIVE_STATES and RunFolder(path).in_use()
    workload = info.get("workload")
    origin = Origin.of(info, path) if info else None
    return Audit(
        path,
        run=str(info.get("run") or name_of(path)),
        workload=str(workload) if workload else None,
        state=RunState.CRASHED if said in LIVE_STATES and not live else said,
        checkpoints=list(_checkpoints(path, origin)),
        weights=list(_weights(path, origin, finished=said == RunState.FINISHED)),
        records=[about_info, *_records(path, ended=said in ENDED_STATES)],
        faults=list(_faults(path)),
        leftovers=[] if live else list(_leftovers(path)),
    )


def _checkpoints(run: Path, origin: Origin | None) -> Iterator[Item]:
    folder = run / "checkpoints"
    refused = _not_a_folder(folder, "checkpoints")
    if refused is not None:
        yield refused
        return
    gone = checkpoint.lost(run)
    if gone is not None:
        yield Item(
            f"checkpoints/{gone.name}", MISSING, "the journal names it, but the file is gone", step=int(gone.name)
        )
    for path in checkpoint.candidates(folder):
        found = checkpoint.check(path, origin)
        step, name = int(path.name), f"checkpoints/{path.name}"
        if isinstance(found, Checkpoint):
            yield Item(name, GOOD, size=found.size, step=step)
        elif os.path.lexists(path):  # a live run may have removed it while it was read
            size = _size(path / checkpoint.STATE)
            yield Item(name, DAMAGED, found.reason, size, step, found.tensors)


def _weights(run: Path, origin: Origin | None, *, finished: bool) -> Iterator[Item]:
    for name in ("best", "final"):
        path = run / f"{name}.safetensors"
        if not os.path.lexists(path):
            if name == "final" and finished and _has_weights(run):
                yield Item(path.name, MISSING, "the receipt names it, but the file is gone")
            continue
        why = check_weights(path, origin)
        state = GOOD if why is None else UNKNOWN if why == NO_DIGEST else DAMAGED
        yield Item(path.name, state, why, _size(path))


def _has_weights(run: Path) -> bool:
    receipt, _ = _read_object(run, "receipt.json")
    return receipt.get("weights_sha256") is not None


def _records(run: Path, *, ended: bool) -> Iterator[Item]:
    for name in ("journal.jsonl", "metrics.jsonl"):
        if os.path.lexists(run / name) or name == "journal.jsonl":
            yield _read_lines(run, name)
    for name in ("receipt.json", "beat.json", "last.json"):
        if os.path.lexists(run / name) or (ended and name == "receipt.json"):
            yield _read_object(run, name)[1]


def _faults(run: Path) -> Iterator[Item]:
    refused = _not_a_folder(run / "faults", "faults")
    if refused is not None:
        yield refused
        return
    for path in checkpoint.candidates(run / "faults"):
        refused = _not_a_folder(path, f"faults/{path.name}")
        found = refused or _read_object(path, "fault.json")[1]
        yield Item(f"faults/{path.name}", found.state, found.why, found.size)


def _leftovers(run: Path) -> Iterator[Item]:
    folders = [folder for folder in (run, run / "checkpoints") if folder == run or _is_folder(folder)]
    for folder in folders:
        for path in checkpoint.leftovers(folder):
            yield Item(str(path.relative_to(run)), NOTED, "left by a writer that was killed")


# Reading what anybody may have written --------------------------------------------------------------------


def _read_object(folder: Path, name: str) -> tuple[dict[str, Any], Item]:
    """A JSON object, {} if it is none, and what is to be said of its file."""
    try:
        data = read_bounded(folder / name, MAX_JSON)
        found = json.loads(data)
    except FileNotFoundError:
        return {}, Item(name, MISSING, "it is not there")
    except OSError as error:
        return {}, Item(name, DAMAGED, f"it cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError):
        return {}, Item(name, DAMAGED, "it is not JSON", len(data))
    if not isinstance(found, dict):
        return {}, Item(name, DAMAGED, "it is not a JSON object", len(data))
    return found, Item(name, READABLE, size=len(data))


def _read_lines(run: Path, name: str) -> Item:
    """How many lines there are, and how many cannot be read: a power cut may tear one, which is passed over."""
    lines = torn = 0
    try:
        with open_regular(run / name) as file:
            size = os.fstat(file.fileno()).st_size
            while line := file.readline(MAX_LINE):
                lines += 1
                torn += not _is_object(line)
    except FileNotFoundError:
        return Item(name, MISSING, "it is not there")
    except OSError as error:
        return Item(name, DAMAGED, f"it cannot be read: {error.strerror or error}")
    if torn:
        why = f"{counted(torn, 'torn line')}, skipped"
        return Item(name, DAMAGED if torn == lines else NOTED, why, size, lines=lines, torn=torn)
    return Item(name, READABLE, None, size, lines=lines)


def _is_object(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _not_a_folder(path: Path, name: str) -> Item | None:
    """What to say of something that should be a folder and is not; None for a folder or nothing at all."""
    try:
        kind = kind_of(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Item(name, DAMAGED, f"it cannot be read: {error.strerror or error}")
    return None if kind == "a folder" else Item(name, DAMAGED, f"it is {kind or 'a file'}, not a folder")


def _is_folder(path: Path) -> bool:
    try:
        return kind_of(path) == "a folder"
    except OSError:
        return False


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size if kind_of(path) is None else None
    except OSError:
        return None
