"""Copies of parts between machines, over real sockets and real slots: what is sent, kept, thrown away, and when."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.board import Board
from holdfast.distributed import part_copies, rank_link
from holdfast.distributed.job import Job
from holdfast.distributed.part_copies import CopyReceiver, CopySender
from holdfast.distributed.rank_link import Writer
from holdfast.distributed.rank_snapshots import Snapshots
from holdfast.distributed.roster import Roster, far
from holdfast.state.layout import META
from holdfast.state.shards import SHARED_OUT
from holdfast.state.slots import Arena, Slot
from tests.waiting import wait_until

MIB = 1 << 20


def _payload(index: int, count: int, sequence: int, size: int = 64) -> bytes:
    """A snapshot with one tensor of this many bytes, all of them `sequence`."""
    said: dict[str, Any] = {"session": {"step": sequence, "sequence": sequence}}
    if count > 1:
        said[SHARED_OUT] = {"index": index, "count": count, "names": ["w"]}
    meta = json.dumps(said).encode()
    table = {
        META: {"dtype": "U8", "shape": [len(meta)], "data_offsets": [0, len(meta)]},
        "w": {"dtype": "U8", "shape": [size], "data_offsets": [len(meta), len(meta) + size]},
    }
    header = json.dumps(table).encode()
    return struct.pack("<Q", len(header)) + header + meta + bytes([sequence]) * size


def _write(slot: Slot, payload: bytes, sequence: int, generation: int = 1) -> None:
    slot.begin(sequence)
    slot.payload(len(payload))[:] = payload
    slot.commit(sequence=sequence, step=sequence, generation=generation, size=len(payload))


def _kept(job: Job, seat: int) -> list[int]:
    """Sequences of the copies that are whole."""
    found = []
    for arena in job.arenas(seat):
        for slot in arena.slots:
            commit = slot.read()
            if commit is not None:
                found.append(commit.sequence)
            slot.close()
    return sorted(found)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[tuple[Job, Job]]:
    """The folders of two machines."""
    made = [Job(tmp_path / name) for name in ("here", "there")]
    for job in made:
        job.path.mkdir()
    yield made[0], made[1]
    for job in made:
        shutil.rmtree(job.path, ignore_errors=True)


@pytest.fixture
def sender(jobs: tuple[Job, Job]) -> Iterator[Callable[[Callable[[], socket.socket | None]], CopySender]]:
    begun: list[CopySender] = []

    def begin(connect: Callable[[], socket.socket | None]) -> CopySender:
        begun.append(CopySender(jobs[0], connect, skip=lambda seat: False))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()


def _once(sock: socket.socket) -> Callable[[], socket.socket | None]:
    left = [sock]
    return lambda: left.pop() if left else None


def test_a_part_arrives_byte_for_byte(jobs: tuple[Job, Job], sender: Any) -> None:
    here, there = jobs
    ours, theirs = socket.socketpair()
    payload = _payload(1, 2, 3, size=2 * part_copies._PIECE + 5)
    arena = Arena.create(len(payload), slots=4, folder=here.slots(1), named=True)
    _write(arena.slots[0], payload, 3)
    CopyReceiver(there, theirs)
    sender(_once(ours))
    assert wait_until(lambda: _kept(there, 1) == [3])
    (copies,) = there.arenas(1)
    slot = copies.find(3)
    assert slot is not None and slot.payload(len(payload)) == payload
    assert not any(slot.leased for slot in arena.slots)


@pytest.mark.parametrize("count", [1, 2], ids=["replicated", "a part, and no connection"])
def test_what_is_not_sent_is_not_copied(jobs: tuple[Job, Job], sender: Any, count: int) -> None:
    """A copy of a large state would hold the other threads of the agent, whose pulses keep the machine in the run."""
    here, _ = jobs
    payload = _payload(0, count, 3, size=256 * MIB)
    arena = Arena.create(len(payload), slots=2, folder=here.slots(0), named=True)
    _write(arena.slots[0], payload, 3)
    tried: list[float] = []

    def connect() -> None:
        tried.append(time.monotonic())

    reference = time.thread_time()
    bytes(arena.slots[0].payload(len(payload)))
    reference = time.thread_time() - reference
    looked = CopySender(here, connect, skip=lambda seat: False)
    before = time.process_time()
    if count == 1:
        assert wait_until(lambda: looked._sent.get(0))
        assert not tried
    else:
        assert wait_until(lambda: len(tried) >= 3)
    spent = time.process_time() - before
    looked.end()
    assert spent < reference / 2, "processor time of the looks, against one copy"


def test_a_part_that_is_overwritten_while_it_is_sent(jobs: tuple[Job, Job], sender: Any) -> None:
    """The other side forgets it, and has the next one whole."""
    here, there = jobs
    ours, theirs = socket.socketpair()
    size = 4 * part_copies._PIECE
    first, second = _payload(1, 2, 3, size), _payload(1, 2, 4, size)
    arena = Arena.create(len(first), slots=2, folder=here.slots(1), named=True)
    _write(arena.slots[0], first, 3)
    sending = sender(_once(ours))
    assert theirs.recv(1, socket.MSG_PEEK)  # the sender has begun; nobody reads on, so it is in the first piece
    arena.slots[0].begin(4)
    CopyReceiver(there, theirs)
    assert wait_until(lambda: 1 in sending._hurried)
    assert _kept(there, 1) == []
    _write(arena.slots[0], second, 4)
    assert wait_until(lambda: _kept(there, 1) == [4])
    (copies,) = there.arenas(1)
    slot = copies.find(4)
    assert slot is not None and slot.payload(len(second)) == second


def test_no_room_for_copies(jobs: tuple[Job, Job], sender: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender does not wait for ever; copies are kept again when there is room. 1 << 62 bytes fit nowhere."""
    here, there = jobs
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(part_copies, "_AGAIN", 0.0)
    real, full = Arena.create, threading.Event()
    full.set()

    def create(capacity: int, **more: Any) -> Arena:
        if full.is_set() and more["folder"] == there.slots(1):
            return real(1 << 62, **more)  # the system itself says that there is no room
        return real(capacity, **more)

    monkeypatch.setattr(Arena, "create", create)
    payload = _payload(1, 2, 3, size=8 * MIB)
    arena = Arena.create(len(payload), slots=2, folder=here.slots(1), named=True)
    _write(arena.slots[0], payload, 3)
    CopyReceiver(there, theirs)
    sending = sender(_once(ours))
    assert wait_until(lambda: sending._sent.get(1)), "the sender is not held up"
    assert there.noted(part_copies.NOT_KEPT)["why"] and _kept(there, 1) == []
    full.clear()
    _write(arena.slots[1], _payload(1, 2, 4, size=8 * MIB), 4)
    assert wait_until(lambda: _kept(there, 1) == [4])
    assert not there.noted(part_copies.NOT_KEPT)


