"""Copies of snapshots on another machine, for ranks that hold parts of a model (FSDP2). No torch.

    sender = CopySender(job, open_socket, skip=lambda seat: False)      # a thread: every new part goes out
    receiver = CopyReceiver(job, sock)                                  # a thread: what comes is kept in slots

Each rank of a replicated model has the whole state, so nothing is copied there. A part is in the memory of its machine
alone, and is lost with it. So every machine sends its parts to the first one, whose rank 0 writes checkpoints from them
and hands them to a new machine. The first one sends all it has to the second one, which can save the run if the first
one is lost.

Copies come after the commit and beside the training: a part that is overwritten before it could be sent is left out.
The parts that ranks keep to go back to are kept here as well.
The receiver writes them to slots of the same kind, in the folder of the seat they belong to, so that everything that
reads slots finds them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.distributed.job import Job
from holdfast.distributed.machine_link import Challenge, Welcome, is_proof, proof
from holdfast.run.messages import Message, received
from holdfast.state.shards import parts_of
from holdfast.state.slots import LEAST, Arena, Commit, Slot

_LOOK = 0.05
"""Seconds between two looks for new snapshots."""
_KEPT = 4
"""Copies of a seat: machines may be a few commits apart."""
_PIECE = 16 << 20
"""Bytes that are sent at once: after each piece the sender looks whether the rank has overwritten the snapshot."""
_MORE, _WHOLE, _TORN = b"+", b".", b"-"
"""Before each piece; after the last; in place of the next one, if the snapshot was overwritten meanwhile."""
_AGAIN = 10.0
"""Seconds until a receiver that had no room tries to make some again: trying takes memory for a moment."""
NOT_KEPT = "not-kept"
"""A note in the job's folder: why copies are not kept."""
_LINE = 4096
_MOST = 1 << 40


@dataclass(frozen=True)
class CopyHello(Message):
    """A machine opens a second connection to the leader, for copies."""

    nonce: str
    proof: str
    machine: int
    launch: str


@dataclass(frozen=True)
class PartCopy(Message):
    """Before the bytes of a snapshot."""

    seat: int
    sequence: int
    step: int
    generation: int
    size: int
    piece: int
    resumable: bool = True


@dataclass(frozen=True)
class PartsKept(Message):
    """Snapshots of a seat that its ranks may go back to: copies of them are not overwritten by newer ones."""

    seat: int
    sequences: tuple[int, ...] = ()


