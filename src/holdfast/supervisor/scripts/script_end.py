"""How a run of a script ends: finished, stopped, failed by itself, or given up; each with its receipt.

ending.stopped(signal.SIGTERM, code)         # somebody wanted it to end
ending.gave_up(fault, "nothing is left to try", tries)
ending.end(RunState.FINISHED, 0, None)           # the first one counts
ending.outcome
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import ExitCode, GaveUp, Stopped
from holdfast.faults.classification import Fault
from holdfast.run.states import RunState
from holdfast.supervisor.run_loop import RunEnd
from holdfast.supervisor.scripts.words import last_lines

if TYPE_CHECKING:
    from holdfast.supervisor.scripts.script_parts import ScriptRun


class Ending(RunEnd):
    """The end of one run."""

    def __init__(self, supervisor: ScriptRun) -> None:
        super().__init__(supervisor.context)
        self.supervisor = supervisor

    def stopped(self, number: int, code: int | None = None) -> None:
        """Somebody wanted it to end. Its own code counts, as it would without us."""
        self.supervisor.attached.save_last()
        exact = self.supervisor.attached.exact
        if code is None or code < 0:
            ending = 128 + (number if code is None else -code)
        else:
            ending = code
        if exact and ending in (128 + signal.SIGTERM, 75):
            ending = int(ExitCode.RESUME_ME)
        hints = [self.context.resume_hint()]
        error = Stopped(f"stopped at step {self.context.accounts.steps}", saved=self.context.saved(), hints=hints)
        self.end(RunState.STOPPED, ending, error)

    def gave_up(self, fault: Fault, reason: str, tries: int) -> None:
        """Nothing is left to try."""
        self.supervisor.attached.save_last()
        times = f", {tries} times" if tries > 1 else ""
        said = last_lines(self.supervisor.record.last_words())
        words = ["its last output:", *(f"  {line}" for line in said)] if said else []
        error = GaveUp(
            f"gave up: {fault.sentence()}{times}",
            cause="\n".join([f"{fault.code}; {reason}", *words]),
            saved=self.context.saved(),
            hints=[
                f"`holdfast explain {fault.code}` says what this means",
                f"what was found is in {self.context.run_folder.path / 'faults'}",
            ],
        )
        self.end_with(error)

    def receipt(self, state: RunState) -> dict[str, Any]:
        accounts, receipt = self.context.accounts, self.counted(state)
        receipt["exact"] = self.supervisor.attached.exact
        receipt |= self.supervisor.exact.receipt()
        if not receipt["exact"]:  # nobody has counted its samples
            receipt |= {"samples_skipped": None, "samples_repeated": None, "samples_quarantined": None}
        going_on = self.supervisor.answering.going_on
        if not receipt["exact"] and not accounts.attempts and accounts.faults:  # nobody has seen its steps
            receipt |= {"steps_repeated": None, "work_repeated_s": round(going_on.repeated_s, 3)}
            receipt |= {"output_repeated_bytes": going_on.repeated_bytes, "work_repeated_at_most": going_on.at_most}
        return receipt
