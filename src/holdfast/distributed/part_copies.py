"""Copies of snapshots on another machine, for ranks that hold parts of a model (FSDP2). No torch.

    sender = CopySender(job, open_socket, skip=lambda seat: False)      # a thread: every new part goes out
    receiver = CopyReceiver(job, sock)                                  # a thread: what comes is kept in slots

Each rank of a replicated model has the whole state, so nothing is copied there. A part is in the memory of its machine
alone, and is lost with it. So every machine sends its parts to the first one, whose rank 0 writes checkpoints from them
and hands them to a new machine. The first one sends all it has to the second one, which can save the run if the first
one is lost.

Copies come after the commit and beside the training: a part that is overwritten before it could be sent is left out.
The receiver writes them to slots of the same kind, in the folder of the seat they belong to, so that everything that
reads slots finds them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.distributed.job import Job
from holdfast.distributed.machine_link import Challenge, Welcome, is_proof, proof
from holdfast.run.messages import Message, received
from holdfast.state.shards import parts_of
from holdfast.state.slots import Arena, Commit, Slot

_LOOK = 0.05
"""Seconds between two looks for new snapshots."""
_KEPT = 4
"""Copies of a seat: machines may be a few commits apart."""
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
    resumable: bool = True


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
                    found.append((commit, slot))
        for commit, slot in sorted(found, key=lambda pair: pair[0].sequence):
            self._send(seat, commit, slot)

    def _arenas(self, seat: int) -> list[Arena]:
        names = self._job.slot_names(seat)
        known = self._open.get(seat)
        if known is None or known[0] != names:
            known = self._open[seat] = names, self._job.arenas(seat)
        return known[1]

    def _send(self, seat: int, commit: Commit, slot: Slot) -> None:
        slot.lease()
        try:
            payload = bytes(slot.payload(commit.size))
            if slot.read(savepoints=True) != commit:
                return  # it was overwritten meanwhile
        finally:
            slot.release()
        if int(parts_of(payload).get("count", 1)) > 1:
            sock = self._sock or self._connect()
            if sock is None:
                return
            if self._sock is None and self._receive:
                CopyReceiver(self._job, sock)
            self._sock = sock
            head = PartCopy(seat, commit.sequence, commit.step, commit.generation, commit.size, commit.resumable)
            try:
                sock.sendall(json.dumps(head.to_json()).encode() + b"\n")
                sock.sendall(payload)
            except OSError:
                self._sock = None
                self._sent.clear()  # whoever connects next may have nothing
                raise
        sent = self._sent.setdefault(seat, [])
        sent.append((commit.generation, commit.sequence))
        del sent[:-64]


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
        threading.Thread(target=self._serve, name="holdfast-part-copies-kept", daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, ValueError, ConnectionError):
            while True:
                head = _line(self._sock)
                if not isinstance(head, PartCopy) or not 0 < head.size < _MOST:
                    return
                self._keep(head)

    def _keep(self, head: PartCopy) -> None:
        arena = self._arenas.get(head.seat)
        if arena is None or arena.capacity < head.size:
            if arena is None:
                self._job.drop_slots(head.seat)  # of a connection before this one
            arena = Arena.create(head.size, slots=_KEPT, folder=self._job.slots(head.seat), named=True)
            self._arenas[head.seat] = arena
        slot = min(arena.slots, key=lambda each: each.age)
        slot.begin(head.sequence)
        view = slot.payload(head.size)
        at = 0
        while at < head.size:
            count = self._sock.recv_into(view[at:])
            if not count:
                raise ConnectionError("it ended in the middle of a copy")
            at += count
        slot.commit(
            sequence=head.sequence,
            step=head.step,
            generation=head.generation,
            size=head.size,
            resumable=head.resumable,
        )