class CopySender:
    """Sends every new part in the slots of this machine; connects when there is one, and again when it has to."""

    def __init__(
        self,
        job: Job,
        connect: Callable[[], socket.socket | None],
        *,
        skip: Callable[[int], bool],
        receive: bool = False,
    ) -> None:
        """`skip` says of a seat that its parts are not sent; with `receive` copies also come back this way."""
        self._job = job
        self._connect = connect
        self._skip = skip
        self._receive = receive
        self._sock: socket.socket | None = None
        self._open: dict[int, tuple[list[tuple[str, int]], list[Arena]]] = {}
        self._sent: dict[int, list[tuple[int, int]]] = {}
        self._kept: dict[int, tuple[int, ...]] = {}
        """What was said of each seat in PartsKept."""
        self._hurried: set[int] = set()
        """Seats whose rank has overwritten a part before it was sent: their parts are copied first."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="holdfast-part-copies", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)

    def _serve(self) -> None:
        while not self._over.wait(_LOOK):
            with contextlib.suppress(OSError, ValueError):
                for seat in self._job.seats():
                    if not self._skip(seat):
                        self._look_at(seat)

    def _look_at(self, seat: int) -> None:
        found = []
        for arena in self._arenas(seat):
            for slot in arena.slots:
                commit = slot.read(savepoints=True)
                if commit is not None and (commit.generation, commit.sequence) not in self._sent.get(seat, ()):
                    found.append((commit, slot, arena))
        for commit, slot, arena in sorted(found, key=lambda each: each[0].sequence):
            self._send(seat, commit, slot, arena)
        self._tell_kept(seat)

    def _tell_kept(self, seat: int) -> None:
        """Marks come and go while a snapshot stays where it is (checked_commits.py).

        The other side may have overwritten the copy of one that was not marked when it was sent. So it is sent again.
        """
        slots = [slot for arena in self._arenas(seat) for slot in arena.slots if slot.agreed or slot.considered]
        kept = tuple(sorted(commit.sequence for slot in slots if (commit := slot.read()) is not None))
        before = self._kept.get(seat, ())
        if self._sock is None or kept == before:
            return
        self._kept[seat] = kept
        again = set(kept) - set(before)
        self._sent[seat] = [each for each in self._sent.get(seat, []) if each[1] not in again]
        try:
            self._sock.sendall(json.dumps(PartsKept(seat, kept).to_json()).encode() + b"\n")
        except OSError:
            self._hang_up(self._sock)
            raise

    def _arenas(self, seat: int) -> list[Arena]:
        names = self._job.slot_names(seat)
        known = self._open.get(seat)
        if known is None or known[0] != names:
            for arena in () if known is None else known[1]:
                for slot in arena.slots:
                    slot.close()
            known = self._open[seat] = names, self._job.arenas(seat)
        return known[1]

    def _send(self, seat: int, commit: Commit, slot: Slot, arena: Arena) -> None:
        """A snapshot that is a part. The bytes go out from the slot itself, so that no other thread has to wait."""
        is_part = int(parts_of(slot.payload(commit.size)).get("count", 1)) > 1  # reads the header alone
        if slot.read(savepoints=True) != commit:
            return  # it was overwritten meanwhile
        if is_part:
            sock = self._connected()
            copied = seat in self._hurried
            # A rank that finds no free slot waits for leased ones. It needs the newest slot and one to write to.
            leased = copied or sum(not each.leased and not each.held for each in arena.slots if each is not slot) > 1
            if leased:
                slot.lease()
            try:
                payload = _copy(slot, commit) if copied else slot.payload(commit.size)
                if copied:
                    slot.release()
                    leased = False
                if payload is not None and not self._send_part(sock, seat, commit, None if copied else slot, payload):
                    self._hurried.add(seat)
                    return
            except OSError:
                self._hang_up(sock)
                raise
            finally:
                if leased:
                    slot.release()
        sent = self._sent.setdefault(seat, [])
        sent.append((commit.generation, commit.sequence))
        del sent[:-64]

    def _hang_up(self, sock: socket.socket) -> None:
        self._sock = None
        self._sent.clear()  # whoever connects next may have nothing
        self._kept.clear()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _connected(self) -> socket.socket:
        """ConnectionError if there is no connection: the slots are looked at again later."""
        if self._sock is None:
            sock = self._connect()
            if sock is None:
                raise ConnectionError("there is no connection for copies")
            self._sock = sock
            if self._receive:
                CopyReceiver(self._job, sock)
        return self._sock

    def _send_part(
        self, sock: socket.socket, seat: int, commit: Commit, slot: Slot | None, payload: memoryview
    ) -> bool:
        """False if the rank has overwritten it before all of it was sent; the other side then forgets it."""
        head = PartCopy(seat, commit.sequence, commit.step, commit.generation, commit.size, _PIECE, commit.resumable)
        sock.sendall(json.dumps(head.to_json()).encode() + b"\n")
        for at in range(0, commit.size, _PIECE):
            if slot is not None and slot.read(savepoints=True) != commit:
                break
            sock.sendall(_MORE)
            sock.sendall(payload[at : at + _PIECE])
        whole = slot is None or slot.read(savepoints=True) == commit
        sock.sendall(_WHOLE if whole else _TORN)
        return whole


def _has(arena: Arena, head: PartCopy) -> bool:
    """A snapshot that is kept comes twice."""
    slot = arena.find(head.sequence)
    commit = None if slot is None else slot.read(savepoints=True)
    return commit is not None and commit.generation == head.generation


def _carry_over(kept: list[Slot], arena: Arena) -> None:
    """Copies that are kept go on in larger slots; they would not be sent again."""
    for slot, target in zip(kept[-(_KEPT - LEAST) :], arena.slots, strict=False):
        commit = slot.read(savepoints=True)
        if commit is not None and commit.size <= target.capacity:
            target.begin(commit.sequence)
            target.payload(commit.size)[:] = slot.payload(commit.size)
            _commit_like(target, commit)
            target.consider()


def _commit_like(slot: Slot, head: Commit | PartCopy) -> None:
    """What was written to the slot is that commit."""
    slot.commit(
        sequence=head.sequence,
        step=head.step,
        generation=head.generation,
        size=head.size,
        resumable=head.resumable,
    )


def _copy(slot: Slot, commit: Commit) -> memoryview | None:
    """The bytes of a snapshot, copied piece by piece: other threads run in between. None if it was overwritten."""
    source, made = slot.payload(commit.size), memoryview(bytearray(commit.size))
    for at in range(0, commit.size, _PIECE):
        made[at : at + _PIECE] = source[at : at + _PIECE]
        time.sleep(0)
    return made if slot.read(savepoints=True) == commit else None


def open_copies(
    address: tuple[str, int], token: str, machine: int, launch: str, *, seconds: float
) -> socket.socket | None:
    """A connection for copies to the leader at this address; None if there is none to be had."""
    try:
        sock = socket.create_connection(address, timeout=seconds)
    except OSError:
        return None
    try:
        challenge = _line(sock)
        nonce = secrets.token_hex(16)
        if isinstance(challenge, Challenge):
            shown = proof(token, "copies", nonce, challenge.nonce)
            sock.sendall(json.dumps(CopyHello(nonce, shown, machine, launch).to_json()).encode() + b"\n")
            answer = _line(sock)
            if isinstance(answer, Welcome) and is_proof(answer.proof, token, "leader", challenge.nonce, nonce):
                sock.settimeout(None)
                return sock
    except (OSError, ValueError):
        pass
    sock.close()
    return None


def _line(sock: socket.socket) -> Message | None:
    """One message, and not a byte more."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = sock.recv(1)
        if not piece or len(line) > _LINE:
            return None
        line += piece
    data = json.loads(line)
    return received(data) if isinstance(data, dict) else None


