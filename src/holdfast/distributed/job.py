"""What outlives a rank: its snapshots, its board, and notes to its successor, in one folder of shared memory. No torch.

job = Job.create()                        # `holdfast launch`; under plain torchrun the first rank to come
job.new_board(rank)                       # a page of its own for each process that is this rank
job.slots(rank)                           # the folder of its snapshots, the same for its successors
job.leave(rank, "peer")                   # why a rank ends: one that leaves no such note was killed
job.end({"state": "FAILED", ...})         # the run is over, whatever the agent does next
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.board import Board
from holdfast.base.files import in_folder, read_json, write_json
from holdfast.state.slots import Arena, Slot

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "holdfast-job-"
_PATIENCE = 60.0
GONE = "gone"
"""Notes whose names begin so: a rank of another machine has ended, or all of a machine (leader.py)."""


class Job:
    """The folder of one launch on one machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- making and finding --------------------------------------------------------------------------------

    @classmethod
    def create(cls, owner: int | None = None) -> Job:
        """A new one, in memory where there is any; those whose owner is gone are removed on the way."""
        place = _place()
        sweep(place)
        job = cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place)))
        job._write("owner.json", _identity(os.getpid() if owner is None else owner))
        return job

    @classmethod
    def of_agent(cls, agent: int, *, first: bool) -> Job:
        """The job of the ranks that this agent started: the first one makes it, the others wait for it."""
        identity = _identity(agent)
        pointer = _place() / f"{_PREFIX}agent-{_user()}-{agent}-{identity['started']}.json"
        deadline = time.monotonic() + _PATIENCE
        while True:
            found = read_json(pointer)
            if found is not None and isinstance(found.get("job"), str) and _is_ours(pointer):
                return cls(Path(found["job"]))
            if first:
                job = cls.create(owner=agent)
                write_json(pointer, {"job": str(job.path), **identity}, durable=False)
                return job
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "the first rank of this machine did not connect")
            time.sleep(0.02)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        for pointer in self.path.parent.glob(f"{_PREFIX}agent-*.json"):
            if (read_json(pointer) or {}).get("job") == str(self.path):
                pointer.unlink(missing_ok=True)

    # -- boards --------------------------------------------------------------------------------------------

    def new_board(self, rank: int) -> Board:
        board = Board.create(path=self.path / f"board-{rank}-{os.getpid()}")
        board.identify(os.getpid())
        return board

    def boards(self) -> dict[tuple[int, int], Path]:
        """By rank and process, those of processes that have ended too."""
        found = {}
        for path, status in in_folder(self.path, "board-*-*"):
            _, rank, pid = path.name.split("-")
            if status.st_size:
                found[int(rank), int(pid)] = path
        return found

    # -- snapshots -----------------------------------------------------------------------------------------

    def slots(self, rank: int) -> Path:
        folder = self.path / f"slots-{rank}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def marks(self, rank: int) -> Path:
        """Where it notes which sample it reads, for the process after it."""
        folder = self.path / f"marks-{rank}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def arenas(self, rank: int) -> list[Arena]:
        """The slots that earlier processes of this rank have left; all of one size belong together."""
        by_size: dict[int, list[Path]] = {}
        for path, status in in_folder(self.slots(rank), "slot-*"):
            if status.st_size:  # else it is being made
                by_size.setdefault(status.st_size, []).append(path)
        opened = [_open(paths) for _, paths in sorted(by_size.items())]
        return [arena for arena in opened if arena.slots]

    def seats(self) -> list[int]:
        """Those that have slots on this machine."""
        return sorted(int(path.name.partition("-")[2]) for path in self.path.glob("slots-*"))

    def slot_names(self, rank: int) -> list[tuple[str, int]]:
        """Which files its slots are now."""
        found = in_folder(self.slots(rank), "slot-*")
        return [(path.name, status.st_ino) for path, status in found if status.st_size]

    def newest_generation(self, seats: Iterable[int]) -> int:
        """The number of the group that has committed last, by the slots of these ranks; -1 if none has."""
        found = -1
        for seat in seats:
            for arena in self.arenas(seat):
                commit = arena.newest()
                found = found if commit is None else max(found, commit.generation)
                for slot in arena.slots:
                    slot.close()
        return found

    def drop_slots(self, rank: int) -> None:
        """Its snapshots are of no use any more, and no process of it lives."""
        shutil.rmtree(self.path / f"slots-{rank}", ignore_errors=True)

    def hand_slots(self, rank: int, heir: int) -> None:
        """No process of this rank lives; its snapshots are those of another that has none of its own."""
        self.drop_slots(heir)
        with contextlib.suppress(OSError):
            os.rename(self.path / f"slots-{rank}", self.path / f"slots-{heir}")

    # -- notes ---------------------------------------------------------------------------------------------

    def leave(self, rank: int, why: str, **more: Any) -> None:
        """Why this process ends, for whoever comes after it."""
        with contextlib.suppress(OSError):
            self._write(f"left-{rank}-{os.getpid()}.json", {"why": why, **more})

    def accuse(self, rank: int, pid: int, why: str, **more: Any) -> None:
        """Why that process was ended by us."""
        self._write(f"left-{rank}-{pid}.json", {"why": why, **more})

    def left(self, rank: int, pid: int) -> dict[str, Any] | None:
        return read_json(self.path / f"left-{rank}-{pid}.json")

    def note(self, name: str, data: dict[str, Any]) -> None:
        self._write(f"note-{name}.json", data)

    def noted(self, name: str) -> dict[str, Any]:
        return read_json(self.path / f"note-{name}.json") or {}

    def forget(self, name: str) -> None:
        (self.path / f"note-{name}.json").unlink(missing_ok=True)

    def end(self, outcome: dict[str, Any]) -> None:
        """The run is over. The first word counts: what others find afterwards follows from it."""
        temporary = self.path / f".outcome-{os.getpid()}"
        temporary.write_text(json.dumps(outcome), encoding="utf-8")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, self.path / "outcome.json")
        temporary.unlink(missing_ok=True)

    @property
    def outcome(self) -> dict[str, Any] | None:
        return read_json(self.path / "outcome.json")

    def _write(self, name: str, data: dict[str, Any]) -> None:
        write_json(self.path / name, data, durable=False)


def sweep(place: Path | None = None) -> None:
    """Remove what launches left whose every process was killed at once."""
    for folder in (place or _place()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            known = read_json(folder / "owner.json" if folder.is_dir() else folder)
            if known is None or not _is_ours(folder) or _lives(known):
                continue
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
            else:
                folder.unlink(missing_ok=True)


def _place() -> Path:
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK) and not processes.portable()
    return SHARED_MEMORY if usable else Path(tempfile.gettempdir())


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _is_ours(path: Path) -> bool:
    return not hasattr(os, "getuid") or path.lstat().st_uid == os.getuid()


def _identity(pid: int) -> dict[str, Any]:
    info = processes.inspect(pid)
    return {"pid": pid, "started": info.started if info is not None else 0}


def _lives(known: dict[str, Any]) -> bool:
    pid = known.get("pid")
    if not isinstance(pid, int) or not processes.exists(pid):
        return False
    info = processes.inspect(pid)
    return info is None or info.started == known.get("started")


def _open(paths: list[Path]) -> Arena:
    slots: list[Slot] = []
    for path in paths:
        try:
            fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            continue  # copies of a connection before the present one go as new ones come (part_copies.py)
        slots.append(Slot(len(slots), mmap.mmap(fd, os.fstat(fd).st_size), fd, path))
    return Arena(slots, "file")
