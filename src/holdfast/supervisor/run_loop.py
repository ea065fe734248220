"""The loop of a supervisor and the end of its run, the same for `holdfast train` and `holdfast run`. No torch here.

class Supervisor(RunLoop): ...           # begin, turn, failed, close_processes
outcome = supervisor.to_the_end()        # until ending.outcome is there, whatever is raised
ending.end(state, exit_code, error)      # the receipt, and the outcome; the first one counts
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.board import Beat
from holdfast.base.errors import GaveUp, HoldfastError
from holdfast.faults.classification import Fault
from holdfast.run.events import utc_now
from holdfast.run.states import RunState
from holdfast.supervisor.run_context import Outcome, RunContext

BEAT_EVERY = 1.0
"""Seconds between two copies of the board for readers elsewhere."""


class RunEnd:
    """The end of one run: its receipt and its outcome. A subclass adds to the receipt what it knows."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.outcome: Outcome | None = None
        """None as long as the run goes on."""
        self.stopping: int | None = None
        """The signal that asked the run to stop."""

    def ask_to_stop(self, number: int) -> None:
        """The first signal: the process that trains may come to an end of its own."""
        self.stopping = number
        self.context.teller.emit("stopping", signal=signal.Signals(number).name, step=self.context.accounts.steps)

    def stopped(self, number: int) -> None:
        """The run was asked to stop, and no process is left."""
        raise NotImplementedError

    def gave_up(self, fault: Fault, reason: str, tries: int) -> None:
        """There is nothing left to try."""
        raise NotImplementedError

    def script_is_at_fault(self, fault: Fault, reason: str, tries: int, folder: Path) -> None:
        """The ladder says that the fault would come again on every device."""
        self.gave_up(fault, reason, tries)

    def receipt(self, state: RunState) -> dict[str, Any]:
        raise NotImplementedError

    def counted(self, state: RunState, session: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The receipt by the accounts, and by what the session wrote beside its last snapshot."""
        context = self.context
        return context.accounts.receipt(
            survived=state in (RunState.FINISHED, RunState.STOPPED),
            sha256=context.keeping.final.get("weights_sha256") if state is RunState.FINISHED else None,
            session=session,
        )

    def end_with(self, error: HoldfastError) -> None:
        state = RunState.GAVE_UP if isinstance(error, GaveUp) else RunState.FAILED
        self.end(state, error.exit_code, error)

    def end(self, state: RunState, code: int, error: HoldfastError | None) -> None:
        """The receipt, and the outcome. The first one counts."""
        if self.outcome is not None:
            return
        context, accounts = self.context, self.context.accounts
        if accounts.timeline:
            accounts.timeline[-1]["to_step"] = accounts.steps
        receipt = self.receipt(state)
        context.run_folder.put("receipt.json", receipt)
        self.outcome = Outcome(state, int(code), error, receipt)
        context.set_state(
            state, exit_code=int(code), ended=utc_now(), accounts=accounts.to_json(), best=context.teller.best.known
        )
        data = error.to_json() if error else {}
        context.teller.emit("end", state=state, exit_code=int(code), step=accounts.steps, error=data or None)

    def how_left(self, *, by_device: bool) -> str:
        """For the ledger: a script that fails says nothing about the device it failed on."""
        state = self.outcome.state if self.outcome else RunState.CRASHED
        if state is RunState.GAVE_UP and by_device:
            return "fault"
        return "finished" if state is RunState.FINISHED else "stopped"


class RunLoop:
    """One loop, one thread: wait for something to happen, hear it, look, until there is an outcome."""

    context: RunContext

    def __init__(self) -> None:
        self._last_beat = 0.0

    @property
    def ending(self) -> RunEnd:
        raise NotImplementedError

    @property
    def outcome(self) -> Outcome | None:
        return self.ending.outcome

    def begin(self) -> None:
        """The first process."""
        raise NotImplementedError

    def turn(self) -> None:
        """Once round."""
        raise NotImplementedError

    def close_processes(self) -> None:
        """End what was started, and with it whatever else a subclass holds."""
        raise NotImplementedError

    def failed(self, error: HoldfastError) -> None:
        """Something that no fault answers."""
        self.ending.end(RunState.FAILED, error.exit_code, error)

    def to_the_end(self) -> Outcome:
        """Until the run is over, whatever happens to its processes."""
        self.context.set_state(RunState.STARTING, pid=os.getpid(), boot_id=processes.boot_id())
        try:
            self.begin()
            while self.outcome is None:
                self.turn()
        except HoldfastError as error:
            self.failed(error)
        finally:
            self._close()
        assert self.outcome is not None
        return self.outcome

    def beat_due(self) -> bool:
        now = time.monotonic()
        due = now - self._last_beat >= BEAT_EVERY
        if due:
            self._last_beat = now
        return due

    def mirror(self, beat: Beat, device: str) -> None:
        """The board, for readers elsewhere."""
        self.context.teller.beat(beat, device, self.context.accounts)

    def tell_gathered(self) -> None:
        """What became of evidence that takes a while."""
        for text in self.context.gathering.poll():
            self.context.teller.emit("note", text=text)

    def gathering_patience(self) -> float:
        """Seconds that evidence which is being gathered may still take."""
        raise NotImplementedError

    def _close(self) -> None:
        """Leave nothing behind: no process, no descriptor, no memory."""
        self.close_processes()
        self.context.gathering.close(self.gathering_patience())
        self.context.memory.close()
        self.context.scratch.remove()
        if self.outcome is None:
            self.context.set_state(RunState.CRASHED)