class CopyReceiver:
    """Keeps what comes, until the connection ends."""

    def __init__(self, job: Job, sock: socket.socket) -> None:
        self._job = job
        self._sock = sock
        self._arenas: dict[int, Arena] = {}
        self._old: dict[int, list[Path]] = {}
        """Files of an arena before: one of them goes for each copy that is whole in the new one."""
        self._wanted: dict[int, tuple[int, ...]] = {}
        """By seat: the snapshots of PartsKept."""
        self._full_until = 0.0
        threading.Thread(target=self._serve, name="holdfast-part-copies-kept", daemon=True).start()

    def _serve(self) -> None:
        try:
            with contextlib.suppress(OSError, ValueError):
                while True:
                    head = _line(self._sock)
                    if isinstance(head, PartsKept):
                        self._wanted[head.seat] = head.sequences[:_KEPT]
                        self._mark_kept(head.seat)
                        continue
                    if not isinstance(head, PartCopy) or not 0 < head.size < _MOST or head.piece < 1:
                        return
                    self._keep(head)
        finally:
            # The other side would wait for ever to send to a connection that nobody reads.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()
            for arena in self._arenas.values():
                for slot in arena.slots:
                    slot.close()  # the files stay: they are what the copies are for

    def _keep(self, head: PartCopy) -> None:
        arena = self._arena(head)
        if arena is None or _has(arena, head):
            self._receive(head, memoryview(bytearray(min(head.piece, head.size))), None)
            return
        plain = [slot for slot in arena.slots if not slot.considered]
        slots = plain if len(plain) >= LEAST else arena.slots  # one to write to, and the newest
        slot = min(slots, key=lambda each: each.age)
        slot.begin(head.sequence)
        whole = False
        try:
            whole = self._receive(head, slot.payload(head.size), slot)
        finally:
            if not whole:
                slot.begin(0)  # the first to be written to again
        if whole:
            _commit_like(slot, head)
            self._mark_kept(head.seat)
            old = self._old.get(head.seat)
            if old:
                old.pop(0).unlink(missing_ok=True)

    def _mark_kept(self, seat: int) -> None:
        arena, wanted = self._arenas.get(seat), self._wanted.get(seat, ())
        for slot in arena.slots if arena is not None else ():
            commit = slot.read(savepoints=True)
            if commit is not None and commit.sequence in wanted:
                slot.consider()
            else:
                slot.forget_agreement()

    def _receive(self, head: PartCopy, view: memoryview, slot: Slot | None) -> bool:
        """Whether all of it came; with no slot to keep it in, every piece is written over the one before."""
        for at in range(0, head.size, head.piece):
            if self._mark() != _MORE:
                return False
            begin = at if slot is not None else 0
            stop = begin + min(head.piece, head.size - at)
            while begin < stop:
                count = self._sock.recv_into(view[begin:stop])
                if not count:
                    raise ConnectionError("it ended in the middle of a copy")
                begin += count
                if slot is not None:
                    slot.still_written()
        return self._mark() == _WHOLE

    def _mark(self) -> bytes:
        mark = self._sock.recv(1)
        if not mark:
            raise ConnectionError("it ended in the middle of a copy")
        return mark

    def _arena(self, head: PartCopy) -> Arena | None:
        """Slots for the copies of this seat; None while there is no room for them.

        What an earlier connection has left stays until new copies take its place: it may be all that is left of
        a machine that is lost next.
        """
        arena = self._arenas.get(head.seat)
        if arena is not None and arena.capacity >= head.size and all(path.exists() for path in arena.paths):
            return arena
        if time.monotonic() < self._full_until:
            return None
        before = [slot for each in self._job.arenas(head.seat) for slot in each.slots]
        try:
            arena = Arena.create(head.size, slots=_KEPT, folder=self._job.slots(head.seat), named=True)
        except OSError as error:
            arena = Arena([slot for slot in before if slot.capacity == head.size], "file")
            if not arena.slots:
                self._full_until = time.monotonic() + _AGAIN
                with contextlib.suppress(OSError):  # this may be full as well
                    self._job.note(NOT_KEPT, {"why": str(error.strerror or error).lower()})
                return None
        else:
            before.sort(key=lambda slot: slot.age)
            _carry_over([slot for slot in before if slot.considered], arena)
            old = self._old[head.seat] = []
            for slot in before:
                if slot.path is not None and slot.read(savepoints=True) is not None:
                    old.append(slot.path)
                elif slot.path is not None:  # nothing in it, or half of a copy
                    slot.path.unlink(missing_ok=True)
        for slot in before:
            if slot not in arena.slots:
                slot.close()
        self._job.forget(NOT_KEPT)
        self._arenas[head.seat] = arena
        return arena
