"""Snapshot slots: shared memory that holds a run's state outside the process that trains.

    arena = Arena.create(capacity, slots=5)     # supervisor: owns the memory, reserved before use
    arena = Arena.open(fds)                     # worker and keeper
    slot = arena.choose(busy)                   # worker: a slot that is neither the newest nor leased
    slot.begin(sequence); slot.payload(size)[:] = …
    slot.commit(sequence=…, step=…, …)          # valid from here on; a torn one never becomes valid
    arena.newest()                              # supervisor, keeper: the slot with the highest sequence

A slot is a page of header and then the bytes of a safetensors file. The sequence number is odd while the
slot is written and even once it is whole. The keeper leases the slot it copies; a lease is a wish the worker
honours at its next choice, and the keeper checks the sequence again when it is done.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from holdfast.base.dataclass_json import read_strictly
from holdfast.base.errors import UserError, from_json
from holdfast.base.files import remove
from holdfast.base.folders import Folder, open_growing
from holdfast.run.messages import SlotsAt
from holdfast.state import pages

HEADER = 4096
LARGE = 64 << 20
"""Bytes of a slot in memory from which on its pages are reserved by who writes to it, beside the script."""
LEAST = 2
"""Slots without which there is no snapshot: the newest, and the one that is written."""
PATIENCE = 0.2
"""Seconds a worker waits for a slot somebody holds before it takes it anyway: a keeper may have died with it."""
_MAGIC = 0x484F4C44534C4F54  # "HOLDSLOT"


_turnstile = threading.Lock()


def fence(acquire: Callable[[], bool] = _turnstile.acquire, release: Callable[[], None] = _turnstile.release) -> None:
    """What was loaded or stored before is so before anything after it, on processors that reorder (ARM).

    Python has no barrier of its own. Nothing moves up past the taking of a lock, and nothing down past its leaving;
    leaving it and taking it again keep their order. So taking and leaving it is half a barrier, and doing it twice a
    whole one.
    """
    acquire()
    release()
    acquire()
    release()


class _Word(IntEnum):
    MAGIC = 0
    SEQUENCE = 1
    STEP = 2
    GENERATION = 3
    BYTES = 4
    LEASE = 5
    TIME = 6
    RESUMABLE = 7
    HELD = 8
    AGREED = 9


_UNDONE = -1
"""In place of whether a slot is resumable: it is not even good for a look."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A whole snapshot: where it is and what it holds."""

    slot: int
    sequence: int
    step: int
    generation: int
    size: int
    time_ns: int
    resumable: bool = True
    """False for a savepoint: its weights can be saved, but no run goes on from it."""


