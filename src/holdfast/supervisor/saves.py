"""Saves while a run goes on: what the keeper reports is told, a keeper that dies is replaced. No torch here.

saving = Saving(context, workers.read_board)
saving.hear()                                    # reports told; a dead keeper is a fault, and another starts
saving.epoch(message)                            # an epoch is over: the best so far, or due
saving.tick()                                    # a checkpoint every now and then
saving.last(weights=["final"], hurry=hurried)    # the state as it is now, before the run ends

While the run folder takes nothing, training goes on in memory. If it still takes nothing at the end, the whole run goes
to another folder: see rescue_folder.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.board import Beat
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move
from holdfast.faults.terms import Action
from holdfast.run.commit_points import SaveReason
from holdfast.run.disk_trouble import Storage
from holdfast.run.messages import EpochEnded, SaveReport, ScriptEpoch
from holdfast.supervisor import rescue_folder
from holdfast.supervisor.keeper_client import KeeperDied
from holdfast.supervisor.run_context import RunContext

MIN_EPOCH_SAVE = 5.0
"""Epochs shorter than this do not each get a checkpoint."""
LAST_TRIES = 3
"""Keepers that may die over the last save of a run."""


class Saving:
    """When to save, and what became of it."""

    def __init__(self, context: RunContext, read_board: Callable[[], Beat | None]) -> None:
        self.context = context
        self.keeping = context.keeping
        self._read_board = read_board
        self._deaths = 0
        """Keepers that died since one last wrote a checkpoint."""
        self.refused: str | None = None
        """Why the last save was not possible in the run folder."""
        self._storage = Storage(context.run_folder, context.teller.emit, lambda: self.keeping.saved.get("step"))

    def hear(self) -> None:
        try:
            self._note(self.keeping.hear())
        except KeeperDied as died:
            self._keeper_died(died)

    def epoch(self, message: EpochEnded | ScriptEpoch) -> None:
        """Its snapshot is held until it is known whether it is the best; then it is saved or let go."""
        context, teller = self.context, self.context.teller
        best, sequence = teller.epoch(message, device=context.device), message.sequence
        due = context.settings.checkpoint.at_epochs and time.monotonic() - self.keeping.last_wish >= MIN_EPOCH_SAVE
        if best:
            known, why = teller.best.known, SaveReason.EPOCH
            self.keeping.wish(why, weights=["best"], best=known, checkpoint=due, sequence=sequence)
            return
        if sequence not in self.keeping.awaited:  # an epoch without steps ends with the snapshot of the one before
            context.memory.let_go(sequence)
        if due:
            self.keeping.wish(SaveReason.EPOCH)

    def weights(self, step: int, sequence: int) -> None:
        """Weights that belong to no end of an epoch: the snapshot is a savepoint, and held for them alone."""
        best = self.context.teller.best
        if best.taken(step):
            self.keeping.wish(SaveReason.BEST, weights=["best"], best=best.known, checkpoint=False, sequence=sequence)
        else:
            self.context.memory.let_go(sequence)

    def due_in(self) -> float:
        """Seconds until the next checkpoint that `checkpoint.every` asks for; below zero where it is due."""
        return self.context.settings.checkpoint.every - (time.monotonic() - self.keeping.last_wish)

    def tick(self) -> None:
        context = self.context
        self._storage.look()
        if self.keeping.stuck():
            self.keeping.kill()
        if self.due_in() <= 0.0 and context.memory.newest() is not None:
            self.keeping.wish(SaveReason.TIME)
        else:
            self.keeping.send()

    def now(self) -> None:
        """The newest snapshot, if there is one: the run may be killed before its worker comes to a commit."""
        if self.context.memory.newest() is not None:
            self.keeping.wish(SaveReason.STOP)

    def last(self, weights: list[str] | None = None, *, hurry: Callable[[], bool]) -> bool:
        """The state as it is now, on disk and verified, before the run ends. False if `hurry()` cut it short."""
        if not self._finish(weights, hurry, None):
            return False
        self.refused = self._why_refused(weights)
        if self.refused is None or self.keeping.channel is None:
            return True
        place = self._move_away()
        return place is None or self._finish(weights, hurry, place)

    def _finish(self, weights: list[str] | None, hurry: Callable[[], bool], folder: Path | None) -> bool:
        for _ in range(LAST_TRIES):
            try:
                self._note(self.keeping.finish(weights, hurry=hurry, folder=folder))
                return self.keeping.idle or not hurry()
            except KeeperDied as died:
                self._keeper_died(died)
        return True

    def _why_refused(self, weights: list[str] | None) -> str | None:
        """None if the run folder has everything: the result of a run that is over, or else the state."""
        self._storage.look(now=True)
        if self.context.memory.newest() is None:
            return None
        has_result = bool(weights) and "weights_sha256" in self.keeping.final
        refused = None if has_result or not self.keeping.by_disk else self.keeping.problem
        return refused or self._storage.record_problem

    def _move_away(self) -> Path | None:
        """Another folder for the whole run; None if there is none."""
        run, newest = self.context.run_folder, self.context.memory.newest()
        assert newest is not None
        place = rescue_folder.find(run.path.name, need=2 * newest.size)
        try:
            if place is not None:
                run.move_to(place)
        except OSError:
            place = None
        if place is None:
            self.context.teller.emit("note", text="no other folder has space for the run")
        else:
            self.context.teller.emit("rescued", text=f"the run is saved in {place} instead", path=str(place))
        return place

    def _note(self, reports: list[SaveReport]) -> None:
        for report in reports:
            if report.saved is not None and "path" in report.saved:
                self._deaths = 0
                saved, seconds = report.saved, round(report.seconds, 3)
                self.context.teller.emit("checkpoint", step=saved["step"], path=saved["path"], seconds=seconds)
            if report.why is None:
                self._storage.saved()
            elif report.errno is None:
                self.context.teller.emit("not_saved", text=report.why, reason=report.reason)
            else:
                self._storage.failed(report.why, report.reason)

    def _keeper_died(self, died: KeeperDied) -> None:
        """Checkpoints stop, training does not: start another keeper."""
        context = self.context
        self._deaths += 1
        fault = Fault(Kind.KEEPER_DIED, message=str(died), evidence={"status": died.code})
        move = Move(Action.REPLACE, context.rung, reason="the process that saves was replaced; training continued")
        context.accounts.fault(fault.kind.value)
        context.memory.release_leases(keep=self.keeping.awaited)
        if self._deaths <= context.settings.retry.without_progress:
            self.keeping.start()
        context.tell_fault(fault, move, self._read_board())
