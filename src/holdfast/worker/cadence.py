"""How often a session commits: measured while it runs, so that a fault costs a second and a commit next to nothing.

    cadence = Cadence(settings)
    cadence.expects(steps)             # as a step begins: will it be committed?
    if cadence.due(steps): take(); cadence.taken(seconds)
    if cadence.wishes(): ...           # several ranks: what rank 0 tells the others, who set `cadence.agreed`
    cadence.news()                     # what was chosen and why, where that has changed; None else

`snapshot.lose` is the time between two commits. Where commits that often would take more than `snapshot.cost` of the
time, they come as often as that allows, unless the user has set `snapshot.lose` himself. A run with many faults
commits more often: the time that makes commits and repeated work together cheapest is sqrt(2 c M), for commits that
take c and faults that come every M seconds. A worker begins with a commit after its first step and doubles the
distance from there, which measures the commits and soon shows that a new worker gets on.

A `sparing` cadence does not do that: all commits after the first together stay within `snapshot.cost` of the time since
then. It is for a process whose commits are dear and that follows no fault.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.base.human import duration
from holdfast.run.settings import DEFAULT, Settings

RECENT = 9
"""Commits and steps whose median counts."""
LEAST_COST = 1e-3
"""Of the time, in percent: with `snapshot.cost=0` a commit would never come."""
LEAST_PATIENCE = 5e-5
"""Seconds."""
NEWS = 1.5
"""Times the distance that was told last from which on a new one is told."""


class Cadence:
    """Of one session."""

    def __init__(
        self,
        settings: Settings,
        *,
        together: bool = False,
        sparing: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        snapshot = settings.snapshot
        self.fixed: int | None = None if snapshot.every == "auto" else int(snapshot.every)
        """Steps between two commits where that was set."""
        self._together = together
        self.agreed = False
        """What several ranks have agreed on for the body that ends now: rank 0's wish."""
        self._lose = snapshot.lose
        self._lose_set = settings.source("snapshot.lose") != DEFAULT
        self._share = max(snapshot.cost, LEAST_COST) / 100.0
        self.between_faults: float | None = None
        """Seconds from one fault to the next as the supervisor expects them; None while there was no fault."""
        self._lost, self._watched_s = 0, 0.0
        self._clock = clock
        self._ramp = 0.0
        """The distance that this worker has come to: at most `interval`, so `_near` need not ask for that each step."""
        self._sparing = sparing
        self._began: float | None = None
        self._spent = 0.0
        """Of a sparing cadence: when its first commit was over, and seconds that all later ones took."""
        self._last = self._boundary = clock()
        self.commit_s: float | None = None
        self.step_s: float | None = None
        self._commits: deque[float] = deque(maxlen=RECENT)
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._warm = 0
        self._told: float | None = None

    def after_losses(self, between: float | None, workers: int, seconds: float) -> None:
        """So many workers were lost in so many seconds, and the next fault is expected after `between` seconds."""
        self.between_faults, self._lost, self._watched_s = between, workers, seconds
        self._ramp = min(self._ramp, self.interval)

    @property
    def each_step(self) -> bool:
        return self.fixed == 1

    @property
    def patience(self) -> float:
        """Seconds of a step that its savepoint may take to ask objects."""
        return max(LEAST_PATIENCE, self._share * (self.step_s or 0.0))

    # -- when ----------------------------------------------------------------------------------------------

    def expects(self, steps: int) -> bool:
        """Whether the step that begins now will be committed, as far as one can tell; `steps` are not yet."""
        return steps + 1 >= self.fixed if self.fixed is not None else self._near(self._clock())

    def due(self, steps: int) -> bool:
        """At the end of a loop body, `steps` after the last commit."""
        now = self._clock()
        self._steps.append(now - self._boundary)
        self._boundary = now
        self.step_s = _middle(self._steps)
        if self.fixed is not None:
            return steps >= self.fixed
        if self._together:
            agreed, self.agreed = self.agreed, False
            return steps > 0 and agreed
        return steps > 0 and self._near(now)

    def wishes(self) -> bool:
        """Inside of a loop body: whether it should end with a commit. Rank 0 is asked, and all ranks do the same."""
        return self._near(max(self._clock(), self._boundary + (self.step_s or 0.0)))

    def _near(self, now: float) -> bool:
        """One step more, and the work since the last commit would be more than a fault may cost."""
        least = self._ramp
        if self._sparing and self._began is not None:
            afforded = self._spent + (self.commit_s or 0.0) <= self._share * (now - self._began)
            if not afforded and not self._lose_set:
                return False
            least = self.interval
        return now - self._last + (self.step_s or 0.0) >= least

    def begin(self) -> None:
        """Everything is committed as it is now. A sparing cadence counts from here; a first commit does the same."""
        self._began = self._last = self._boundary = self._clock()

    def taken(self, seconds: float) -> None:
        """A commit has taken `seconds` of the training's time."""
        if self._sparing and self._began is None:
            self.begin()
            return
        now = self._clock()
        self._spent += seconds
        self._warm += 1
        if self._warm > 2 or self._sparing:  # the first ones lay out the slots, which is done once
            self._commits.append(seconds)
            self.commit_s = _middle(self._commits)
        self._ramp = min(self.interval, 2.0 * (now - self._last))
        self._last = self._boundary = now

    # -- how often -----------------------------------------------------------------------------------------

    @property
    def interval(self) -> float:
        """Seconds between two commits."""
        return self._choice()[0]

    def _choice(self) -> tuple[float, str]:
        cost, lose = self.commit_s or 0.0, self._lose
        cheapest = math.sqrt(2.0 * cost * self.between_faults) if self.between_faults is not None else lose
        afforded = cost / self._share
        if afforded > lose and not self._lose_set:
            return afforded, "cost"
        if afforded < cheapest < lose:
            return cheapest, "faults"
        return (lose, "lose") if cheapest >= lose or afforded > lose else (afforded, "faults")

    def steps(self) -> int | None:
        """Steps between two commits, about; None before it is known."""
        if self.fixed is not None:
            return self.fixed
        return max(1, int(self.interval / self.step_s)) if self.step_s else None

    # -- telling -------------------------------------------------------------------------------------------

    def news(self, *, last: bool = False) -> dict[str, Any] | None:
        """What is to be told: the choice once commits are measured, and again when it has changed much.

        `last`: the run is over, and these are the figures for its receipt.
        """
        if self.commit_s is None and not last:
            return None
        wanted = self.interval if self.fixed is None else float(self.fixed)
        told = self._told
        known = told is not None and wanted < NEWS * told and told < NEWS * wanted
        if known and not last:
            return None
        self._told = wanted
        return {**self.words(), **({"again": True} if known else {})}

    def words(self) -> dict[str, Any]:
        """The cadence for the receipt, and why it is this one."""
        commit = None if self.commit_s is None else round(1e3 * self.commit_s, 3)
        step = None if self.step_s is None else round(1e3 * self.step_s, 3)
        interval, rule = (None, "each") if self.fixed is not None else self._choice()
        told = {"every_s": None if interval is None else round(interval, 3), "every_steps": self.steps()}
        return {**told, "commit_ms": commit, "step_ms": step, "rule": rule, "why": self._why(rule)}

    def _why(self, rule: str) -> str:
        if self.fixed is not None:
            return "snapshot.every is set"
        if self.step_s is not None and self.step_s >= self.interval:
            return "a step is longer than the time between two commits"
        if rule == "cost":
            return f"a commit every {self._lose:g} s would cost more than {100 * self._share:g} % of the time"
        if rule == "faults":
            lost = "1 worker was" if self._lost == 1 else f"{self._lost} workers were"
            return f"{lost} lost in {duration(self._watched_s)}"
        return f"a fault may cost {self._lose:g} s"


def _middle(values: Iterable[float]) -> float:
    """The median, the lower one of two: a step that waited for something says nothing about the others."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
