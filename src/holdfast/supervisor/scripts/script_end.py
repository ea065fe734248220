"""How a run of a script ends: finished, stopped, failed by itself, or given up; each with its receipt.

ending.stopped(signal.SIGTERM, code)         # somebody wanted it to end
ending.gave_up(fault, "nothing is left to try", history)
ending.end(RunState.FINISHED, 0, None)           # the first one counts
ending.outcome
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.base.errors import ExitCode, GaveUp, HoldfastError, Stopped
from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Past
from holdfast.run.events import utc_now
from holdfast.run.states import RunState
from holdfast.supervisor.run_state import Outcome
from holdfast.supervisor.scripts.words import last_lines

if TYPE_CHECKING:
    from holdfast.supervisor.scripts.script_parts import ScriptRun


class Ending:
    """The end of one run."""

    def __init__(self, supervisor: ScriptRun) -> None:
        self.supervisor = supervisor
        self.affairs = supervisor.affairs
        self.outcome: Outcome | None = None

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
        hints = [self.affairs.resume_hint()]
        error = Stopped(f"stopped at step {self.affairs.accounts.steps}", saved=self.affairs.saved(), hints=hints)
        self.end(RunState.STOPPED, ending, error)

    def gave_up(self, fault: Fault, reason: str, history: Sequence[Past]) -> None:
        """Nothing is left to try."""
        self.supervisor.attached.save_last()
        tries = sum(past.fault.step == fault.step for past in history)
        times = f", {tries} times" if tries > 1 else ""
        said = last_lines(self.supervisor.record.last_words())
        words = ["its last output:", *(f"  {line}" for line in said)] if said else []
        error = GaveUp(
            f"gave up: {fault.sentence()}{times}",
            cause="\n".join([f"{fault.code}; {reason}", *words]),
            saved=self.affairs.saved(),
            hints=[
                f"`holdfast explain {fault.code}` says what this means",
                f"what was found is in {self.affairs.run_folder.path / 'faults'}",
            ],
        )
        self.end(RunState.GAVE_UP, ExitCode.GAVE_UP, error)

    def end(self, state: RunState, code: int, error: HoldfastError | None) -> None:
        """The receipt, and the outcome. The first one counts."""
        if self.outcome is not None:
            return
        affairs, accounts = self.affairs, self.affairs.accounts
        if accounts.timeline:
            accounts.timeline[-1]["to_step"] = accounts.steps
        receipt = accounts.receipt(
            steps=accounts.steps,
            survived=state in (RunState.FINISHED, RunState.STOPPED),
            skipped=0,
            repeated=0,
            sha256=affairs.keeping.final.get("weights_sha256") if state == RunState.FINISHED else None,
        )
        receipt["exact"] = self.supervisor.attached.exact
        receipt |= self.supervisor.exact.receipt()
        if not receipt["exact"]:  # nobody has counted its samples
            receipt |= {"samples_skipped": None, "samples_repeated": None, "samples_quarantined": None}
        going_on = self.supervisor.answering.going_on
        if not receipt["exact"] and not accounts.attempts and accounts.faults:  # nobody has seen its steps
            receipt |= {"steps_repeated": None, "work_repeated_s": round(going_on.repeated_s, 3)}
            receipt |= {"output_repeated_bytes": going_on.repeated_bytes, "work_repeated_at_most": going_on.at_most}
        affairs.run_folder.put("receipt.json", receipt)
        self.outcome = Outcome(state, int(code), error, receipt)
        affairs.set_state(
            state, exit_code=int(code), ended=utc_now(), accounts=accounts.to_json(), best=affairs.teller.best.known
        )
        data = error.to_json() if error else {}
        affairs.teller.emit("end", state=state, exit_code=int(code), step=accounts.steps, error=data or None)
