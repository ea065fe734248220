"""From a BIDS data set to a cache of windows: every recording read, filtered, cut, and accounted for.

    report = prepare("data", "cache", kind="challenge1")            # Report; the windows are in report.folder
    windows = cache.open(report.folder)
    prepare("data", "cache", kind="challenge2", band=None, notch=None, bad="keep")      # as the competition serves

    cache/challenge1-100hz/
      building.json       what is being made; it goes when windows.json comes
      journal.jsonl       a line for each recording that is in signals.f32, with its place and digest
      signals.f32         grows by one recording at a time, in the order of their names
      report.json         what became of every recording

It may be interrupted at any moment: what the journal names is in the file, what comes after it is cut off, and the same
call goes on from there. A folder that holds anything else is never added to.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import __version__
from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.workloads.eeg import (
    bids,
    cache,
    channel_names,
    digests,
    locking,
    making,
    pool,
    response_windows,
    sidecars,
    space_needed,
    suggestions,
)
from holdfast.workloads.eeg.bids import DataSet, Recording, Subject
from holdfast.workloads.eeg.faults import DataFault
from holdfast.workloads.eeg.filters import Impossible
from holdfast.workloads.eeg.recipe import Recipe
from holdfast.workloads.eeg.report import Outcome, Report

Progress = Callable[[int, int, str], None]
BUILDING, JOURNAL, REPORT = "building.json", "journal.jsonl", "report.json"
_OURS = {BUILDING, JOURNAL, REPORT, "lock", "parts", cache.META, cache.SIGNALS, cache.TABLE}


def place(folder: str | os.PathLike[str], kind: str, rate: float) -> Path:
    """Where below `folder` the cache of one kind and rate is."""
    return Path(folder) / f"{kind}-{rate:g}hz"


def prepare(
    data: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    kind: str,
    workers: int | None = None,
    rebuild: bool = False,
    progress: Progress | None = None,
    **parameters: Any,
) -> Report:
    """Make the cache of one kind of windows, or find that it is there already. `parameters` are those of `Recipe`."""
    recipe = Recipe(kind=kind, **parameters).settled()
    dataset = bids.look(data)
    recordings = [each for each in dataset.recordings if recipe.takes(each.task)]
    if not recordings:
        tasks = ", ".join(sorted({each.task for each in dataset.recordings})) or "none"
        raise UserError(
            f"{data} has no recordings for {kind}",
            cause=f"it has {len(dataset.recordings)} recordings; their tasks: {tasks}",
            hints=[f"`{suggestions.preparing(dataset, kind, folder)}` makes windows of what there is"],
        )
    _refuse_impossible(recordings, recipe)
    placed = response_windows.place(recordings, recipe)
    recipe = replace(recipe, shift=placed.shift)
    _refuse_without_labels(dataset, kind)
    channels = channel_names.choose(recordings, recipe)
    target = place(folder, kind, recipe.rate)
    target.mkdir(parents=True, exist_ok=True)
    try:
        with locking.held(target / "lock"):
            return _prepare(dataset, recordings, recipe, channels, target, workers, rebuild, progress, placed)
    except locking.Busy:
        raise UserError(f"another process is making the cache in {target}", hints=["wait for it"]) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f"no space is left for the cache in {target}",
            cause=str(error.strerror or error),
            saved="the recordings that were done stay",
            hints=["make room and run the same command again: it goes on where it was"],
        ) from error


def _prepare(
    dataset: DataSet,
    recordings: list[Recording],
    recipe: Recipe,
    channels: list[str],
    target: Path,
    workers: int | None,
    rebuild: bool,
    progress: Progress | None,
    placed: response_windows.Placed,
) -> Report:
    subjects = {each.name: dataset.subject(each.subject) for each in recordings}
    content = digests.of(recordings, subjects, target.parent / "digests.json", workers, progress)
    key = recipe.key([content, channels])
    if rebuild:
        _clear(target)
    ready = _ready(target, key)
    if ready is not None:
        return ready
    _refuse_to_mix(target, key)
    meta = {
        "kind": recipe.kind,
        "rate": recipe.rate,
        "channels": channels,
        "samples": recipe.samples,
        "units": "V",
        "simulated": dataset.simulated,
        "key": key,
        "holdfast": __version__,
        "source": dataset.name,
        "recipe": recipe.to_json(),
        "placed": placed.words,
        "warning": placed.warning,
    }
    space_needed.guard_disk(target, recordings, recipe, channels)
    files.write_json(target / BUILDING, meta)
    build = _Build(target, meta)
    missing = [(each, subjects[each.name]) for each in recordings if each.name not in build.done]
    work = functools.partial(_work, recipe=recipe, channels=tuple(channels), parts=target / "parts")
    memory = space_needed.memory_of_one([each for each, _ in missing], recipe, channels)
    for item, result in pool.ordered(work, missing, workers, each_bytes=memory):
        build.add(item[0].name, result)
        if progress is not None:
            progress(len(build.done), len(recordings), item[0].name)
    return build.finish([each.name for each in recordings])


def _refuse_without_labels(dataset: DataSet, kind: str) -> None:
    """A table of subjects that cannot be read is the reason why nobody has a label."""
    if kind != "challenge2" or any(each.factors for each in dataset.subjects.values()):
        return
    for folder in dataset.sets:
        if fault := sidecars.table_fault(folder / bids.PARTICIPANTS, "participant_id"):
            raise UserError(f"{folder / bids.PARTICIPANTS} cannot be read", cause=fault, hints=["correct it first"])


def _refuse_impossible(recordings: Sequence[Recording], recipe: Recipe) -> None:
    """A filter that no recording can have is a mistake of whoever asked for it, not of the data."""
    rates = {files.number(each.sidecar.get("SamplingFrequency")) for each in recordings}
    error: Impossible | None = None
    for rate in rates:
        if not rate:
            return  # it is known when the file is read
        try:
            recipe.chain(rate)
            return
        except Impossible as impossible:
            error = impossible
    if error is not None:
        raise error


# What is there already --------------------------------------------------------------------------------------


def _ready(target: Path, key: str) -> Report | None:
    """The report of the same cache, if it is there and whole."""
    if not (target / cache.META).exists():
        return None
    windows = cache.open(target)
    if windows.key != key:
        raise _other(target, "a cache that was made")
    return stored(target)


def _refuse_to_mix(target: Path, key: str) -> None:
    begun = files.read_json(target / BUILDING)
    if begun is not None and begun.get("key") == key:
        return
    strange = sorted(each.name for each in target.iterdir() if each.name not in _OURS and not each.name.startswith("."))
    if begun is not None or (target / JOURNAL).exists():
        raise _other(target, "a cache that was begun")
    if strange:
        raise UserError(f"{target} holds other files", cause=", ".join(strange[:4]), hints=["name an empty folder"])


class OtherCache(UserError):
    """There is a cache, but not of this content, made in this way, by this code."""


def _other(target: Path, what: str) -> OtherCache:
    return OtherCache(
        f"{target} holds {what} in another way",
        cause="content, parameters or code version differ, and windows of both must never be mixed",
        hints=["`--rebuild` makes it anew", "or name another folder for the cache"],
    )


def _clear(target: Path) -> None:
    files.remove(target / cache.META)  # first: from here on there is no cache
    for name in _OURS - {"lock"}:
        files.remove(target / name)


def stored(folder: str | os.PathLike[str]) -> Report:
    """The report that was written with a cache."""
    target = Path(folder)
    windows, data = cache.open(target), files.read_json(target / REPORT) or {}
    rows = data.get("recordings")
    outcomes = [_outcome(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    chain = data.get("chain")
    return Report(
        folder=target,
        kind=windows.kind,
        rate=windows.rate,
        channels=len(windows.channels),
        samples=windows.samples,
        simulated=windows.simulated,
        key=windows.key,
        chain=[str(each) for each in chain] if isinstance(chain, list) else [],
        outcomes=outcomes,
        placed=str(windows.meta.get("placed") or ""),
        warning=str(windows.meta.get("warning") or ""),
        reused=True,
    )


def _outcome(row: dict[str, Any]) -> Outcome:
    drops, bad = row.get("drops"), row.get("bad_channels")
    return Outcome(
        recording=str(row.get("recording", "")),
        windows=files.whole(row.get("windows")),
        drops={str(k): files.whole(v) for k, v in drops.items()} if isinstance(drops, dict) else {},
        left_out=str(row.get("left_out") or ""),
        detail=str(row.get("detail") or ""),
        bad_channels={str(k): str(v) for k, v in bad.items()} if isinstance(bad, dict) else {},
        notes=[str(each) for each in row.get("notes") or []] if isinstance(row.get("notes"), list) else [],
    )


# One recording, in a process of its own ---------------------------------------------------------------------


def _work(item: tuple[Recording, Subject], *, recipe: Recipe, channels: tuple[str, ...], parts: Path) -> dict[str, Any]:
    """Make the windows of a recording and leave them in a file; what is returned is a line of the journal."""
    recording, subject = item
    try:
        made = making.make(recording, subject, recipe, channels)
    except DataFault as fault:
        return Outcome(recording.name, left_out=fault.reason, detail=fault.detail).to_json()
    except MemoryError:
        return Outcome(recording.name, left_out="unreadable", detail="it needs more memory than there is").to_json()
    entry: dict[str, Any] = made.outcome.to_json()
    if len(made.signals):
        parts.mkdir(exist_ok=True)
        path = parts / hashlib.sha256(recording.name.encode()).hexdigest()[:24]
        raw = np.ascontiguousarray(made.signals, dtype="<f4").data.cast("B")
        with open(path, "wb", opener=files.private) as file:
            file.write(raw)
        entry.update(part=path.name, bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())
        entry.update(constants=made.constants, columns=made.columns)
    return {**entry, "chain": made.chain}


# The file that grows ----------------------------------------------------------------------------------------


class _Build:
    """A cache that is being made: its signals, and the journal that says which recordings are in them."""

    def __init__(self, target: Path, meta: dict[str, Any]) -> None:
        self._target, self._meta = target, meta
        shutil.rmtree(target / "parts", ignore_errors=True)
        self.done: dict[str, dict[str, Any]] = {}
        end, good = 0, 0
        for line, entry in _lines(target / JOURNAL):
            if files.whole(entry.get("end"), -1) != end + files.whole(entry.get("bytes")):
                break
            end, good = entry["end"], good + line
            self.done[str(entry.get("recording"))] = entry
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._signals = os.open(target / cache.SIGNALS, flags, 0o600)
        self._journal = os.open(target / JOURNAL, flags | os.O_APPEND, 0o600)
        if os.fstat(self._signals).st_size < end:  # a disk that lost what it had promised
            self.done, end, good = {}, 0, 0
        os.ftruncate(self._signals, end)
        os.ftruncate(self._journal, good)
        self._end = end

    def add(self, name: str, entry: dict[str, Any] | pool.Died) -> None:
        """Append the windows of a recording, and when they are in the file, the line that says so."""
        if isinstance(entry, pool.Died):
            entry = Outcome(name, left_out="reader died", detail="its process was ended while it read this").to_json()
        part = entry.pop("part", None)
        if part is not None:
            path = self._target / "parts" / part
            with open(path, "rb") as file:
                os.lseek(self._signals, self._end, os.SEEK_SET)
                while chunk := file.read(8 << 20):
                    _write(self._signals, chunk)
            os.unlink(path)
            self._end += entry["bytes"]
        entry["end"] = self._end
        _write(self._journal, json.dumps(entry).encode() + b"\n")
        self.done[name] = entry

    def finish(self, order: list[str]) -> Report:
        os.fsync(self._signals)
        os.close(self._signals)
        os.close(self._journal)
        entries = list(self.done.values())
        parts = [(e["windows"], e.get("constants") or {}, e.get("columns") or {}) for e in entries]
        digests_ = {e["recording"]: e["sha256"] for e in entries if e.get("sha256")}
        meta = {**self._meta, "recordings": digests_}
        chains = sorted({"; ".join(e["chain"]) for e in entries if e.get("chain")})
        report = Report(
            folder=self._target,
            kind=meta["kind"],
            rate=meta["rate"],
            channels=len(meta["channels"]),
            samples=meta["samples"],
            simulated=meta["simulated"],
            key=meta["key"],
            chain=chains,
            outcomes=[_outcome(self.done[name]) for name in order],
            placed=str(meta["placed"]),
            warning=str(meta["warning"]),
        )
        files.write_json(self._target / REPORT, report.to_json())
        cache.finish(self._target, meta, cache.columns(parts))
        for name in (BUILDING, JOURNAL, "parts"):
            files.remove(self._target / name)
        return report


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Whole lines of the journal with their sizes; it ends where a line does not make sense."""
    try:
        with files.open_regular(path) as file:
            for line in file:
                entry = json.loads(line)
                if not line.endswith(b"\n") or not isinstance(entry, dict):
                    return
                yield len(line), entry
    except (OSError, ValueError, RecursionError):
        return


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
