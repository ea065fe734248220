"""What the agents of two machines say to each other, and the connection they say it over. No torch.

    link = MachineLink(sock, floor=5.0)
    link.send(StartRank(seat=2, local=0, local_ranks=1))
    for message in link.pump(): ...          # typed records; never waits
    link.check()                             # LinkLost if the connection ended, or nothing came for too long

A message is a line of JSON with a checked record (run/messages.py); nothing is ever unpickled. Both ends send a Pulse
twice a second. Only monotonic clocks of one machine are ever compared with each other, so the clocks of two machines
may be apart.

A silence is too long when it is longer than `floor` (the setting watchdog.floor) and than four times the longest
silence of this connection that ended by itself. TCP doubles its pause each time a packet is lost, so four times is two
more losses in a row than were ever seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import select
import socket
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.base.human import duration
from holdfast.faults.blame import Verdict
from holdfast.run.messages import Message, received

PULSE = 0.5
"""Seconds between two signs of life."""
TIMES = 4.0
LONGEST = 60.0
"""Seconds: no silence is waited for longer than this, whatever was seen."""
_CHUNK = 1 << 16
_LINE = 1 << 20
_GREETING_LINE = 1 << 13
"""Bytes of a line, at most; from somebody who has not shown the token, of all that is read."""
_SHORT = 64
"""Characters of a word that another machine says of itself, in a sentence."""
_LONG = 2000
"""Characters of a sentence of another machine."""
BEHIND_ALL = (-1, 0)
"""The place of a rank (rank_watch.py) about which nothing is known: whoever waits may wait for it."""


class LinkLost(ConnectionError):
    """The other machine does not answer, or has ended the connection."""


# -- messages ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Challenge(Message):
    """The leader, first of all."""

    nonce: str


@dataclass(frozen=True)
class Hello(Message):
    """The answer of a machine that wants to join."""

    nonce: str
    proof: str
    machine: int
    agent: str
    """Another word for each process of `holdfast launch`."""
    launch: str
    """The launch that this machine was part of before; empty for one that comes for the first time."""
    host: str
    holdfast: str
    torch: str
    script: str
    """Digest of the script."""
    nodes: int
    nproc: int
    order: str = ""
    """Digest of its arguments, and of the settings that are not of one machine alone."""
    parts: dict[str, str] | None = None
    """Digests of single ones, by name: they say which differ."""


@dataclass(frozen=True)
class Welcome(Message):
    proof: str
    launch: str
    run: str


@dataclass(frozen=True)
class TurnedAway(Message):
    """Why a machine cannot join. It need not try again, unless this says `later`."""

    text: str
    hint: str = ""
    exit_code: int = 2
    later: bool = False


@dataclass(frozen=True)
class Pulse(Message):
    """A sign of life, and how far the last of the ranks that the other side cannot see has come."""

    sent: float
    """By the sender's monotonic clock; it comes back as `echo`."""
    echo: float = -1.0
    held: float = 0.0
    """Seconds between the arrival of what is echoed and this."""
    attempt: int = -2
    """-2: there is no rank in a step."""
    phase: int = 0


@dataclass(frozen=True)
class StartRank(Message):
    """To a machine: a process for this seat."""

    seat: int
    local: int
    local_ranks: int
    ranks: int


@dataclass(frozen=True)
class RankBegun(Message):
    seat: int
    pid: int
    device: str = ""
    """Empty if there is no ladder for it there: all ranks of that machine are on the CPU."""


@dataclass(frozen=True)
class RankLeaves(Message):
    """The next process of this rank is to be on another device: all are to leave their group at the next commit."""

    seat: int
    pid: int


@dataclass(frozen=True)
class RankReady(Message):
    seat: int
    pid: int


@dataclass(frozen=True)
class RankGone(Message):
    """A process of this machine has ended, and what it has left."""

    seat: int
    pid: int
    code: int
    trained: bool
    left: dict[str, Any] | None = None
    step: int = 0
    phase: str = ""
    silence: float = 0.0
    answer: dict[str, Any] | None = None
    """What its ladder has decided (rank_ladder.py), if it ended with a fault."""


@dataclass(frozen=True)
class AnswerAgain(Message):
    """After a new connection: what a ladder has decided before, of which the leader may not have heard."""

    seat: int
    pid: int
    answer: dict[str, Any]


@dataclass(frozen=True)
class TrustTold(Message):
    """What a machine thinks of the device of one of its ranks, for the journal."""

    seat: int
    text: str
    device: str = ""
    state: str = ""
    suspicion: dict[str, Any] | None = None


