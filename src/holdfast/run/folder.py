"""The run folder: the one module that knows what a run looks like on disk.

    run.json          what this run is, its state and its supervisor      (replaced whole, never half)
    journal.jsonl     events, appended                                     output.log   what the script printed
    metrics.jsonl     numbers the script logged                            beat.json    the board, once a second
    readings.jsonl    temperatures, power, load, memory of the devices, every ten seconds
    checkpoints/N/    state.safetensors + digest.json                      best.safetensors  final.safetensors
    faults/NN/        what was found at a fault                            receipt.json
    lock              held while a supervisor or keeper lives

Runtime and monitor both stand on this module. A run folder may come from somebody else: everything read
here is checked and nothing in it is executed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.base import locks, planted
from holdfast.base.errors import InUse, UserError
from holdfast.base.files import number as number
from holdfast.base.files import open_regular
from holdfast.base.files import read_json as read_json
from holdfast.base.files import sync_folder as sync_folder
from holdfast.base.files import whole as whole
from holdfast.base.files import write_json as write_json
from holdfast.base.folders import Folder, make_private
from holdfast.base.line_file import LineFile, bounded_lines, objects
from holdfast.base.secret_words import redact as redact
from holdfast.run import seal
from holdfast.run.events import DURABLE, Event
from holdfast.run.names import new_name as new_name
from holdfast.run.states import LIVE_STATES, RunState

FORMAT = 1
LAST_WORD = "last.json"
"""What the keeper leaves when its supervisor died: how far the last worker was."""

_TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl and journal.jsonl that tell what came last."""
_LONGEST_TAIL = _TAIL * 8**3
"""32 MiB: a quarter of a million records in one epoch."""


