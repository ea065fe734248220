"""What a worker says to the supervisor: one row for each kind of message, and what is done about it.

    mail = WorkerMail(affairs, crew, saving, recovery, trusting)
    mail.heed(worker, {"kind": "log", "step": 12, "epoch": 0, "values": {"loss": 0.3}})

The worker sends them with `link.send(kind, …)`. A kind without a row is passed over. What a message lacks raises
KeyError, TypeError or ValueError here; the supervisor tells that as a fault of ours and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.base.errors import UserError
from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Move
from holdfast.run.states import RunState
from holdfast.supervisor import process_start
from holdfast.supervisor.device_trust import Trusting
from holdfast.supervisor.process_start import WorkerProcess
from holdfast.supervisor.recovery import Recovery
from holdfast.supervisor.run_state import Affairs
from holdfast.supervisor.saves import Saving
from holdfast.supervisor.workers import Crew

Message = dict[str, Any]


class WorkerMail:
    """The table, and a method for each row that does more than hand the message on."""

    def __init__(self, affairs: Affairs, crew: Crew, saving: Saving, recovery: Recovery, trusting: Trusting) -> None:
        self.affairs = affairs
        self.teller = affairs.teller
        self.accounts = affairs.accounts
        self.crew = crew
        self._saving = saving
        self._recovery = recovery
        self._trusting = trusting
        self._rows: dict[str, Callable[[WorkerProcess, Message], None]] = {
            # beginning and ending
            "arena": self._arena,
            "started": self._started,
            "instead": self._instead,
            "restored": self._restored,
            **{kind: self._last_words(kind) for kind in ("done", "stopped", "failed", "refused", "lost")},
            # numbers and weights
            "log": self._log,
            "unheard": self._unheard,
            "epoch": self._epoch,
            "weights": lambda _, said: saving.weights(int(said["step"]), int(said["sequence"])),
            "cadence": lambda _, said: self.accounts.heard_cadence(said, self.teller.emit),
            # faults and trust
            "fault": self._fault,
            "finding": lambda _, said: recovery.inquest.found(said),
            "quarantined": self._quarantined,
            "recovered": self._told("recovered"),
            "agreed": lambda _, said: trusting.agreed(),
            "suspicion": lambda _, said: trusting.suspected(said),
            "blind": self._blind,
            # words
            "note": self._told("note"),
            "missing": self._told("missing"),
        }

    def heed(self, worker: WorkerProcess, message: Message) -> None:
        """Do what this message asks for."""
        row = self._rows.get(str(message.pop("kind", "")))
        if row is not None:
            row(worker, message)

    # -- rows that are alike -------------------------------------------------------------------------------

    def _told(self, kind: str) -> Callable[[WorkerProcess, Message], None]:
        return lambda _, said: self.teller.emit(kind, **said)

    def _last_words(self, kind: str) -> Callable[[WorkerProcess, Message], None]:
        """Kept until the worker has ended: then they say how."""

        def keep(worker: WorkerProcess, said: Message) -> None:
            self.crew.said = {"kind": kind, **said}

        return keep

    # -- beginning -----------------------------------------------------------------------------------------

    def _arena(self, worker: WorkerProcess, said: Message) -> None:
        """It needs slots of this size, and waits for the answer."""
        try:
            arena = self.affairs.memory.grow(int(said["capacity"]))
        except UserError as error:
            worker.answer({"error": True, **error.to_json()})
            return
        if worker.spawned:
            worker.answer({"paths": process_start.slot_paths(arena)})
        else:
            worker.answer({"where": arena.where, "slots": len(arena.slots)}, arena.fds)
        self.affairs.keeping.tell_arenas()

    def _started(self, worker: WorkerProcess, said: Message) -> None:
        self.affairs.set_state(RunState.RUNNING)
        self.teller.emit("worker", generation=worker.generation, **said)
        if self.crew.launcher is not None:
            self.crew.launcher.warm()

    def _instead(self, worker: WorkerProcess, said: Message) -> None:
        """The checkpoint it was given could not be used, an older one could."""
        self.accounts.restored(self.accounts.steps, int(said["step"]))
        self.accounts.steps = int(said["step"])

    def _restored(self, worker: WorkerProcess, said: Message) -> None:
        place = int(said["step"]), int(said["epoch"])
        self.teller.best.go_on(*place, ended=bool(said["ended"]), inside=bool(said["inside"]))

    # -- numbers -------------------------------------------------------------------------------------------

    def _log(self, worker: WorkerProcess, said: Message) -> None:
        self.teller.log(int(said["step"]), int(said["epoch"]), said["values"])
        worker.board.hear()

    def _unheard(self, worker: WorkerProcess, said: Message) -> None:
        self.teller.log_missing(int(said["step"]), int(said["epoch"]), said["values"])
        worker.board.hear()

    def _epoch(self, worker: WorkerProcess, said: Message) -> None:
        self.teller.pump_output()  # what the script printed in it comes first
        self._saving.epoch(said)
        worker.board.hear()

    # -- faults --------------------------------------------------------------------------------------------

    def _fault(self, worker: WorkerProcess, said: Message) -> None:
        self._recovery.in_process(Fault.from_json(said["fault"]), Move.from_json(said["move"]))

    def _quarantined(self, worker: WorkerProcess, said: Message) -> None:
        self._recovery.inquest.quarantined(said)
        self.teller.emit("quarantined", **said)

    def _blind(self, worker: WorkerProcess, said: Message) -> None:
        self._trusting.blind = True