@dataclass(frozen=True)
class VerdictTold(Message):
    """Whose fault the end of a process was, for the journal and the evidence."""

    seat: int
    pid: int
    verdict: Verdict
    host: str
    device: str
    code: str = ""
    step: int | None = None


@dataclass(frozen=True)
class RosterTold(Message):
    """To a machine: the next roster, its processes as this machine knows them (roster.py)."""

    number: int
    pids: dict[str, int]
    seats: tuple[int, ...]
    wanted: int
    machines: tuple[int, ...]
    connect: float
    devices: tuple[str, ...] = ()
    """By rank; empty where all are on the CPU."""


@dataclass(frozen=True)
class NewGroupWanted(Message):
    """From a machine: a rank has left the group of this roster."""

    number: int


@dataclass(frozen=True)
class LeaveGroup(Message):
    """To a machine: ranks of the group are gone with their machine, and no broken connection tells."""

    number: int


@dataclass(frozen=True)
class RankHere(Message):
    """A rank is about to build the group of this roster; `port` is that of the store, if it serves it."""

    number: int
    rank: int
    port: int = 0


@dataclass(frozen=True)
class AllHere(Message):
    number: int
    ranks: int
    port: int


@dataclass(frozen=True)
class DropSlots(Message):
    """To a machine: others have committed without this seat, so its snapshots are of no use."""

    seat: int


@dataclass(frozen=True)
class EndRanks(Message):
    """To a machine: its ranks are asked to stop, or killed."""

    kill: bool = False


@dataclass(frozen=True)
class RunOver(Message):
    """How the run ended; from a machine whose rank has said so, and then to all."""

    outcome: dict[str, Any]


# -- who may join --------------------------------------------------------------------------------------------------


def proof(token: str, side: str, own: str, other: str) -> str:
    """Shows that its sender knows the token. The nonces make it another one each time."""
    secret = token.encode(errors="surrogateescape")  # a token from the environment may be any bytes
    return hmac.new(secret, f"{side} {own} {other}".encode(), hashlib.sha256).hexdigest()


def is_proof(given: str, token: str, side: str, own: str, other: str) -> bool:
    """`given` and `own` come from somebody who may not know the token, and may be any text."""
    if not (given.isascii() and own.isascii()):
        return False
    return hmac.compare_digest(given, proof(token, side, own, other))


