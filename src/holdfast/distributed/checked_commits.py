"""The snapshot that ranks with parts of a model (FSDP2) go back to if the device of one of them computes wrong numbers.

    checked = CheckedCommits(context.snapshots)     # in each rank
    number = checked.told()                         # goes into the vote of each step
    checked.hear(numbers)                           # those of all ranks, the same in all of them

Each rank compares operators of its own steps with the CPU, as a rank with the whole model does: an operator and its
inputs are of one rank alone, so a disagreement is the fault of that rank's device and of no other. What differs is the
way back. A rank with the whole model keeps the last snapshot after which it agreed with the CPU, and hands it to the
others. A part is of no use without the other parts of the same commit, and each rank has slots for a few commits only.

So all ranks keep the same two. The first is the one to go back to. The second is the next one: the newest when it
was chosen. When every rank has agreed with the CPU in a step after it, it takes the place of the first. Each rank says
in every vote which snapshot it has compared last; all see the same numbers and decide alike. No exchange is added.

A rank that is lost in a vote may have missed it. So the snapshot before is let go one vote later, when it is known
that all have heard of the new one. `agree_on_checked` of rank_snapshots.py makes the marks of all ranks equal again
when a new group begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.state.snapshot import Snapshots
from holdfast.state.taken_snapshot import Taken

_GONE = -1.0
"""A rank does not hold the next one any more: it had no other slot to write to."""
_BLIND = math.inf
"""A rank that compares nothing. It will never be found wrong, so the others do not wait for it."""


class CheckedCommits:
    """What one rank keeps, and says about it."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._next: Taken | None = None
        self._last = 0
        """The sequence of the one that was chosen last."""
        snapshots.in_parts = True

    def told(self) -> float:
        """The sequence of the newest snapshot after which this rank has agreed with the CPU."""
        snapshots, following = self._snapshots, self._next
        if following is not None and not snapshots.holds(following):
            return _GONE if following.done or following.torn else 0.0  # else it is still being copied
        return float(snapshots.compared) if snapshots.compares else _BLIND

    def hear(self, told: Sequence[float]) -> None:
        """What all ranks have told in this vote, by rank."""
        snapshots, following = self._snapshots, self._next
        if min(told) == _BLIND:
            return
        if following is None:
            snapshots.forget_older()  # all ranks have heard the vote in which the newest of them was agreed on
            self._choose()
        elif min(told) == _GONE:
            snapshots.let_go(following)
            self._next = None
        elif min(told) >= following.sequence:
            snapshots.agree_on(following)
            self._next = None

    def _choose(self) -> None:
        newest = self._snapshots.newest
        if newest is not None and newest.sequence > self._last:
            self._next, self._last = newest, newest.sequence
            self._snapshots.keep(newest)