class RunFolder:
    """One run on disk.

    For whoever holds the lock, the disk may fail: what it does not take is kept in memory, and `flush` tries again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left: Path | None = None
        """Where it was before it had to move."""
        self._lines: dict[str, LineFile] = {}
        self._lock: locks.Lock | None = None
        self._known: dict[str, Any] = {}
        """run.json as we last wrote it, for the time when it cannot be read."""
        self._unwritten: dict[str, dict[str, Any]] = {}
        """Files that are to be replaced as soon as the disk takes them."""
        self._problem: OSError | None = None
        self._beat: dict[str, Any] = {}
        self._beat_problem: OSError | None = None

    # -- finding and making --------------------------------------------------------------------------------

    @classmethod
    def create(cls, root: Path, workload: str, info: dict[str, Any]) -> RunFolder:
        """A new run under `root`, named so that a person can say it and a folder listing sorts it."""
        try:
            root.mkdir(parents=True, exist_ok=True)
            taken = {name_of(entry) for entry in root.iterdir() if entry.is_dir()}
            name = new_name(taken)
            stamp = datetime.now().strftime("%Y%m%d-%H%M")
            path = root / f"{workload}-{stamp}-{name}"
            _make_with_parts(path)
            folder = cls(path)
            folder.vouch({"schema": 1, "format": FORMAT, "run": name, "workload": workload, **info})
        except OSError as error:
            raise UserError(
                f"cannot create a run folder in {root}",
                cause=str(error.strerror or error),
                hints=["choose another place with `run.folder=PATH`"],
            ) from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run; UserError if the folder is not one or was made by a newer holdfast."""
        info = read_json(path / "run.json")
        if info is None:
            raise UserError(f"{path} is not a run folder", cause="it has no readable run.json")
        version = info.get("format")
        if not isinstance(version, int):
            raise UserError(f"{path} is not a run folder", cause="its run.json has no format number")
        if version > FORMAT:
            raise UserError(
                f"{path} was written by a newer holdfast",
                cause=f"its format is {version}, this holdfast reads up to {FORMAT}",
                hints=["update holdfast: `pip install -U holdfast`"],
            )
        return cls(path)

    @property
    def name(self) -> str:
        return name_of(self.path)

    # -- the lock ------------------------------------------------------------------------------------------

    def lock(self, *, wait: float = 0.5) -> None:
        """Take the run for this process; UserError naming the holder if another has it.

        `wait` gives a keeper that outlived its supervisor the time to save the last snapshot.
        """
        planted.check(self.path)
        deadline = time.monotonic() + wait
        lock = locks.Lock(self.path / "lock")
        try:
            while not lock.take():
                if time.monotonic() >= deadline:
                    raise self._in_use_by(lock)
                time.sleep(0.05)
        except OSError as error:
            raise UserError(f"{self.path} is not writable", cause=str(error.strerror or error)) from None
        self._lock = lock
        self._known = self.info or self._known

    def _in_use_by(self, lock: locks.Lock) -> InUse:
        """Who has the run; where claims stand in for locks, one may be of a machine that we cannot ask."""
        holder = locks.holder(lock.path)
        hints = [f"watch it with `holdfast status {self.name}`", f"stop it with `holdfast stop {self.name}`"]
        for name, said in locks.claimants(lock.path) if lock.without_locks else ():
            if locks.lives(said) is None:
                hints = [f"if no process on another machine uses the run, delete {lock.path.with_name(name)}"]
        cause = f"it is held by {holder}" if holder else "another process holds its lock"
        return InUse(f"{self.name} is in use", cause=cause, hints=hints)

    def share_lock(self) -> None:
        """Whoever started this process holds the lock for it; what the disk does not take waits here as well."""
        with contextlib.suppress(OSError):
            lock = locks.Lock(self.path / "lock")
            lock.open()
            self._lock = lock
        self._known = self.info or self._known

    @property
    def lock_fd(self) -> int | None:
        return None if self._lock is None else self._lock.fd

    def hold_with(self, pid: int) -> None:
        """The keeper, which inherited `lock_fd`, holds the run beside us and after us."""
        if self._lock is not None:
            self._lock.share(pid)

    @property
    def without_locks(self) -> str | None:
        """A sentence where the file system has no locks, and a claim stands in for this run's."""
        if self._lock is None or not self._lock.stand_in:
            return None
        return "the file system of the run folder has no locks: the file lock.… is used instead"

    def in_use(self) -> bool:
        """True while a supervisor, or a keeper that outlived it, holds the lock."""
        return locks.is_held(self.path / "lock")

    # -- run.json ------------------------------------------------------------------------------------------

    @property
    def info(self) -> dict[str, Any]:
        known = {} if self._lock is None else dict(self._known)
        return self._unwritten.get("run.json") or read_json(self.path / "run.json") or known

    def write_info(self, info: dict[str, Any]) -> None:
        self.put("run.json", info)
        self._known = info

    def put(self, name: str, data: dict[str, Any]) -> None:
        """Replace a JSON file. What the disk does not take waits for `flush`, if this process has the run's lock."""
        try:
            write_json(self.path / name, data)
            self._unwritten.pop(name, None)
        except OSError as error:
            if self._lock is None:
                raise
            self._unwritten[name] = data
            self._problem = error

    def update_info(self, **changes: Any) -> None:
        before = self.info
        self.write_info(seal.kept(self.path, before, {**before, **changes}))

    def vouch(self, info: dict[str, Any]) -> None:
        """Write run.json with the seal of this user: what it says was typed here, or shown and agreed to."""
        self.write_info({**info, seal.SEAL: seal.made(self.path, info)})

    @property
    def vouched(self) -> bool:
        """Whether this user started here what run.json says."""
        return seal.holds(self.path, self.info)

    def state(self) -> str:
        """The state a person should read: what run.json says, or CRASHED if nobody is there to say it."""
        said = str(self.info.get("state", RunState.CRASHED))
        return RunState.CRASHED if said in LIVE_STATES and not self.in_use() else said

    # -- appending -----------------------------------------------------------------------------------------

    def append(self, event: Event) -> None:
        self._file("journal.jsonl").append(event.to_line(), durable=event.kind in DURABLE)

    def append_metrics(self, record: dict[str, Any]) -> None:
        self._file("metrics.jsonl").append(json.dumps(record))

    def append_reading(self, reading: dict[str, Any]) -> None:
        self._file("readings.jsonl").append(json.dumps(reading))

    def _file(self, name: str) -> LineFile:
        return self._lines.setdefault(name, LineFile(self.path / name))

    def write_beat(self, beat: dict[str, Any]) -> None:
        """The next one comes in a second: one that cannot be written is left out, and tells how the disk is."""
        self._beat = beat
        try:
            write_json(self.path / "beat.json", beat, durable=False)
            self._beat_problem = None
        except OSError as error:
            self._beat_problem = error

    # -- when the disk fails ---------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Try again what the disk did not take; True once it has everything."""
        self._problem = None
        if self._lock is not None:
            self._hold_again()
        for name, data in list(self._unwritten.items()):
            self.put(name, data)
        for lines in self._lines.values():
            lines.flush()
        if self._beat_problem is not None:
            self.write_beat(self._beat)
        return self.problem is None

    @property
    def problem(self) -> OSError | None:
        """Why something waits in memory; None if nothing does."""
        waiting = (lines.problem for lines in self._lines.values() if lines.problem is not None)
        return self._problem or next(waiting, None) or self._beat_problem

    @property
    def dropped(self) -> int:
        """Lines that were too many to wait."""
        return sum(lines.dropped for lines in self._lines.values())

    def move_to(self, path: Path) -> None:
        """Go on in another folder, with what was recorded so far: this one cannot be written to any more."""
        make_private(path.parent)
        _make_with_parts(path)
        info = self.info
        self.left, self.path = self.path, path
        for name in ("journal.jsonl", "metrics.jsonl", "readings.jsonl"):
            self._file(name).move(path / name)
        self._beat_problem = None
        self.write_info(seal.carried(self.left, path, info))
        self.flush()

    def _hold_again(self) -> None:
        """Notice a folder that was taken away; if another one is in its place, hold that one too."""
        assert self._lock is not None
        if not self.path.is_dir():
            self._problem = OSError(errno.ENOENT, "the run folder is gone")
            return
        try:
            there, ours = os.lstat(self.path / "lock"), os.fstat(-1 if self._lock.fd is None else self._lock.fd)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
        except OSError:
            pass
        held, self._lock = self._lock, None
        try:
            self.lock(wait=0.0)
            held.release()
            self._unwritten.setdefault("run.json", read_json(self.path / "run.json") or dict(self._known))
        except UserError as error:
            self._lock = held
            self._problem = OSError(error.cause or error.message)

    def next_fault_folder(self) -> Path:
        """faults/01, faults/02, …: where the evidence of one fault is kept."""
        with Folder.at(self.path / "faults", inner=1, make=True) as faults:
            numbers = [int(name) for name in faults.names() if name.isascii() and name.isdigit()]
            name = f"{max(numbers, default=0) + 1:02d}"
            faults.make(name)
            return faults.path / name

    def close(self) -> None:
        for lines in self._lines.values():
            lines.close()
        self._lines = {}
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- reading -------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        yield from read_events(self.path / "journal.jsonl")

    def metrics(self) -> list[dict[str, Any]]:
        """What the script logged; a step that was repeated after a fault counts once, with its last values."""
        merged: dict[tuple[Any, Any], dict[str, Any]] = {}
        for record in read_lines(self.path / "metrics.jsonl"):
            key = (record.get("step"), record.get("epoch"))
            merged.setdefault(key, {}).update(record)
        return list(merged.values())

    def last_metrics(self) -> list[dict[str, Any]]:
        """The newest of them as they were written, repeated steps included; a long file is not read whole."""
        return self._tail("metrics.jsonl", _TAIL)[0]

    def newest_metrics(self, epoch: int) -> list[dict[str, Any]]:
        """The newest of them in the same way, and all since this epoch began."""
        return self._since("metrics.jsonl", epoch)

    def newest_events(self, epoch: int) -> list[Event]:
        """The newest events of the journal, and all since this epoch began."""
        return list(_events(self._since("journal.jsonl", epoch)))

    def _since(self, name: str, epoch: int) -> list[dict[str, Any]]:
        size = _TAIL
        while True:
            records, whole_file = self._tail(name, size)
            if whole_file or size >= _LONGEST_TAIL or any(whole(each.get("epoch"), epoch) < epoch for each in records):
                return records
            size *= 8

    def _tail(self, name: str, most: int) -> tuple[list[dict[str, Any]], bool]:
        """The records at the end of a file, and whether that is all of it."""
        try:
            with open_regular(self.path / name) as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - most))
                return list(objects(file.read(most).split(b"\n"))), size <= most
        except OSError:
            return [], True

    def receipt(self) -> dict[str, Any] | None:
        return read_json(self.path / "receipt.json")


