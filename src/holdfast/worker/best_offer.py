"""Weights that may be the best ones where no epoch ends: held, and offered to whoever knows the best value.

    offers = Offers(context)
    offers.note(values)              # numbers were logged; is one of them such as decides what is best?
    offers.make()                    # then the weights as they are now are its own

The end of an epoch offers its snapshot by itself. A loop that is left by `break` has no such end, and neither has a
loop without `session.epochs`. The snapshot is a savepoint: no worker goes on from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.base.board import Phase
from holdfast.run.commit_points import CommitPoint
from holdfast.run.messages import Weights
from holdfast.worker.session_context import SessionContext


class Offers:
    """Of one session."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._metric = context.settings.checkpoint.best
        self.due = False
        """A value was logged whose weights nobody was offered yet."""

    def note(self, values: Mapping[str, Any]) -> None:
        if self._metric == "auto":
            self.due = self.due or any(name.startswith("val") for name in values)
        else:
            self.due = self.due or self._metric in values

    def make(self, *, again: bool = False) -> None:
        """The weights as they are now, if a value waits for them. `again`: they are what was restored.

        Several ranks number their snapshots alike, and only one of them may have logged: they offer at the end of
        an epoch alone.
        """
        context = self._context
        if not (self.due or again) or context.peers.ranks > 1 or context.over is not None or not context.ready:
            return
        self.due = False
        phase = context.board.phase
        context.enter(Phase.SNAPSHOT)
        context.take(CommitPoint.SAVE, resumable=False, hold=True, again=again)
        context.snapshots.flush()
        last = context.snapshots.last
        if last is not None and last.done:  # else its numbers are not finite, which the next commit says
            context.link.send(Weights(context.position.step, last.sequence))
        context.enter(phase)