class Slot:
    """One snapshot's memory."""

    def __init__(self, index: int, memory: mmap.mmap, fd: int, path: Path | None, *, in_memory: bool = False) -> None:
        self.index = index
        self.in_memory = in_memory
        """Otherwise its pages belong to a file on a disk, which may be slow."""
        self.memory = memory
        self.fd = fd
        self.path = path
        self.words = memoryview(memory)[:HEADER].cast("q")

    @property
    def age(self) -> int:
        """The lower, the longer ago it was written to; 0 if never."""
        return int(self.words[_Word.SEQUENCE])

    def begin(self, sequence: int) -> None:
        """Mark the slot as being written: from here until `commit` it does not exist for readers."""
        self.words[_Word.SEQUENCE] = 2 * sequence - 1
        self.words[_Word.MAGIC] = _MAGIC
        fence()

    def still_written(self) -> None:
        """Who writes to it is at work: for readers that wait for it."""
        self.words[_Word.TIME] = time.monotonic_ns()

    @property
    def pulse(self) -> tuple[int, int]:
        """Another value whenever a snapshot was begun, written on or committed here."""
        return int(self.words[_Word.SEQUENCE]), int(self.words[_Word.TIME])

    def commit(self, *, sequence: int, step: int, generation: int, size: int, resumable: bool = True) -> None:
        """Make the slot whole. The sequence is stored last: it is what readers trust."""
        words = self.words
        words[_Word.STEP] = step
        words[_Word.GENERATION] = generation
        words[_Word.BYTES] = size
        words[_Word.TIME] = time.time_ns()
        words[_Word.RESUMABLE] = int(resumable)
        words[_Word.AGREED] = 0
        fence()
        words[_Word.SEQUENCE] = 2 * sequence

    def read(self, *, savepoints: bool = False) -> Commit | None:
        """What the slot holds, or None if it is empty, torn, being written, or only a savepoint.

        The sequence is loaded first and last, and everything else in between, in this order also on a processor that
        loads ahead of time: the writer's fences alone order its stores, not our loads. A slot that was begun anew
        meanwhile has another sequence by then. The last fence stands before what the caller reads of the payload, too.
        """
        words = self.words
        sequence = words[_Word.SEQUENCE]
        fence()
        resumable = words[_Word.RESUMABLE]
        if words[_Word.MAGIC] != _MAGIC or sequence <= 0 or sequence % 2:
            return None
        if resumable == _UNDONE or not (resumable or savepoints):
            return None
        commit = Commit(
            slot=self.index,
            sequence=sequence // 2,
            step=words[_Word.STEP],
            generation=words[_Word.GENERATION],
            size=words[_Word.BYTES],
            time_ns=words[_Word.TIME],
            resumable=bool(resumable),
        )
        fence()
        return commit if words[_Word.SEQUENCE] == sequence and 0 < commit.size <= self.capacity else None

    @property
    def capacity(self) -> int:
        return len(self.memory) - HEADER

    @property
    def leased(self) -> bool:
        return bool(self.words[_Word.LEASE])

    def lease(self) -> None:
        self.words[_Word.LEASE] = 1

    def release(self) -> None:
        self.words[_Word.LEASE] = 0

    @property
    def held(self) -> bool:
        return bool(self.words[_Word.HELD])

    def hold(self) -> None:
        """The worker's own lease on a snapshot somebody will want: the end of an epoch may be the best one."""
        self.words[_Word.HELD] = 1

    def let_go(self) -> None:
        self.words[_Word.HELD] = 0

    @property
    def agreed(self) -> bool:
        return self.words[_Word.AGREED] == 1

    @property
    def considered(self) -> bool:
        """A look at the step after it is under way: it may be agreed on soon."""
        return self.words[_Word.AGREED] == 2

    def consider(self) -> None:
        self.words[_Word.AGREED] = 2

    def agree(self) -> None:
        """Device and CPU computed the same at this step: if they part later, the run goes back to here."""
        self.words[_Word.AGREED] = 1

    def forget_agreement(self) -> None:
        self.words[_Word.AGREED] = 0

    def undo(self) -> None:
        """What this slot holds turned out to be wrong: nobody starts from it any more."""
        self.words[_Word.RESUMABLE] = _UNDONE

    def payload(self, size: int) -> memoryview:
        """The safetensors bytes of a commit, without copying them."""
        return memoryview(self.memory)[HEADER : HEADER + size]

    def map_in(self, size: int) -> None:
        """Before all of a large snapshot is read: its pages become this process's at once. One by one, when each is
        read for the first time, they take twice as long as the disk that they are written to."""
        if size >= LARGE and self.in_memory:
            self._advise(pages.POPULATE_READ, size)

    def empty(self) -> None:
        """Give the memory back, though others have it open. The slot holds nothing any more."""
        self.undo()
        if self.capacity >= LARGE and self.in_memory:
            self._advise(pages.REMOVE, self.capacity)

    def _advise(self, advice: int, size: int) -> None:
        """An older kernel may not know it: then nothing is gained."""
        with contextlib.suppress(ValueError):  # it was closed meanwhile
            pages.advise(self.memory, advice, HEADER, HEADER + size)

    def close(self) -> None:
        self.words.release()
        with contextlib.suppress(BufferError):  # a tensor may still look at it; the process will end soon
            self.memory.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Arena:
    """All slots of a run."""

    def __init__(self, slots: list[Slot], where: str) -> None:
        self.slots = slots
        self.where = where

    @classmethod
    def create(
        cls, capacity: int, *, slots: int, folder: Path | None = None, named: bool = False, later: bool = False
    ) -> Arena:
        """Reserve `slots` x `capacity` bytes: in memory, or in files under `folder`.

        Reserving first turns "no room" into an error here instead of a SIGBUS in the middle of a step. That takes
        seconds for large slots; with `later`, slot_preparation.py does it for those in memory, before they are used.
        Files are unlinked at once where descriptors can be passed on; `named` keeps them for processes that
        must open them by path.
        """
        made: list[Slot] = []
        first = HEADER if later and folder is None and capacity >= LARGE else HEADER + capacity
        try:
            for index in range(slots):
                fd, path = _reserve(HEADER + capacity, index, folder, named, first)
                made.append(Slot(index, mmap.mmap(fd, HEADER + capacity), fd, path, in_memory=folder is None))
        except OSError:
            for slot in made:
                slot.close()
                if slot.path is not None:
                    remove(slot.path, inner=1)
            raise
        return cls(made, "memory" if folder is None else "file")

    @classmethod
    def open(cls, fds: list[int], where: str = "memory") -> Arena:
        sizes = [os.fstat(fd).st_size for fd in fds]
        mapped = [mmap.mmap(fd, size) for fd, size in zip(fds, sizes, strict=True)]
        inside = where == "memory"
        return cls([Slot(n, each, fds[n], None, in_memory=inside) for n, each in enumerate(mapped)], where)

    @classmethod
    def open_paths(cls, paths: list[Path]) -> Arena:
        return cls.open([_open(path) for path in paths], "file")

    @classmethod
    def open_at(cls, at: SlotsAt, fds: list[int]) -> Arena:
        """Slots that another process has told of. Their descriptors are taken from the front of `fds`."""
        if at.paths:
            return cls.open_paths([Path(path) for path in at.paths])
        return cls.open([fds.pop(0) for _ in range(at.slots)], at.where)

    @classmethod
    def open_answer(cls, answer: dict[str, Any], fds: list[int]) -> Arena:
        """The slots that were asked for with SlotsWanted; the error that came instead is raised."""
        if answer.get("error"):
            raise from_json(answer)
        return cls.open_at(read_strictly(SlotsAt, answer), fds)

    def at(self, *, by_path: bool) -> SlotsAt:
        """For another process. `by_path`: it takes no descriptors, and opens the files, or ours in /proc."""
        if not by_path:
            return SlotsAt(slots=len(self.slots), where=self.where)
        return SlotsAt(tuple(str(slot.path or f"/proc/{os.getpid()}/fd/{slot.fd}") for slot in self.slots))

    @property
    def capacity(self) -> int:
        return self.slots[0].capacity

    @property
    def fds(self) -> list[int]:
        return [slot.fd for slot in self.slots]

    @property
    def paths(self) -> list[Path]:
        return [slot.path for slot in self.slots if slot.path is not None]

    def newest(self) -> Commit | None:
        commits = [commit for slot in self.slots if (commit := slot.read()) is not None]
        return max(commits, key=lambda commit: commit.sequence, default=None)

    def choose(self, busy: set[int], among: list[Slot] | None = None) -> Slot:
        """A slot to write: not the newest, not `busy` with a copy in flight, not wanted by others; the oldest.

        Where others want all that is left, they get a moment; then the worker goes on, and they will notice. `among`
        are those that are ready to be written.
        """
        free = self._free(busy, among)
        deadline = time.monotonic() + PATIENCE
        while not (unwanted := _unwanted(free)) and time.monotonic() < deadline:
            time.sleep(0.001)
        return min(unwanted or free, key=lambda slot: slot.words[_Word.SEQUENCE])

    def has_room(self, busy: set[int], among: list[Slot] | None = None, *, plain: bool = False) -> bool:
        """Whether `choose` would find a slot that nobody wants; `plain`: and none that was agreed on, or may be."""
        free = _unwanted(self._free(busy, among))
        return any(not slot.agreed and not slot.considered for slot in free) if plain else bool(free)

    def _free(self, busy: set[int], among: list[Slot] | None) -> list[Slot]:
        newest = self.newest()
        possible = self.slots if among is None else among
        return [s for s in possible if s.index not in busy and (newest is None or s.index != newest.slot)]

    def find(self, sequence: int) -> Slot | None:
        """The slot that holds this snapshot still, be it a savepoint."""
        commits = ((slot, slot.read(savepoints=True)) for slot in self.slots)
        return next((slot for slot, commit in commits if commit is not None and commit.sequence == sequence), None)

    def agreed(self) -> Commit | None:
        """The newest snapshot at which device and CPU agreed, if a slot holds one."""
        commits = [commit for slot in self.slots if slot.agreed and (commit := slot.read()) is not None]
        return max(commits, key=lambda commit: commit.sequence, default=None)

    def release_all(self) -> None:
        for slot in self.slots:
            slot.release()

    def close(self) -> None:
        for slot in self.slots:
            slot.close()
            if slot.path is not None:
                remove(slot.path, inner=1)


