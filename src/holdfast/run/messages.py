"""What a process that trains says to whoever keeps its run: one frozen record for each kind of message.

    link.send(Log(step=12, epoch=0, values={"loss": 0.3}))   # the worker, an attached script, a rank
    message = received(data)                                 # the other end: a record; ValueError names a bad field
    row = table.get(type(message))

On the way a record is a JSON object: its `kind`, and its fields by name, without those that are at their default. The
sender runs somebody's script and is not trusted: a field that is missing or of another type makes no record.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.base import dataclass_json
from holdfast.base.processes import KILL
from holdfast.faults.blame import Finding
from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Move
from holdfast.run.commit_points import Wish

_KINDS: dict[str, type[Message]] = {}


@dataclass(frozen=True)
class Message:
    """The base of all. Its kind is the name of its class in lower case, unless it has another one."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" not in cls.__dict__:
            cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        _KINDS[cls.kind] = cls

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **dataclass_json.write(self, defaults=False)}

    @property
    def told(self) -> dict[str, Any]:
        """What an event of the journal has of it."""
        return dataclass_json.write(self, defaults=False)


def received(data: dict[str, Any]) -> Message | None:
    """The record of a message; None for a kind that is not known. ValueError if it is not as it should be."""
    cls = _KINDS.get(str(data.get("kind")))
    return None if cls is None else dataclass_json.read_strictly(cls, data)


def heard(messages: Iterable[dict[str, Any]]) -> Iterator[Message]:
    """The records of these messages, of a process that nobody trusts: what is not as it should be is passed over."""
    for data in messages:
        with contextlib.suppress(ValueError):
            message = received(data)
            if message is not None:
                yield message


def made(kind: str, **fields: Any) -> Message:
    """The record of this kind, for whoever has its fields by name."""
    return _KINDS[kind](**fields)


# -- beginning and ending ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotsAt:
    """Where the slots of one arena are: their files, or as many descriptors, which come with the message."""

    paths: tuple[str, ...] = ()
    slots: int = 0
    where: str = "memory"


@dataclass(frozen=True)
class SlotsWanted(Message):
    """It needs slots of this size. The answer is a SlotsAt, or an error as `to_json` of a HoldfastError gives it."""

    kind = "arena"
    capacity: int


@dataclass(frozen=True)
class Attach(Message):
    """A script hands its state out from here on, and waits to be told what there is: AttachAnswer."""


@dataclass(frozen=True)
class Detach(Message):
    """A script that attached itself hands nothing out after all: after a fault it goes on as any other script does."""


@dataclass(frozen=True)
class AttachAnswer(Message):
    """What a script that attached itself goes on from."""

    generation: int
    run: str
    settings: dict[str, Any]
    arenas: tuple[SlotsAt, ...] = ()
    checkpoint: str | None = None
    exact: dict[str, Any] | None = None
    """For `holdfast run --exact`: steps to rehearse, files to look after."""


@dataclass(frozen=True)
class Started(Message):
    pid: int
    device: str
    torch: str


@dataclass(frozen=True)
class RankStarted(Message):
    kind = "worker"
    generation: int
    rank: int
    pid: int


@dataclass(frozen=True)
class Instead(Message):
    """The checkpoint it was given could not be used, an older one could."""

    step: int


@dataclass(frozen=True)
class Restored(Message):
    step: int
    epoch: int
    ended: bool
    inside: bool


class LastWords(Message):
    """Kept until the worker has ended: then they say how."""


@dataclass(frozen=True)
class Done(LastWords):
    """`train` has returned."""

    step: int


@dataclass(frozen=True)
class StoppedAt(LastWords):
    """It has come to a commit and makes room."""

    kind = "stopped"
    step: int


@dataclass(frozen=True)
class Failed(LastWords):
    """The script raised an error of its own."""

    summary: str
    traceback: str
    where: str | None
    step: int
    blame: dict[str, Any] | None = None


@dataclass(frozen=True)
class Refused(LastWords):
    """The script asked for something that cannot be."""

    error: dict[str, Any]
    """As `to_json` of a HoldfastError gives it."""


@dataclass(frozen=True)
class Lost(LastWords):
    """A fault ends this worker."""

    fault: Fault


# -- numbers and weights -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Log(Message):
    step: int
    epoch: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Unheard(Log):
    """Logged by the worker before this one, and perhaps not written down."""


@dataclass(frozen=True)
class ScriptEpoch(Message):
    """An epoch of an attached script is over."""

    epoch: int
    step: int
    again: ClassVar[bool] = False
    sequence: ClassVar[int | None] = None


@dataclass(frozen=True)
class EpochEnded(Message):
    """An epoch is over and committed."""

    kind = "epoch"
    epoch: int
    step: int
    loss: float | None = None
    sequence: int | None = None
    """Of the snapshot that is held until it is known whether it is the best."""
    again: bool = False
    """It may have been heard before."""

    @property
    def told(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step, "loss": self.loss}


@dataclass(frozen=True)
class Weights(Message):
    """Weights that belong to no end of an epoch, in the snapshot of this sequence."""

    step: int
    sequence: int


@dataclass(frozen=True)
class CadenceTold(Message):
    """How often it commits, for the receipt; `again` if that is only measured anew."""

    kind = "cadence"
    cadence: dict[str, Any]
    again: bool = False


# -- faults and trust ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FaultMended(Message):
    """A fault that the worker answers by itself."""

    kind = "fault"
    fault: Fault
    move: Move


@dataclass(frozen=True)
class Recovered(Message):
    step: int
    in_process: bool


@dataclass(frozen=True)
class Found(Message):
    """What the CPU made of a step."""

    kind = "finding"
    finding: Finding
    leave_out: dict[str, Any] | None = None
    """The samples without which the step passes."""

    @property
    def told(self) -> dict[str, Any]:
        return self.finding.to_json()