def shortened(text: str, most: int = _SHORT) -> str:
    """What another machine says of itself, fit for a sentence in the record."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:most])


def sentence(text: str) -> str:
    """What another machine says of its devices, as one line of the record."""
    return shortened(text, _LONG)


def difference(own: Hello, other: Hello) -> str | None:
    """Why these two machines cannot train one model; None if they can."""
    if not 0 < other.machine < own.nodes or other.nodes != own.nodes:
        return f"--nodes is {other.nodes} with --node-rank {other.machine} there, and --nodes {own.nodes} here"
    if other.nproc != own.nproc:
        return f"--nproc is {other.nproc} there and {own.nproc} here"
    for name, there, here in (
        ("holdfast", other.holdfast, own.holdfast),
        ("torch", other.torch, own.torch),
    ):
        if there != here:
            return f"it has {name} {shortened(there)}, the first machine has {here}"
    if other.script != own.script:
        return "its script is not that of the first machine"
    return None if other.order == own.order else _other_order(own.parts or {}, other.parts or {})


def _other_order(own: dict[str, str], other: dict[str, str]) -> str:
    names = sorted(name for name in own.keys() | other.keys() if own.get(name) != other.get(name))
    if not names:
        return "its arguments or settings are not those of the first machine"
    listed = ", ".join(shortened(name) for name in names[:5]) + (" and more" if len(names) > 5 else "")
    return f"its {listed} {'is not that' if len(names) == 1 else 'are not those'} of the first machine"


# -- the connection ------------------------------------------------------------------------------------------------


class MachineLink:
    """One end of a connection between two agents. Sending and receiving never wait."""

    def __init__(self, sock: socket.socket, *, floor: float) -> None:
        self.sock = sock
        self.trusted = False
        """Its other end has shown that it knows the token."""
        self._rtts: deque[float] = deque(maxlen=16)
        self.place: tuple[int, int] | None = None
        """How far the last rank beyond this link has come."""
        self._floor = floor
        self._in = bytearray()
        self._taken = 0
        """Bytes that were read."""
        self._out = bytearray()
        self._why: str | None = None
        self._heard = self._pulsed = time.monotonic()
        self._longest = 0.0
        self._echo: tuple[float, float] | None = None
        self._troubled_until = 0.0
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def silence(self) -> float:
        return time.monotonic() - self._heard

    @property
    def rtt(self) -> float:
        """Seconds to the other machine and back, as usual: a cable that was cut for a while does not count."""
        return statistics.median(self._rtts) if self._rtts else 0.0

    @property
    def limit(self) -> float:
        return max(self._floor, min(TIMES * self._longest, LONGEST))

    @property
    def troubled(self) -> bool:
        """Nothing came for a while, or the pause has only just ended: what ranks send may still be on its way.

        TCP sends again after at most twice the time that a connection was cut.
        """
        return self.silence > 2 * PULSE or time.monotonic() < self._troubled_until

    def send(self, message: Message) -> None:
        self._out += json.dumps(message.to_json(), separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Hand what is left to the system; True when nothing is left."""
        while self._out and self._why is None:
            try:
                sent = self.sock.send(self._out)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                self._why = _words(error)
                return False
            del self._out[:sent]
        return not self._out

    def pulse(self, place: tuple[int, int] | None) -> None:
        """A sign of life, if one is due."""
        now = time.monotonic()
        if now - self._pulsed < PULSE:
            return
        self._pulsed = now
        echo, arrived = self._echo or (-1.0, now)
        attempt, phase = (-2, 0) if place is None else place
        self.send(Pulse(now, echo, now - arrived, attempt, phase))

    def pump(self) -> Iterator[Message]:
        """What has arrived. A line that is no good record ends the connection.

        Of somebody who has not shown the token only the greeting is read, so that nobody can keep this process busy.
        """
        self._read()
        while (end := self._in.find(b"\n")) >= 0:
            line = bytes(self._in[:end])
            del self._in[: end + 1]  # moves nothing: a bytearray can begin later
            if len(line) > self._most:
                self._no_end()
                self._in.clear()
                return
            message = self._record(line)
            if message is None:
                self._in.clear()
                return
            if isinstance(message, Pulse):
                self._heed(message)
            else:
                yield message
        if len(self._in) > self._most or (not self.trusted and self._taken >= _GREETING_LINE):
            self._no_end()
        self.flush()

    @property
    def _most(self) -> int:
        return _LINE if self.trusted else _GREETING_LINE

    def _no_end(self) -> None:
        self._why = self._why or "it sent a line without end"

    def _read(self) -> None:
        while self._why is None and len(self._in) <= _LINE:
            room = _CHUNK if self.trusted else min(_CHUNK, _GREETING_LINE - self._taken)
            if room <= 0:
                return
            try:
                data = self.sock.recv(room)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._why = _words(error)
                return
            if not data:
                self._why = "the connection was closed"
                return
            now = time.monotonic()
            gap, self._heard = now - self._heard, now
            self._longest = max(self._longest, gap)
            if gap > 2 * PULSE:
                self._troubled_until = now + 2 * gap
            self._taken += len(data)
            self._in += data

    def _record(self, line: bytes) -> Message | None:
        try:
            data = json.loads(line)
            message = received(data) if isinstance(data, dict) else None
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, Pulse) and not self.trusted:
            message = None  # those that have joined send them
        if message is None:
            self._why = "it sent something that is no message of this version"
        return message

    def _heed(self, pulse: Pulse) -> None:
        now = time.monotonic()
        self._echo = (pulse.sent, now)
        if pulse.echo >= 0:
            self._rtts.append(now - pulse.echo - pulse.held)
        self.place = None if pulse.attempt == -2 else (pulse.attempt, pulse.phase)

    def check(self) -> None:
        """LinkLost, with the reason."""
        if self._why is not None:
            raise LinkLost(self._why)
        if self.silence > self.limit:
            self._read()  # this process may have been the one that was halted
            if self.silence > self.limit:
                raise LinkLost(f"no answer for {duration(self.silence)}")

    def close(self, wait: float = 0.0) -> None:
        """With `wait`: give what was sent last so many seconds to arrive."""
        deadline = time.monotonic() + wait
        while self._out and self._why is None and time.monotonic() < deadline:
            select.select([], [self.sock], [], 0.05)
            self.flush()
        self.sock.close()
        self._why = self._why or "the connection was closed"


def _words(error: OSError) -> str:
    return str(error.strerror or error).lower()