def test_a_receiver_that_fails_ends_the_connection(jobs: tuple[Job, Job], sender: Any) -> None:
    """Else the sender would wait for ever in the middle of a part."""
    here, there = jobs
    ours, theirs = socket.socketpair()
    shutil.rmtree(there.path)
    there.path.write_text("no folder")
    payload = _payload(1, 2, 3, size=8 * MIB)
    arena = Arena.create(len(payload), slots=2, folder=here.slots(1), named=True)
    _write(arena.slots[0], payload, 3)
    CopyReceiver(there, theirs)
    sending = sender(_once(ours))
    assert wait_until(lambda: ours.fileno() == -1 and sending._sock is None)
    there.path.unlink()


def test_old_copies_stay_until_new_ones_are_whole(jobs: tuple[Job, Job]) -> None:
    """The connection is lost in the middle of the first new copy: what was there is there still."""
    _, there = jobs
    size = len(_payload(1, 2, 1))

    def send(sock: socket.socket, sequence: int, much: int) -> None:
        head = part_copies.PartCopy(1, sequence, sequence, 1, size, size)
        whole = _payload(1, 2, sequence)
        sock.sendall(json.dumps(head.to_json()).encode() + b"\n" + (b"+" + whole + b".")[:much])

    for first in (1, 5):
        ours, theirs = socket.socketpair()
        CopyReceiver(there, theirs)
        send(ours, first, size // 2)
        ours.close()
        assert wait_until(lambda sock=theirs: sock.fileno() == -1)
        assert _kept(there, 1) == ([] if first == 1 else list(range(first - 4, first)))
        ours, theirs = socket.socketpair()
        CopyReceiver(there, theirs)
        for sequence in range(first, first + 4):
            send(ours, sequence, size + 2)
            assert wait_until(lambda sequence=sequence: sequence in _kept(there, 1))
        assert wait_until(lambda first=first: _kept(there, 1) == list(range(first, first + 4)))
        ours.close()
    assert len(there.slot_names(1)) == 4, "the files of old connections are gone"


class _Waiting:
    """What `_with_all_parts` needs of a writer, with real slots; rank 1 is on another machine."""

    _with_all_parts = Writer._with_all_parts

    def __init__(self, job: Job) -> None:
        from holdfast.distributed.place import Place
        from holdfast.run.settings import Settings

        place = Place(rank=0, ranks=2, local_rank=0, local_ranks=1, restarts=1, agent=os.getpid())
        self.snapshots = Snapshots(job, place, Settings.load({}))
        self.job = job
        self.board = Board.create()
        self.place = SimpleNamespace(roster=Roster(1, {0: os.getpid(), 1: far(1, 4711)}, (0, 1), 2, (0, 1)), restarts=1)
        self.told: list[str] = []
        self.teller = SimpleNamespace(emit=lambda kind, text: self.told.append(text))
        self._stalled: Any = None
        self._longest_wait = 0.0


def test_a_wait_for_copies_that_do_not_come_ends(jobs: tuple[Job, Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once after the silence that no connection may have; then not again until something comes."""
    job, _ = jobs
    monkeypatch.setattr(rank_link, "LONGEST", 0.5)
    own = _payload(0, 2, 3)
    arena = Arena.create(len(own), slots=4, folder=job.slots(0), named=True)
    other = Arena.create(len(own), slots=4, folder=job.slots(1), named=True)
    _write(arena.slots[0], own, 3)
    waiting = _Waiting(job)
    began = time.monotonic()
    assert waiting._with_all_parts(memoryview(own), 3) is None  # type: ignore[misc]
    assert time.monotonic() - began >= 0.5
    monkeypatch.setattr(rank_link, "LONGEST", 1e6)
    assert waiting._with_all_parts(memoryview(own), 3) is None  # type: ignore[misc]
    assert len(waiting.told) == 1 and "do not come to this one" in waiting.told[0]
    _write(other.slots[0], _payload(1, 2, 3), 3)
    whole = waiting._with_all_parts(memoryview(own), 3)  # type: ignore[misc]
    assert whole is not None and waiting._stalled is None


def test_a_copy_that_is_coming_is_waited_for(jobs: tuple[Job, Job], monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = jobs
    monkeypatch.setattr(rank_link, "LONGEST", 2.0)
    own = _payload(0, 2, 3)
    arena = Arena.create(len(own), slots=4, folder=job.slots(0), named=True)
    other = Arena.create(len(own), slots=4, folder=job.slots(1), named=True)
    _write(arena.slots[0], own, 3)
    waiting = _Waiting(job)

    def come() -> None:
        other.slots[0].begin(3)
        for _ in range(60):
            time.sleep(0.05)
            other.slots[0].still_written()
        _write(other.slots[0], _payload(1, 2, 3), 3)

    slowly = threading.Thread(target=come)
    slowly.start()
    assert waiting._with_all_parts(memoryview(own), 3) is not None  # type: ignore[misc]
    slowly.join()


def test_copies_of_parts_that_ranks_may_go_back_to_are_kept(jobs: tuple[Job, Job], sender: Any) -> None:
    """Newer ones take the place of others, until the mark goes; also if the slots have to be larger (from 10 on)."""
    here, there = jobs
    ours, theirs = socket.socketpair()
    CopyReceiver(there, theirs)
    arena = Arena.create(4096, slots=5, folder=here.slots(1), named=True)
    _write(arena.slots[0], _payload(1, 2, 1), 1)
    sender(_once(ours))
    assert wait_until(lambda: _kept(there, 1) == [1])
    arena.slots[0].agree()
    assert wait_until(lambda: _marked(there, 1) == [1])
    for sequence in range(2, 14):
        slot = arena.slots[4 if sequence == 6 else 1 + sequence % 3]
        _write(slot, _payload(1, 2, sequence), sequence)
        if sequence == 6:
            slot.consider()
        assert wait_until(lambda now=sequence: now in _kept(there, 1))  # type: ignore[misc]
        if sequence == 6:
            assert wait_until(lambda: _marked(there, 1) == [1, 6])
        if sequence == 9:
            arena.slots[0].forget_agreement()
            assert wait_until(lambda: _marked(there, 1) == [6])
    kept = set(_kept(there, 1))
    assert {6, 12, 13} <= kept and 1 not in kept
    arena.slots[4].forget_agreement()
    for sequence in range(14, 19):
        _write(arena.slots[1 + sequence % 3], _payload(1, 2, sequence), sequence)
        assert wait_until(lambda now=sequence: now in _kept(there, 1))  # type: ignore[misc]
    assert _kept(there, 1) == [15, 16, 17, 18]


def _marked(job: Job, seat: int) -> list[int]:
    found = []
    for arena in job.arenas(seat):
        for slot in arena.slots:
            commit = slot.read()
            if commit is not None and slot.considered:
                found.append(commit.sequence)
            slot.close()
    return sorted(found)