@dataclass(frozen=True)
class Copied(Message):
    """The process that asks the CPU has its own copy of the snapshot."""


@dataclass(frozen=True)
class Agreed(Message):
    """A step on the device that the CPU computes in the same way."""

    step: int
    look: dict[str, Any]

    @property
    def told(self) -> dict[str, Any]:
        return {"step": self.step, **self.look}


@dataclass(frozen=True)
class Suspicion(Message):
    """An operator on the device disagrees with the CPU."""

    step: int
    text: str
    look: dict[str, Any]

    @property
    def told(self) -> dict[str, Any]:
        return {"step": self.step, "text": self.text, **self.look}


@dataclass(frozen=True)
class Blind(Message):
    """It cannot compare its device with the CPU."""


@dataclass(frozen=True)
class Quarantined(Message):
    """A sample is left out from now on."""

    index: int
    source: str | None
    why: str
    epoch: int
    batch: int
    fatal: bool
    """It ends the process that reads it."""
    text: str


@dataclass(frozen=True)
class Missing(Message):
    """Samples that an evaluation went without."""

    count: int
    samples: tuple[int, ...]
    text: str


# -- words ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note(Message):
    text: str
    pieces: int | None = None
    shares: tuple[int, ...] | None = None
    """Samples that each rank computes from here on."""
    step_ms: tuple[float, float] | None = None
    """Of a step without the CPU beside accelerators, and with it."""


@dataclass(frozen=True)
class Loggers(Message):
    """The loggers that the script uses itself."""

    names: tuple[str, ...]


# -- the nursery, which forks workers, ranks and probes ----------------------------------------------------------


@dataclass(frozen=True)
class Fork(Message):
    """To the nursery: a process with this configuration. Forked or Unsafe is the answer."""

    config: dict[str, Any]


@dataclass(frozen=True)
class Warm(Message):
    """To the nursery: import what the next process will need."""


@dataclass(frozen=True)
class Second(Message):
    """To the nursery: fork another nursery, which listens to the channel that comes with this."""


@dataclass(frozen=True)
class Ready(Message):
    """torch is imported."""

    torch: str
    seconds: float


@dataclass(frozen=True)
class Broken(Message):
    """torch cannot be imported."""

    error: str


@dataclass(frozen=True)
class Unsafe(Message):
    """This process must not fork."""

    why: str


@dataclass(frozen=True)
class Forked(Message):
    pid: int


@dataclass(frozen=True)
class Exited(Message):
    pid: int
    code: int | None
    """None where nobody knows it."""

    @property
    def known_code(self) -> int:
        """As of a process that was killed where nobody knows it: most of those were."""
        return -int(KILL) if self.code is None else self.code


# -- ranks that torchrun starts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankWanted(Message):
    """A process of torchrun's agent asks for a rank that is forked in its place; RankEnded is the answer."""

    words: tuple[str, ...]
    env: dict[str, str]
    cwd: str


@dataclass(frozen=True)
class RankEnded(Message):
    code: int | None
    """None: no rank could be forked, and the process that asked is the rank itself."""


# -- the keeper, which saves ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeeperBegins(Message):
    """To the keeper, first of all."""

    scratch: str
    info: dict[str, Any]
    """run.json, for the time when it cannot be read."""


@dataclass(frozen=True)
class ArenasKept(Message):
    """To the keeper: the slots there are now. Adopted is the answer."""

    arenas: tuple[SlotsAt, ...]


@dataclass(frozen=True)
class Adopted(Message):
    arenas: int


@dataclass(frozen=True)
class BoardKept(Message):
    """To the keeper: the board of the worker there is now, by path or as a descriptor that comes with this."""

    path: str | None


@dataclass(frozen=True)
class Save(Message):
    """To the keeper. SaveReport is the answer."""

    wish: Wish


@dataclass(frozen=True)
class Owed(Message):
    """To the keeper: saves of snapshots that are held, which will be asked for unless the supervisor dies."""

    wishes: tuple[Wish, ...]


@dataclass(frozen=True)
class RunEnds(Message):
    """To the keeper: the run has come to its end with this step, and a save of another one is not waited for."""

    step: int


@dataclass(frozen=True)
class Quit(Message):
    """To the keeper: nothing more will be asked."""


@dataclass(frozen=True)
class SaveReport(Message):
    """What was written, and why something was not: both, if only the checkpoint did not fit."""

    reason: str
    weights: tuple[str, ...]
    seconds: float
    saved: dict[str, Any] | None = None
    """Step, path, digests; None if nothing was written."""
    why: str | None = None
    """Why something was not."""
    errno: int | None = None
    """Of the disk that refused it; None if the reason is another one."""


# -- holdfast run --exact ------------------------------------------------------------------------------------------


class OfExact(Message):
    """For supervisor/scripts/exact.py."""


@dataclass(frozen=True)
class Mark(OfExact):
    """Everything printed until now is outside of the process, as of this commit."""

    mark: str
    sequence: int
    files: Any


@dataclass(frozen=True)
class Reached(OfExact):
    """It was led back to this mark."""

    mark: str
    step: int


@dataclass(frozen=True)
class Rehearse(OfExact):
    """The steps of the rehearsal with their weights' checksums; it waits to be replaced."""

    trail: tuple[Any, ...]
    unsaved: dict[str, str]


@dataclass(frozen=True)
class Rehearsed(OfExact):
    equal: bool
    step: int
    unsaved: dict[str, str] | None = None


@dataclass(frozen=True)
class ExactOff(OfExact):
    """It cannot be exact (any more)."""

    reason: str
    led: bool


@dataclass(frozen=True)
class ExactCost(OfExact):
    commits: int
    spent_s: float
    trained_s: float
