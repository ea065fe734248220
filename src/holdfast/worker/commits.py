"""Commits: where the body of a loop ends and what it did is kept, and where a restored run goes on.

    commits = Commits(context, attempts)
    commits.arrive(at, "data")           # the body begins: the first commit of a new run, the landing of a restored one
    commits.commit(at, "data")           # it is over: a snapshot if it is time for one, and a wish to stop is honoured

The loops (training_loop.py) and the step of a session call it. How often a snapshot is taken is in cadence.py, how one
is taken in holdfast.state.snapshot, and what is restored in restore.py.
"""

from __future__ import annotations

import time

from holdfast.base.board import Phase
from holdfast.base.errors import UserError
from holdfast.run.commit_points import CommitPoint
from holdfast.run.messages import CadenceTold, EpochEnded, StoppedAt
from holdfast.worker.best_offer import Offers
from holdfast.worker.rest import Resting
from holdfast.worker.restore import Landing
from holdfast.worker.retry import Attempts
from holdfast.worker.session_context import SessionContext, StopRun
from holdfast.worker.uncommitted import Uncommitted


class Commits:
    """Of one session."""

    def __init__(self, context: SessionContext, attempts: Attempts) -> None:
        self._context = context
        self._attempts = attempts
        self._resting = Resting(context.board)
        self.offers = Offers(context)
        self.landing: Landing | None = None
        """Where the run goes on, until the script is there again."""
        self.started = False
        self.busy = False
        """Inside a step, or past the end."""
        self.stopping = False
        """A free loop was asked to stop: before its next step."""

    # -- arriving ------------------------------------------------------------------------------------------

    def arrive(self, at: CommitPoint, of: str | None = None) -> None:
        """The loop begins or goes on here: the first snapshot of a new run, or the landing of a restored one."""
        if not self._context.ready:
            raise UserError(
                "nothing is protected",
                cause="the loop began before session.protect was called",
                hints=["call `session.protect(model=…, optimizer=…, data=…)` before the loop"],
            )
        if self.landing is not None:
            self.land(at, of)
        if not self.started:
            self.started = True
            if at is not CommitPoint.FREE:  # there the body has begun already: what it drew cannot be drawn again
                self.commit(CommitPoint.START)
                if self._attempts.checks.sentinel is not None:
                    self._context.snapshots.agree_on_start()

    def land(self, at: CommitPoint, of: str | None = None) -> None:
        """If this is where the snapshot was taken: everything protected again as it was then.

        The script ran up to here once more, with the body of the epoch up to its batches; what that did to
        protected objects is part of the snapshot already.
        """
        if self.landing is not None and self.landing.here(at, of):
            self.land_at_last()

    def land_at_last(self) -> None:
        """Land here, or where the script has gone another way than before and is past the place."""
        landing, self.landing = self.landing, None
        if landing is not None:
            self._context.uncommitted = Uncommitted()
            landing.land(self._context)
            self._tell_again(landing)

    def _tell_again(self, landing: Landing) -> None:
        """The supervisor may have missed the end of these epochs: send them again, with the last one's weights held."""
        ended, context, sequence = landing.ended, self._context, None
        for each in ended:
            context.unheard.add(each)
        if ended and ended[-1]["step"] == context.position.step:
            context.enter(Phase.SNAPSHOT)
            context.take(landing.at, landing.of, resumable=True, hold=True, again=True)
            context.snapshots.flush()
            sequence = context.snapshots.last.sequence if context.snapshots.last is not None else None
        elif landing.at is CommitPoint.FREE:
            self.offers.make(again=True)  # a value of this very step may have been heard, and its weights not
        for each in ended:
            context.link.send(EpochEnded(**each, sequence=sequence if each is ended[-1] else None, again=True))

    # -- committing ----------------------------------------------------------------------------------------

    def commit(self, at: CommitPoint, of: str | None = None, *, last: bool = False, hold: bool = False) -> None:
        """The boundary: what happened before it is kept, and a wish to stop is honoured.

        The last batch of an epoch is kept together with what follows it. A run restored in between does that
        batch again, so names the loop leaves behind, like its last loss, exist for the code after the loop.
        """
        context, board, checks = self._context, self._context.board, self._attempts.checks
        context.check_not_over()
        stop = context.peers.at_boundary(context, at, stop=board.stop_requested)
        asked = not at.by_cadence or hold or stop or board.rest or checks.on_trial
        kept = not last and checks.keeps(context.position.step)
        due = self._due(last=last) or asked or kept
        if self.landing is not None:
            due = False  # on its way to where the snapshot was taken: nothing of this counts
        if due:
            context.enter(Phase.SNAPSHOT)
            began = time.perf_counter()
            snapshots = context.snapshots
            snapshots.laid_out()
            context.take(at, of, resumable=not last, hold=hold or kept)
            context.uncommitted.clear()
            took = time.perf_counter() - began - snapshots.laid_out()
            context.cadence.taken(took + snapshots.waited())
            self.tell_cadence()
            self._attempts.check_numbers()
        self._resting.at_boundary()
        if stop or (board.stop_requested and context.peers.ranks == 1):  # several stop where they agreed to
            if at is CommitPoint.FREE and context.peers.ranks == 1:
                self.stopping = True  # before the next step: what the script logs of this one is still logged
            else:
                self.stop()

    def stop(self) -> None:
        """Everything is committed: say so, and leave the script."""
        self._context.snapshots.flush()
        self._attempts.check_numbers()
        self._context.link.send(StoppedAt(self._context.position.step))
        self._context.over = StopRun()
        raise self._context.over

    def _due(self, *, last: bool) -> bool:
        """Whether it is time. A worker does not go on from the last batch of an epoch: its end comes soon."""
        context, cadence, uncommitted = self._context, self._context.cadence, self._context.uncommitted
        due = cadence.due(uncommitted.count)
        context.snapshots.poll()  # a copy that has arrived counts from here on
        if cadence.fixed is not None:
            return due
        if uncommitted.whole or not due or last:
            return uncommitted.whole
        return context.peers.ranks > 1 or not context.snapshots.busy  # several ranks have agreed, with rank 0's in mind

    def tell_cadence(self, *, last: bool = False) -> None:
        """Tell the supervisor how often snapshots are taken, if that has changed."""
        news = self._context.cadence.news(last=last)
        if news is not None:
            again = bool(news.pop("again", False))
            self._context.link.send(CadenceTold({**news, **self._context.snapshots.slots_said()}, again=again))
