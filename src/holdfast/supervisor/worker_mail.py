"""What a worker says to the supervisor: one row for each kind of message, and what is done about it.

    mail = WorkerMail(context, workers, saving, recovery, trusting)
    mail.heed(worker, Log(step=12, epoch=0, values={"loss": 0.3}))

The worker sends them with `link.send(…)`; they are the records of holdfast.run.messages. One without a row is passed
over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.run import messages
from holdfast.run.messages import LastWords, Message
from holdfast.run.states import RunState
from holdfast.supervisor.device_trust import Trusting
from holdfast.supervisor.process_start import WorkerProcess
from holdfast.supervisor.recovery import Recovery
from holdfast.supervisor.run_context import RunContext
from holdfast.supervisor.saves import Saving
from holdfast.supervisor.workers import Workers


class WorkerMail:
    """The table, and a method for each row that does more than hand the message on."""

    def __init__(
        self, context: RunContext, workers: Workers, saving: Saving, recovery: Recovery, trusting: Trusting
    ) -> None:
        self.context = context
        self.teller = context.teller
        self.accounts = context.accounts
        self.workers = workers
        self._saving = saving
        self._recovery = recovery
        self._trusting = trusting
        self._rows: dict[type[Message], Callable[[WorkerProcess, Any], None]] = {
            # beginning and ending
            messages.SlotsWanted: self._slots_wanted,
            messages.Started: self._started,
            messages.Instead: self._instead,
            messages.Restored: self._numbers,
            **dict.fromkeys(LastWords.__subclasses__(), self._last_words),
            # numbers and weights
            messages.Log: self._numbers,
            messages.Unheard: self._numbers,
            messages.EpochEnded: self._epoch,
            messages.Weights: lambda _, said: saving.weights(said.step, said.sequence),
            messages.CadenceTold: lambda _, said: self.accounts.heard_cadence(said, self.teller.emit),
            # faults and trust
            messages.FaultMended: lambda _, said: recovery.in_process(said.fault, said.move),
            messages.Found: lambda _, said: recovery.inquest.found(said),
            messages.Quarantined: self._quarantined,
            messages.Recovered: self._told,
            messages.Agreed: lambda _, said: trusting.agreed(),
            messages.Suspicion: lambda _, said: trusting.suspected(said),
            messages.Blind: self._blind,
            # words
            messages.Note: self._told,
            messages.Missing: self._told,
        }

    def heed(self, worker: WorkerProcess, message: Message | None) -> None:
        """Do what this message asks for."""
        row = None if message is None else self._rows.get(type(message))
        if row is not None:
            row(worker, message)

    # -- rows that are alike -------------------------------------------------------------------------------

    def _told(self, worker: WorkerProcess, said: Message) -> None:
        self.teller.emit(said.kind, **said.told)

    def _last_words(self, worker: WorkerProcess, said: LastWords) -> None:
        """Kept until the worker has ended: then they say how."""
        self.workers.said = said

    def _numbers(self, worker: WorkerProcess, said: messages.Log | messages.Restored) -> None:
        self.teller.heed(said, worker.board)

    # -- beginning -----------------------------------------------------------------------------------------

    def _slots_wanted(self, worker: WorkerProcess, said: messages.SlotsWanted) -> None:
        """It waits for the answer."""
        self.context.give_slots(said.capacity, worker.answer, by_path=worker.spawned)

    def _started(self, worker: WorkerProcess, said: messages.Started) -> None:
        self.context.set_state(RunState.RUNNING)
        self.teller.emit("worker", generation=worker.generation, **said.told)
        if self.workers.launcher is not None:
            self.workers.launcher.warm()

    def _instead(self, worker: WorkerProcess, said: messages.Instead) -> None:
        """The checkpoint it was given could not be used, an older one could."""
        self.accounts.restored(self.accounts.steps, said.step)
        self.accounts.steps = said.step

    # -- numbers and faults --------------------------------------------------------------------------------

    def _epoch(self, worker: WorkerProcess, said: messages.EpochEnded) -> None:
        self.teller.pump_output()  # what the script printed in it comes first
        self._saving.epoch(said)
        worker.board.hear()

    def _quarantined(self, worker: WorkerProcess, said: messages.Quarantined) -> None:
        self._recovery.inquest.quarantined(said)
        self._told(worker, said)

    def _blind(self, worker: WorkerProcess, said: messages.Blind) -> None:
        self._trusting.blind = True