def _unwanted(free: list[Slot]) -> list[Slot]:
    """Slots that nobody saves or waits for. The one that was agreed on goes only where there is no other."""
    quiet = [slot for slot in free if not slot.leased and not slot.held]
    plain = [slot for slot in quiet if not slot.agreed and not slot.considered]
    return plain or [slot for slot in quiet if not slot.agreed] or quiet


def _reserve(size: int, index: int, folder: Path | None, named: bool, first: int) -> tuple[int, Path | None]:
    """A file of this size; the first bytes of it are reserved."""
    if folder is None:
        fd = _memory_fd(index)
        path = None
    else:
        path = folder / f"slot-{index}-{os.urandom(6).hex()}"
        with Folder.at(folder, inner=1, make=True) as place:
            with place.create(path.name) as file:
                fd = os.dup(file.fileno())
            if not named:
                place.unlink(path.name)
                path = None
    try:
        if first < size or not hasattr(os, "posix_fallocate"):
            os.truncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, first)
    except OSError:
        os.close(fd)
        if path is not None:
            remove(path, inner=1)
        raise
    return fd, path


def _open(path: Path) -> int:
    if path.parent.parts[:2] == ("/", "proc"):  # slots of the supervisor, which have no name of their own
        return os.open(path, os.O_RDWR)
    return open_growing(path, make=False, inner=1)


def _memory_fd(index: int) -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "no anonymous shared memory on this system")
    fd: int = os.memfd_create(f"holdfast-slot-{index}")
    return fd


def no_room(need: int, where: str) -> UserError:
    """The error for a state that fits neither in memory nor on disk."""
    return UserError(
        f"no room for {need / 2**20:.0f} MiB of snapshots {where}",
        cause="the state of a step must live outside the process that trains, in memory or in a file",
        hints=["free memory or disk space", "use fewer slots: `snapshot.slots=3`"],
    )