def name_of(path: Path) -> str:
    """calm-heron, from eeg-20261115-0912-calm-heron."""
    match = re.search(r"\d{8}-\d{4}-(.+)$", path.name)
    return match.group(1) if match else path.name


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects of an appended file; torn and foreign lines are passed over."""
    try:
        file = open_regular(path)
    except OSError:
        return
    with file:
        yield from objects(line.decode(errors="replace") for line in bounded_lines(file))


def read_events(path: Path) -> Iterator[Event]:
    return _events(read_lines(path))


def _events(records: Iterable[dict[str, Any]]) -> Iterator[Event]:
    for record in records:
        kind, when = record.pop("event", None), str(record.pop("time", ""))
        if isinstance(kind, str):
            yield Event(kind, when, record)


def list_runs(root: Path) -> list[RunFolder]:
    """Every run under `root`, the newest last."""
    try:
        entries = [entry for entry in root.iterdir() if (entry / "run.json").is_file()]
    except OSError:
        return []
    runs = [RunFolder(entry) for entry in entries]
    return sorted(runs, key=lambda run: (str(run.info.get("created", "")), run.path.name))


def find_run(root: Path, wanted: str) -> RunFolder:
    """A run by name, folder, part of a folder name, or `latest`."""
    if (Path(wanted) / "run.json").is_file():
        return RunFolder.open(Path(wanted))
    runs = list_runs(root)
    if wanted == "latest" and runs:
        return RunFolder.open(runs[-1].path)
    for run in reversed(runs):
        if wanted in (run.name, run.path.name):
            return RunFolder.open(run.path)
    import difflib

    close = difflib.get_close_matches(wanted, [run.name for run in runs], n=1)
    hints = [f"a similar run exists: `{close[0]}`"] if close else ["`holdfast list` shows the runs there are"]
    raise UserError(f"no run `{wanted}` in {root}", hints=hints)


def _make_with_parts(path: Path) -> None:
    """A new run folder, and the two folders that every run has."""
    path.mkdir(mode=0o700)
    with Folder.at(path) as folder:
        for part in ("checkpoints", "faults"):
            folder.make(part)
