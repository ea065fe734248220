"""Rank 0 decides how batches are shared: it hears the times of all ranks in each vote. No torch.

    policy = Policy.of(settings)                         # equal, fixed, or measured, and on which devices
    keeper = ShareKeeper(policy, job, seats)
    keeper.hear(own, parts, newest)                      # after each step that all ranks have agreed on
    keeper.weights, keeper.leaves                        # what is to be changed: parts, or the CPU leaves the group

Windows are a second or more, as for stragglers. The first window of a set is thrown away; 8 of them decide, and what is
not clear then is looked at again with 16 and with 32. Where accelerators train beside a CPU, the CPU comes later: 16
windows are measured without it first. It joins, gets what it can do in the same time, and stays if the step is faster
by more than the noise. If not it leaves the group: with no part at all it would still have to compute a sample and take
part in each exchange, and the accelerator would wait for that.

What was found is a note in the job's folder, for the next group and for a successor of rank 0.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.data.shares import Parts, Shares
from holdfast.distributed.job import Job
from holdfast.distributed.share_rule import WINDOWS, Measured, better, is_faster
from holdfast.distributed.stragglers import WINDOW
from holdfast.run.messages import Note
from holdfast.run.settings import Settings

SLOW = "slow"
"""A note in the job's folder: a rank was named that holds the others up."""
_BESIDE = "beside"
"""A note in the job's folder: whether the CPU trains beside the accelerators, and what was measured without it."""
_LOOKS = (WINDOWS, 2 * WINDOWS, 4 * WINDOWS)
"""After so many windows the times are looked at."""
_ALONE = 2 * WINDOWS
_LOOK = 1.0
"""Seconds between two looks for that note."""
Stage = Literal["alone", "shared", "kept", "out"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user wants, the same in all ranks."""

    mode: str = "auto"
    """auto, equal, measured, or numbers with colons."""
    devices: tuple[str, ...] = ()
    """By seat, where they were named."""

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        devices = settings.run.devices
        return cls(settings.run.shares, tuple(devices.split(",")) if devices else ())

    @property
    def mixed(self) -> bool:
        """Whether ranks are on devices of different kinds."""
        return len(self.kinds(range(len(self.devices)))) > 1

    @property
    def beside(self) -> tuple[int, ...]:
        """The seats on the CPU, where others are not: they train only if that is faster."""
        if not self.mixed or self.mode not in ("auto", "measured"):
            return ()
        return tuple(seat for seat, each in enumerate(self.devices) if kind_of(each) == "cpu")

    @property
    def may_change(self) -> bool:
        return self.mode in ("auto", "measured")

    def kinds(self, seats: Sequence[int]) -> set[str]:
        """The kinds of devices that these seats are on; nothing where devices were not named."""
        return {kind_of(self.devices[seat]) for seat in seats if seat < len(self.devices)}

    def measures(self, seats: Sequence[int]) -> bool:
        """Whether the times of these ranks are measured from the start."""
        return self.mode == "measured" or (self.mode == "auto" and len(self.kinds(seats)) > 1)

    def threads_beside(self, cores: int, loaders: int) -> int:
        """For each rank on the CPU: the cores that the other ranks, one each, and all loader processes leave.

        Every rank runs the same script, with as many loader processes.
        """
        beside = len(self.beside)
        left = cores - (len(self.devices) - beside) - len(self.devices) * loaders
        return max(1, left // beside)

    def table(self, seats: Sequence[int]) -> Shares:
        base = None
        if ":" in self.mode:
            base = dict(enumerate(map(int, self.mode.split(":"))))
        elif self.beside:  # not one sample that counts before it is known how long one takes
            base = {seat: int(seat not in self.beside) for seat in range(len(self.devices))}
        return Shares(seats, base, fixed=not self.may_change)


def kind_of(device: str) -> str:
    return device.partition(":")[0]


# The CPU beside accelerators --------------------------------------------------------------------------------


def begin_beside(job: Job, policy: Policy) -> None:
    """Before the ranks start: the seats on the CPU wait."""
    if policy.beside:
        job.note(_BESIDE, {"seats": policy.beside, "stage": "alone"})


def left_out(job: Job) -> frozenset[int]:
    """Seats whose processes wait and belong to no group, for the agent."""
    known = job.noted(_BESIDE)
    return frozenset(known.get("seats", ())) if known.get("stage") in ("alone", "out") else frozenset()


# Deciding ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Windows:
    """A set: the first window begins when this was made, and does not count."""

    since: float
    own: list[float]
    steps: int = 0
    counts: tuple[int, ...] = ()
    """Of the largest batch."""
    by_rank: list[list[float]] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    """Seconds for a step with all that belongs to it."""
    warm: bool = False


class ShareKeeper:
    """Of rank 0, in one group."""

    def __init__(
        self,
        policy: Policy,
        job: Job,
        seats: Sequence[int],
        *,
        mixed: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self._job = job
        self._seats = tuple(seats)
        self._clock = clock
        self._set: _Windows | None = None
        self._change: int | None = None
        self._before: Measured | None = None
        self._looked = 0.0
        self.news: list[Note] = []
        """For the record."""
        self.weights: dict[int, int] | None = None
        """New parts, by seat, until the ranks have agreed on them."""
        self.leaves = False
        """The CPU is to leave the group."""
        self._measures = policy.measures(seats) or (policy.mode == "auto" and mixed)
        self._stage: Stage | None = job.noted(_BESIDE).get("stage") if policy.beside else None

    @property
    def measures(self) -> bool:
        """Whether the ranks are asked for their times."""
        return self._measures and len(self._seats) > 1

    def look(self, changes: int) -> None:
        """Whether a rank was named that holds the others up, or `changes` are known from before: then times are
        measured from here on."""
        now = self._clock()
        if self._measures or self._policy.mode != "auto" or now - self._looked < _LOOK:
            return
        self._looked = now
        self._measures = changes > 0 or bool(self._job.noted(SLOW))

    def hear(self, own: Sequence[float], parts: Parts | None, newest: int, *, from_loader: bool = True) -> None:
        """A step is over. `own` are the seconds since the group began that each rank did not wait; `newest` is the
        number of the last change of parts that is known, which may be of a batch to come."""
        if not (self.measures or self._stage == "alone") or self.weights is not None or self.leaves:
            return
        if not from_loader:  # nobody knows how to share what a script gets elsewhere
            if self._stage == "alone":
                self.news.append(Note("the CPU is left out: the batches come from no holdfast.Loader"))
                self._note("out")
            return
        if parts is not None and parts.change != newest:
            self._set = None
            return
        now, change = self._clock(), 0 if parts is None else parts.change
        current = self._set
        if current is None or change != self._change:
            self._set, self._change = _Windows(now, list(own)), change
            return
        current.steps += 1
        if parts is not None and sum(parts.counts) > sum(current.counts):
            current.counts = parts.counts
        if now - current.since < WINDOW:
            return
        if current.warm:
            spent = [(after - before) / current.steps for before, after in zip(current.own, own, strict=True)]
            current.by_rank = current.by_rank or [[] for _ in spent]
            for windows, each in zip(current.by_rank, spent, strict=True):
                windows.append(each)
            current.whole.append((now - current.since) / current.steps)
        current.warm, current.since, current.own, current.steps = True, now, list(own), 0
        if len(current.whole) in _LOOKS and (self._judge(current) or len(current.whole) == _LOOKS[-1]):
            self._set = None

    def _judge(self, found: _Windows) -> bool:
        """Whether something has come out of these windows: then new ones begin."""
        stage = self._stage
        if stage == "alone":
            if len(found.whole) < _ALONE:
                return False
            self._note("shared", alone=found.whole)  # the agent lets the CPU join: there will be another group
            return True
        if len(self._seats) == 1 or not found.counts:
            return False
        measured = Measured(found.counts, found.by_rank)
        counts = better(measured, self._before)
        if counts is not None:
            self._before = measured
            self.weights = dict(zip(self._seats, counts, strict=True))
            return True
        if stage in ("shared", "kept") and set(self._seats) & set(self._policy.beside):
            return self._judge_beside(found, stage)
        return False

    def _judge_beside(self, found: _Windows, stage: Stage) -> bool:
        alone = [float(each) for each in self._job.noted(_BESIDE).get("alone", ())]
        if not alone:
            return False
        without, shared = statistics.median(alone), statistics.median(found.whole)
        ratio, step_ms = shared / without, (round(1e3 * without, 3), round(1e3 * shared, 3))
        beside = [rank for rank, seat in enumerate(self._seats) if seat in self._policy.beside]
        part = sum(found.counts[rank] for rank in beside)
        slower = is_faster(alone, found.whole)
        if part and is_faster(found.whole, alone):
            if stage == "shared":
                faster = _percent(1.0 - ratio)
                text = f"the CPU takes {part} of {sum(found.counts)} samples: {faster} faster steps"
                self.news.append(Note(text, shares=found.counts, step_ms=step_ms))
                self._note("kept")
            return True
        if slower or (stage == "shared" and len(found.whole) == _LOOKS[-1]):
            cost = f"the step would take {ratio:.3g} times as long" if slower else "the gain is within the noise"
            self.news.append(Note(f"the CPU is left out: {cost}", shares=found.counts, step_ms=step_ms))
            self._note("out")
            self.leaves = True
            return True
        return False

    def _note(self, stage: Stage, **more: Any) -> None:
        self._stage = stage
        self._job.note(_BESIDE, {**self._job.noted(_BESIDE), "stage": stage, **more})


def _percent(part: float) -> str:
    return f"{100.0 * part:.0f} %" if part >= 0.01 else f"{100.0 * part:.1f} %"
