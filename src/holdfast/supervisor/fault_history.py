"""The faults of a run so far and what was done about each: what the ladder is asked with. No torch here.

move = history.ask(fault)                # the ladder's answer, by the settings and the rungs of the run
history.remember(fault, move)            # counted; the ladder knows it the next time
history.progressed(3)                    # steps that nobody had made before the last fault
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from holdfast.faults.classification import Fault
from holdfast.faults.ladder import FAMILIES, Limits, Move, Past, Rung, next_move
from holdfast.faults.terms import Family
from holdfast.supervisor.run_context import OnLadder


class FaultHistory:
    """Of one run, since its supervisor began."""

    def __init__(self, context: OnLadder) -> None:
        self.context = context
        self.past: list[Past] = []

    def ask(self, fault: Fault, *, past: Sequence[Past] = (), rungs: Sequence[Rung] | None = None, **more: Any) -> Move:
        """The ladder's answer. `past`: what counts as done beside what was."""
        retry, context = self.context.settings.retry, self.context
        limits = Limits(tries=retry.same_step, outside=retry.without_progress, crowd=retry.in_a_row)
        ways = context.plan.rungs if rungs is None else rungs
        return next_move(fault, [*self.past, *past], ways, context.rung, limits=limits, **more)

    def remember(self, fault: Fault, move: Move, *, counted: bool = True) -> None:
        """`counted`: it is a fault of its own, and not the verdict on one that was counted."""
        if counted:
            self.context.accounts.fault(fault.kind.value)
        self.past.append(Past(fault, move, self.context.rung))

    def progressed(self, steps: int) -> None:
        """Progress since the last fault is what the ladder looks at."""
        if self.past:
            last = self.past[-1]
            self.past[-1] = dataclasses.replace(last, committed=last.committed + steps)

    def tries(self, fault: Fault) -> int:
        """How often it came at this step."""
        return sum(past.fault.step == fault.step for past in self.past)

    @property
    def left_by_device(self) -> bool:
        """The last thing that happened was the device's doing."""
        return bool(self.past) and FAMILIES[self.past[-1].fault.kind] == Family.DEVICE
