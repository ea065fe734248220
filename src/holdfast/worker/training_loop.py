"""The loops over epochs and batches, as a script writes them: what is still to do, and where each body ends.

    loop = TrainingLoop(context, attempts, commits)
    for epoch in loop.epochs(10):                # session.epochs
        for batch in loop.batches(data):         # session.batches

A body is committed when the loop comes back for the next batch. A loop may be left by `break`, `return` or an error;
Python tells a generator so when it closes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.base import enumeration
from holdfast.base.board import Phase
from holdfast.base.errors import HoldfastError, UserError
from holdfast.data.any_loader import AnyLoader
from holdfast.data.loader import Batch, Loader
from holdfast.data.plain_pass import check_no_strays
from holdfast.run.commit_points import CommitPoint
from holdfast.run.messages import EpochEnded
from holdfast.worker.commits import Commits
from holdfast.worker.epoch_loops import EpochLoops, left_by_error
from holdfast.worker.retry import Attempts
from holdfast.worker.session_context import SessionContext, StopRun


@dataclass(slots=True, eq=False)
class OpenBatch:
    """The batch whose loop body is running."""

    name: str
    """Of the loader."""
    loader: Loader | AnyLoader
    batch: Batch
    step: int
    """Steps done when it began."""


class TrainingLoop:
    """Of one session."""

    def __init__(self, context: SessionContext, attempts: Attempts, commits: Commits) -> None:
        self._context = context
        self._attempts = attempts
        self._commits = commits
        self.numbered = EpochLoops()
        """Which loop over epochs is which."""
        self.in_epoch = False
        self.open: OpenBatch | None = None
        """The batch whose body is running."""
        self._left: int | None = None
        """The epoch whose loop was left before its end. It is over once the script goes on."""
        self._passes: dict[str, bool] = {}
        """The loaders used in this epoch, and whether all their batches were."""
        self._epochs_total = 0

    @property
    def inside(self) -> bool:
        """In a body of a loop over epochs or batches."""
        return self.in_epoch or self.open is not None

    # -- epochs --------------------------------------------------------------------------------------------

    def epochs(self, total: int, *, name: str | None = None) -> Iterator[int]:
        """`session.epochs`: the epochs that are still to do."""
        if not isinstance(total, int) or total < 0:
            raise UserError(f"session.epochs takes a whole number of epochs, not {total!r}")
        if self.in_epoch:
            raise UserError("session.epochs was called inside another", cause="a run has one count of epochs")
        if self._commits.landing is None:
            self.end_left()
        loop = self.numbered.begin(self._context, self._commits.landing, total, name)
        if loop is None:
            return
        self.end_left()
        first, last = loop.first, loop.first + total
        self._context.board.position(epoch=self._context.position.epoch, epochs=last, batch=0, batches=0)
        for epoch in range(self._context.position.epoch, last):
            self._commits.arrive(CommitPoint.EPOCH)
            self._context.enter(Phase.LOOP)  # before its first batch a body may do work of its own
            self.in_epoch = True
            self._context.loop = loop
            self._passes.clear()
            self._context.board.position(epoch=epoch, epochs=last, batch=0, batches=0)
            self._epochs_total = last
            for loader in self._context.loaders():
                loader.passes.drawn = 0
            try:
                yield epoch - first
            except GeneratorExit:
                self.leave_epoch(epoch, caught=left_by_error())
                raise
            finally:
                self.in_epoch = False
            self._end_epoch(epoch)
        if self._commits.landing is None:
            self._context.loop = loop  # also one without an epoch to do
        if self._commits.landing is not None and self._commits.landing.at is CommitPoint.EPOCH:
            self._commits.land_at_last()
        # A test or an export comes after the last epoch, not a snapshot that takes long.
        self._context.enter(Phase.EVALUATE)

    def leave_epoch(self, epoch: int, *, caught: bool = False) -> None:
        """The loop was left. Its weights may be the best, and what the script does next may change them.

        Python closes the loop wherever its last name goes, and passes over what is raised here. An error that nobody
        catches leaves it too: so nothing that a run goes on from says yet that the epoch is over.
        """
        self._left = epoch
        if self._context.loop is not None:
            self._context.loop.caught = caught
        if self.open is not None and not self._commits.busy:
            self._leave_batch(self.open)
        if self._commits.landing is None and not self._commits.busy:
            with contextlib.suppress(RuntimeError, OSError, HoldfastError):  # the next step meets it as well
                self._commits.offers.make()

    def end_left(self) -> None:
        """The script has gone on after a loop that was left: its epoch is over."""
        if self._left is None or self._commits.busy:
            return
        epoch, self._left = self._left, None
        if self._context.loop is not None:
            self._context.loop.left = True
        self._end_epoch(epoch, CommitPoint.FREE)

    def _end_epoch(self, epoch: int, at: CommitPoint = CommitPoint.EPOCH) -> None:
        if self.open is not None:
            self._leave_batch(self.open)
        self._commits.land_at_last()
        for name, whole in self._passes.items():
            self._context.objects[name].finish_epoch(left=not whole)
        self._passes.clear()
        self._context.position.epoch = epoch + 1
        ended = {"epoch": epoch, "step": self._context.position.step, "loss": None}
        self._context.unheard.add(ended)
        try:
            self._commits.commit(at, hold=True)
        except StopRun:
            self._tell_epoch(ended)  # it may have been the best one
            raise
        self._tell_epoch(ended)

    def _tell_epoch(self, ended: dict[str, Any]) -> None:
        """An epoch is over and committed; its snapshot is held until the supervisor knows whether it is the best."""
        snapshots = self._context.snapshots
        self._commits.offers.due = False
        snapshots.flush()
        self._attempts.check_numbers()
        ended["loss"] = self._context.board.read().loss  # of its last step: for scripts that log nothing
        sequence = snapshots.last.sequence if snapshots.last is not None else None
        self._context.link.send(EpochEnded(**ended, sequence=sequence))

    # -- batches -------------------------------------------------------------------------------------------

    def batches(self, data: Any) -> Iterator[Any]:
        """`session.batches`: the batches of this epoch that are still to do."""
        name = self._context.name_of(data)
        if self.open is not None and self._context.objects[name] is not self.open.loader:
            yield from data
            return
        data = self._context.objects[name]
        self.end_left()
        self._check_pass(name)
        self._passes[name] = False
        self._context.enter(Phase.DATA)
        landing = self._commits.landing
        if landing is None:
            self._context.begun = data.cursor
        if self.in_epoch and not any(self._passes.values()):
            self._check_nothing_drawn()
        context, commits = self._context, self._commits
        foreign = isinstance(data, AnyLoader)
        for batch in self._read(data, name):
            self._attempts.ahead.begin(batch.value, context.device)
            self._show_position(batch.index, data.length() if foreign else len(data))
            context.enter(Phase.LOOP)
            commits.arrive(CommitPoint.BATCH, name)
            if landing is not None:
                if commits.landing is None:
                    _count_on(batch.index - context.begun)
                landing = None
            opened = self.open = OpenBatch(name, data, batch, context.position.step)
            context.peers.open_body(batch)
            try:
                yield batch.value
            except GeneratorExit:
                self._leave_batch(opened)
                raise
            self._end_batch(opened)
        self._commits.land(CommitPoint.BATCH, name)  # killed after the last batch of the epoch: none is left
        self._passes[name] = True
        if not self.in_epoch:
            data.finish_epoch()
        self._context.enter(Phase.EVALUATE)  # what follows the last batch is often an evaluation, declared or not

    def _read(self, data: Loader | AnyLoader, name: str) -> Iterator[Batch]:
        """A loader of somebody else's draws from the generators of the script: they are restored before it is read."""
        if isinstance(data, Loader):
            return data.batches(data.epoch, data.cursor)
        return data.batches(data.epoch, data.cursor, lambda: self._commits.arrive(CommitPoint.BATCH, name))

    def _check_pass(self, name: str) -> None:
        if self.open is not None:
            raise UserError(
                "session.batches was called inside another over the same loader",
                cause="a loader has one place in its epoch",
                hints=["make a second loader of the same dataset, and protect it by a name of its own"],
            )
        if self.in_epoch and self._passes.get(name):
            raise UserError(
                f"all batches of this epoch were used already: session.batches({name}) was called again",
                hints=["use session.epochs for another pass: each epoch is one pass over the data"],
            )

    def _check_nothing_drawn(self) -> None:
        """An iterator that is drawn from between the beginning of an epoch and its first batch is a batch ahead."""
        for name in (name for name, each in self._context.objects.items() if isinstance(each, (Loader, AnyLoader))):
            passes = self._context.objects[name].passes
            if passes.drawn and passes.current is not None:
                raise UserError(
                    f"`{name}` was drawn from before the first batch of the epoch",
                    cause="after a fault that batch would be another one: it belongs to no body",
                    hints=["draw inside of the loop over session.batches", "in `zip`, put session.batches first"],
                )

    def _end_batch(self, opened: OpenBatch) -> None:
        context = self._context
        check_no_strays()
        if self.open is not opened:
            raise UserError("this iterator over session.batches is of an earlier epoch", hints=["make a new one"])
        if context.position.step == opened.step:
            context.uncommitted.count += 1  # a body without a step is done as well
        self._count_batch(opened)
        loader = opened.loader
        last = loader.at_end() if isinstance(loader, AnyLoader) else loader.cursor >= len(loader)
        self._commits.commit(CommitPoint.BATCH, opened.name, last=last)
        context.enter(Phase.DATA)

    def _leave_batch(self, opened: OpenBatch) -> None:
        """The loop was left by `break`: a batch that was trained on is done, one that was looked at is not."""
        if self.open is opened and self._context.position.step > opened.step:
            self._count_batch(opened)
        elif self.open is opened:
            self.open = None

    def _count_batch(self, opened: OpenBatch) -> None:
        self.open = None
        opened.loader.advance(opened.batch)
        self._context.position.samples += len(opened.batch.samples)

    def _show_position(self, index: int, total: int) -> None:
        context = self._context
        context.board.position(epoch=context.position.epoch, epochs=self._epochs_total, batch=index, batches=total)


def _count_on(done: int) -> None:
    if not enumeration.catch_up(done):
        raise UserError(
            "`enumerate` around session.batches cannot go on counting here",
            cause=f"{done} batches of this epoch are done, and this build of Python has another kind of enumerate",
            hints=["ask `session.batch` for the place of a batch in its epoch"],
        )
