"""What to do next after a fault: a pure function over a table, so that a history can be replayed in a test.

    move = next_move(fault, history, rungs, rung, batch=64)
    move.action, move.rung, move.pieces        # Action.SPLIT, 0, 2
    history.append(Past(fault, move, rung))    # `committed` grows as steps are committed after it

`table` below is the whole policy. Each row is tried from the left, and the first entry that is still open is
the move. Each entry counts how often it was used for this family of faults, at this step on this rung. For faults
from outside (a kill) it counts since the last committed step, on any rung. A kind that a file adds has its row there
(added_kinds.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.base import dataclass_json
from holdfast.faults.classification import ByKind, Fault, Kind, added
from holdfast.faults.terms import Action, Family, Health

PLUMBING = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
        *("ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION", "NVIDIA_TF32_OVERRIDE"),
    }
)
"""Variables by which a foreign script is told its device and precision: they say again what a rung says already."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A complete way to run a step."""

    device: str
    precision: str = ""
    """"fp32" takes autocast and TF32 away; empty leaves it to the script."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment a worker on this rung starts with: the remedies that are read when a library loads."""

    @property
    def label(self) -> str:
        """As on the screen: "cuda:0 fp32 HSA_ENABLE_INTERRUPT=0"."""
        words = [self.device, self.precision, *(f"{name}={value}" for name, value in self.remedies)]
        return " ".join(word for word in words if word)

    @property
    def remedies(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, value) for name, value in self.env if name not in PLUMBING)

    @property
    def on_cpu(self) -> bool:
        return self.device.partition(":")[0] == "cpu"

    def to_json(self) -> dict[str, object]:
        return {"device": self.device, "precision": self.precision, "env": dict(self.env)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rung:
        return cls(data["device"], data.get("precision", ""), tuple((data.get("env") or {}).items()))


@dataclass(frozen=True, slots=True)
class Move:
    """What to do now."""

    action: Action
    rung: int
    """The rung to be on afterwards."""
    pieces: int = 1
    """Into how many microbatches the step is split; 1 is whole."""
    reason: str = ""
    """For the journal and the screen."""
    new_worker: bool = False
    """The process is gone or poisoned: this move starts a new one first."""

    def to_json(self) -> dict[str, object]:
        return dataclass_json.write(self)


@dataclass(frozen=True, slots=True)
class Past:
    """A fault that was answered."""

    fault: Fault
    move: Move
    rung: int
    """The rung the fault happened on."""
    committed: int = 0
    """Steps committed after it. Up to the next fault or up to now: both are read alike."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How often is often enough."""

    tries: int = 3
    """New workers at one place when there is no other rung."""
    outside: int = 10
    """Deaths from outside without one committed step."""
    host_memory: int = 2
    """New workers at one place after the machine ran out of memory: the third time it will not fit either."""
    pieces: int = 64
    """The finest split of a batch whose size is not known."""
    crowd: int = 4
    """Faults of one device, each within `NEAR` steps of the last, before the run leaves it."""
    stalled: int = 50
    """Faults of any kind at one place. A backstop: no mix of faults goes round for ever."""


DEFAULT_LIMITS = Limits()
OFF_RECORD = ("replay", "sentinel")
"""Phases in which the CPU computes beside the training: being slow there is held against nobody."""
NEAR = 20
"""Steps between two faults of a device that make them one crowd: it would take all day to get anywhere."""


_FAMILIES = {
    Kind.OUT_OF_MEMORY: Family.MEMORY,
    Kind.TRANSIENT: Family.DEVICE,
    Kind.DEVICE_LOST: Family.DEVICE,
    Kind.CRASH: Family.DEVICE,
    Kind.EXIT: Family.DEVICE,
    Kind.HANG: Family.DEVICE,
    Kind.KILLED: Family.OUTSIDE,
    Kind.NURSERY_DIED: Family.OUTSIDE,
    Kind.KEEPER_DIED: Family.OUTSIDE,
    Kind.SUPERVISOR_DIED: Family.OUTSIDE,
    Kind.HOST_MEMORY: Family.HOST,
    Kind.LOADER_DIED: Family.LOADER,
    Kind.LOADER_STUCK: Family.LOADER,
    Kind.UNSUPPORTED: Family.UNFIT,
    Kind.DRIVER: Family.UNFIT,
    Kind.USER_ERROR: Family.SCRIPT,
    Kind.BAD_DATA: Family.SCRIPT,
    Kind.NON_FINITE: Family.NUMBERS,
    Kind.WRONG_NUMBERS: Family.NUMBERS,
    Kind.MACHINE_DOWN: Family.OUTSIDE,
    Kind.DISK_FULL: Family.STORAGE,
}
FAMILIES: Mapping[Kind, str] = ByKind(_FAMILIES, "family")
"""Kinds that count against each other: a crash after a hang at one step is the second time, not the first."""


Entry = Action | tuple[Action, int]
"""What to try. RETRY, CPU_BATCH and REPLACE alone: once. With a number: as long as fewer were used."""


def table(limits: Limits = DEFAULT_LIMITS) -> Mapping[Kind, tuple[Entry, ...]]:
    """The policy: for each kind of fault what to try, from the left."""
    retry, split, cpu_batch = Action.RETRY, Action.SPLIT, Action.CPU_BATCH
    replace, next_rung, fail, give_up = Action.REPLACE, Action.NEXT_RUNG, Action.FAIL, Action.GIVE_UP
    lost = (replace, next_rung, (replace, limits.tries), give_up)
    outside = ((replace, limits.outside), give_up)
    return {
        Kind.OUT_OF_MEMORY: (retry, split, cpu_batch, next_rung, give_up),
        Kind.TRANSIENT: (retry, *lost),
        Kind.DEVICE_LOST: lost,
        Kind.CRASH: lost,
        Kind.EXIT: lost,
        Kind.HANG: lost,
        Kind.HOST_MEMORY: ((replace, limits.host_memory), give_up),
        Kind.KILLED: outside,
        Kind.NURSERY_DIED: outside,
        Kind.KEEPER_DIED: outside,
        Kind.SUPERVISOR_DIED: outside,
        Kind.LOADER_DIED: (replace, fail),
        Kind.LOADER_STUCK: (replace, fail),
        Kind.UNSUPPORTED: (next_rung, give_up),
        Kind.DRIVER: (next_rung, give_up),
        Kind.USER_ERROR: (fail,),
        Kind.BAD_DATA: (fail,),
        Kind.NON_FINITE: (replace, next_rung, fail),
        Kind.WRONG_NUMBERS: (next_rung, give_up),
        Kind.MACHINE_DOWN: outside,
        Kind.DISK_FULL: ((replace, limits.tries), give_up),
        **{Kind(name): tuple((Action(word), times) for word, times in row.ladder) for name, row in added().items()},
    }


def next_move(
    fault: Fault,
    history: Sequence[Past],
    rungs: Sequence[Rung],
    rung: int,
    *,
    batch: int | None = None,
    splittable: bool = True,
    probation: bool = False,
    barred: Collection[int] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> Move:
    """The first entry of the fault's row that is still open.

    `history` is oldest first. `batch` is the number of samples in the batch at hand. What only the worker
    knows may travel as evidence instead (`worker/retry.py` writes it there): `batch`, `splittable`, and `pieces`, in
    which the step was run.
    A verdict that a replay reached comes first: what is in the data or in the code is not tried elsewhere.
    A device on `probation` gets no second try. Rungs that are `barred` are not moved to.
    """
    if fault.kind is Kind.HANG and fault.phase in OFF_RECORD and fault.blame is None:
        again = sum(past.fault.phase == fault.phase for past in _at_place(fault, history))
        if again < 2:
            return Move(Action.REPLACE, rung, reason="the CPU took too long; this time without it", new_worker=True)
    if fault.blame == "data" and fault.evidence.get("leave_out"):
        return Move(Action.REPLACE, rung, reason="the step again, without the samples at fault", new_worker=True)
    if fault.blame in ("data", "code"):
        elsewhere = "it is not tried again" if fault.kind is Kind.BAD_DATA else "the CPU cannot compute it either"
        return Move(Action.FAIL, rung, reason=elsewhere)
    said = fault.evidence.get("batch")
    batch = said if batch is None and isinstance(said, int) else batch
    splittable = splittable and fault.evidence.get("splittable") is not False
    state = _State(fault, history, rungs, rung, batch, splittable, limits, probation, barred)
    if fault.kind is not Kind.USER_ERROR and len(_at_place(fault, history)) >= limits.stalled:
        return Move(Action.GIVE_UP, rung, reason=f"{limits.stalled} faults at the same place")
    for entry in table(limits)[fault.kind]:
        move = state.try_entry(*_open(entry))
        if move is not None:
            return move
    raise AssertionError(f"the table has no last entry for {fault.kind}")


@dataclass(frozen=True, slots=True)
class _State:
    """What `next_move` was asked, with the questions the entries of the table put to it."""

    fault: Fault
    history: Sequence[Past]
    rungs: Sequence[Rung]
    rung: int
    batch: int | None
    splittable: bool
    limits: Limits
    probation: bool = False
    barred: Collection[int] = ()

    def try_entry(self, action: Action, times: int) -> Move | None:
        if action is Action.RETRY:
            return self._retry(times)
        if action is Action.SPLIT:
            return self._split()
        if action is Action.CPU_BATCH:
            return self._cpu_batch(times)
        if action is Action.REPLACE:
            return self._replace(times)
        if action is Action.NEXT_RUNG:
            return self._next_rung()
        return Move(action, self.rung, reason=self._last_word(action))

    def _retry(self, times: int) -> Move | None:
        # A replacement is the stronger form of the same try, so it uses this entry up as well.
        if self._no_second_try() or self._used(Action.RETRY) + self._used(Action.REPLACE) >= times:
            return None
        if self.fault.health is not Health.ALIVE:
            return self._replace(times)
        return Move(Action.RETRY, self.rung, self._pieces(), f"the same step again on {self._label()}")

    def _split(self) -> Move | None:
        """Twice as many pieces as before, down to one sample each, where the worker says that it may be split."""
        finest = self.limits.pieces if self.batch is None else self.batch
        pieces = min(2 * self._pieces(), finest)
        if not self.splittable or pieces <= self._pieces():
            return None
        return Move(Action.SPLIT, self.rung, pieces, f"in {pieces} pieces", not self._alive())

    def _cpu_batch(self, times: int) -> Move | None:
        if self.rungs[self.rung].on_cpu or self._used(Action.CPU_BATCH) >= times:
            return None
        return Move(Action.CPU_BATCH, self.rung, reason="this batch on the CPU", new_worker=not self._alive())

    def _replace(self, times: int) -> Move | None:
        used = self._used(Action.REPLACE)
        if used >= times or self._no_second_try():
            return None
        most = times if self._next_rung() else self._most_replacements()
        reason = f"new worker on {self._label()}, try {used + 1} of {most}"
        return Move(Action.REPLACE, self.rung, reason=reason, new_worker=True)

    def _no_second_try(self) -> bool:
        """On probation a device fails once, else a few times in a row. A verdict is not improved by repeating, and
        what a process that cannot be killed holds is not free."""
        if self.fault.blame in ("device", "precision") and self.fault.kind is Kind.NON_FINITE:
            return True
        of_device = FAMILIES[self.fault.kind] in (Family.DEVICE, Family.NUMBERS)
        enough = of_device and (self.probation or self._crowd() >= self.limits.crowd)
        return (enough or self._gone()) and self._next_rung() is not None

    def _gone(self) -> bool:
        """The device is not free until a reboot: a process that cannot be killed has it, or ending one has lost it."""
        return any(self.fault.evidence.get(name) for name in ("abandoned", "lost_when_ended"))

    def _crowd(self) -> int:
        """How many faults of this rung's device follow one upon the other, this one included."""
        count = 1
        for past in reversed(self.history):
            if past.rung != self.rung or FAMILIES[past.fault.kind] != Family.DEVICE or past.committed > NEAR:
                break
            count += past.fault.phase not in OFF_RECORD
        return count

    def _useless(self, other: Rung) -> bool:
        """Would the fault come again there? What needs a reset needs it on every rung of that device."""
        here = self.rungs[self.rung]
        if other.device != here.device:
            return False
        if self.fault.kind in (Kind.DRIVER, Kind.WRONG_NUMBERS) or self._gone():
            return True
        only_precision = other.remedies == here.remedies
        return only_precision and not (self.fault.kind is Kind.NON_FINITE and self.fault.blame != "device")

    def _next_rung(self) -> Move | None:
        here = self.rungs[self.rung]
        for number, other in enumerate(self.rungs):
            if number > self.rung and number not in self.barred and not self._useless(other):
                reason = f"{here.label} → {other.label}"
                return Move(Action.NEXT_RUNG, number, reason=reason, new_worker=True)
        return None

    def _last_word(self, action: Action) -> str:
        if self.fault.kind is Kind.USER_ERROR:
            return "the script's own error is not retried"
        if action is Action.FAIL:
            return "a new worker met the same fault at the same place"
        if FAMILIES[self.fault.kind] == Family.OUTSIDE:
            return f"ended {self.limits.outside + 1} times without one committed step"
        return f"nothing is left to try on {self._label()} and there is no other device or setting to try"

    def _used(self, action: Action) -> int:
        """How often this was done for faults of this family at this place on this rung."""
        family = FAMILIES[self.fault.kind]
        place = _since_commit(self.history) if family == Family.OUTSIDE else _at_place(self.fault, self.history)
        return sum(
            past.move.action is action and FAMILIES[past.fault.kind] == family
            for past in place
            if past.rung == self.rung or family == Family.OUTSIDE
        )

    def _pieces(self) -> int:
        """Into how many pieces the step was split when it failed."""
        said = self.fault.evidence.get("pieces")
        tried = [
            past.move.pieces
            for past in _at_place(self.fault, self.history)
            if past.rung == self.rung and past.move.action is Action.SPLIT
        ]
        return max([said if isinstance(said, int) else 1, 1, *tried])

    def _most_replacements(self) -> int:
        row = [_open(entry) for entry in table(self.limits)[self.fault.kind]]
        return max([times for action, times in row if action is Action.REPLACE], default=1)

    def _alive(self) -> bool:
        return self.fault.health is Health.ALIVE

    def _label(self) -> str:
        return self.rungs[self.rung].label


def _open(entry: Entry) -> tuple[Action, int]:
    return (entry, 1) if isinstance(entry, Action) else entry


def _at_place(fault: Fault, history: Sequence[Past]) -> Sequence[Past]:
    """Faults at the same step; before the first step, those since anything was committed."""
    if fault.step is None:
        return [past for past in _since_commit(history) if past.fault.step is None]
    return [past for past in history if past.fault.step == fault.step]


def _since_commit(history: Sequence[Past]) -> Sequence[Past]:
    """The newest faults between which no step was committed."""
    count = 0
    for past in reversed(history):
        if past.committed > 0:
            break
        count += 1
    return history[len(history) - count :]
