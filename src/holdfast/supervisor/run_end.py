"""How a run ends: finished, stopped, failed or given up. Its last save, its error, its receipt. No torch here.

    ending.ask_to_stop(signal.SIGTERM)     # the first signal: the worker may reach its next commit
    ending.stop_at_once(signal.SIGTERM)    # the second: nothing is waited for
    ending.finish()                        # `train` has returned
    ending.gave_up(fault, reason, tries)   # the ladder has no rung left
    ending.outcome                         # None as long as the run goes on

Whichever way, the state in memory is on disk and verified before the outcome is there, unless somebody does not want
to wait for that.
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.board import Phase
from holdfast.base.errors import ExitCode, GaveUp, ScriptFailed, Stopped, from_json
from holdfast.base.folders import write_whole
from holdfast.faults.blame import Blame, judge
from holdfast.faults.classification import CODES, Fault, Kind
from holdfast.run.events import Event
from holdfast.run.messages import Failed, Refused
from holdfast.run.states import RunState
from holdfast.state import checkpoint
from holdfast.supervisor.process_start import WorkerProcess
from holdfast.supervisor.run_context import RunContext
from holdfast.supervisor.run_loop import RunEnd
from holdfast.supervisor.saves import Saving
from holdfast.supervisor.signal_queue import Signals
from holdfast.supervisor.workers import Workers

STOP_PATIENCE = 30.0
"""Seconds a worker has to reach its next commit when the run is asked to stop."""
SAVE_AFTER = 1.0
"""Seconds after which its last commit is saved meanwhile. Clusters kill everything half a minute after SIGTERM, and a
worker that evaluates or compiles may need longer than that."""


class Ending(RunEnd):
    """The way out, and whether the run is on it."""

    def __init__(self, context: RunContext, workers: Workers, saving: Saving, signals: Signals) -> None:
        super().__init__(context)
        self.at_once = False
        """Nobody wants to wait for anything."""
        self._workers = workers
        self._saving = saving
        self._signals = signals
        self._deadline = 0.0
        self._save_at: float | None = None
        """When what was committed last is saved, if the worker has not come to its next commit by then."""

    # -- stopping ------------------------------------------------------------------------------------------

    def ask_to_stop(self, number: int) -> None:
        super().ask_to_stop(number)
        self._deadline = time.monotonic() + STOP_PATIENCE
        self._save_at = time.monotonic() + SAVE_AFTER
        worker = self._workers.worker
        if worker is not None and worker.pid == 0 and not processes.exists(worker.board.read().pid):
            self._workers.drop()  # not born yet: the nursery, which may still import torch, is ended with its wish
            worker = None
        if worker is None:
            self.stopped(number)
            return
        worker.board.request_stop()
        if worker.pid and worker.board.read().phase is Phase.SETUP:
            self._workers.end(worker, gently=True)  # there is no boundary to wait for

    def stop_at_once(self, number: int) -> None:
        """The second signal: nothing is waited for; the last verified checkpoint is named."""
        self.at_once = True
        worker = self._workers.worker
        if worker is not None:
            if worker.pid:
                self._workers.end(worker, gently=False)
            self._workers.account_for(worker)
        code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
        good, _ = checkpoint.newest_good(self.context.run_folder.path / "checkpoints")
        error = Stopped("stopped at once", saved=_named(good), hints=[self.context.resume_hint()])
        self.end(RunState.STOPPED, code, error)

    def stop_if_late(self, worker: WorkerProcess) -> None:
        """It did not come to its next commit in time: what it committed last is what is kept, and saved long before."""
        if self._save_at is not None and time.monotonic() >= self._save_at:
            self._save_at = None
            self._saving.now()
        if self.stopping is None or time.monotonic() <= self._deadline:
            return
        if not self._workers.end(worker, gently=False):
            self._workers.abandon(worker)
            self._workers.account_for(worker)
            self.stopped(self.stopping)

    def stopped(self, number: int) -> None:
        if not self.save_last():
            self.stop_at_once(self._signals.newest)
            return
        code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.RESUME_ME
        sentence = f"stopped at step {self.context.accounts.steps}"
        if self._saving.refused is not None:
            self.end_with(self._not_saved(f"{sentence}, but that could not be saved"))
            return
        self.end(
            RunState.STOPPED, code, Stopped(sentence, saved=self.context.saved(), hints=[self.context.resume_hint()])
        )

    def save_last(self, weights: list[str] | None = None) -> bool:
        """The state as it is now, on disk and verified. False if a signal cut it short."""
        return self._saving.last(weights, hurry=self._hurried)

    def _hurried(self) -> bool:
        """During the last save: has somebody asked, for the second time, not to wait any longer?"""
        return self._signals.urgent > (0 if self.stopping is not None else 1)

    # -- finishing -----------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Training is over: its result is saved, or the run is not finished, however well it trained."""
        self.context.memory.keep_last()
        if not self.save_last(weights=["final"]):
            self.stop_at_once(self._signals.newest)
        elif self._saving.refused is not None or self._no_weights():
            self.end_with(self._not_saved("training is over, but its result could not be saved"))
        else:
            self.end(RunState.FINISHED, ExitCode.OK, None)

    def _no_weights(self) -> bool:
        return self.context.memory.newest() is not None and "weights_sha256" not in self.context.keeping.final

    def _not_saved(self, sentence: str) -> GaveUp:
        """Not where it belongs: in another folder, or nowhere."""
        context, run, saved = self.context, self.context.run_folder, self.context.keeping.saved
        cause = self._saving.refused or context.keeping.problem or "the process that saves ended repeatedly"
        if run.left is None or not Path(saved.get("path", "")).is_relative_to(run.path):
            hints = [f"free disk space in {run.left or run.path}", context.resume_hint()]
            return GaveUp(sentence, cause=cause, saved=context.saved(), hints=hints)
        weights = run.path / "final.safetensors"
        return GaveUp(
            f"{sentence} in {run.left}",
            cause=cause,
            saved=context.saved(),
            hints=[
                *([f"the weights are in {weights}"] if weights.exists() else []),
                f"the whole run is now in {run.path}: move it to a safe place",
                context.resume_hint(),
            ],
        )

    # -- failing -------------------------------------------------------------------------------------------

    def failed(self, said: Failed) -> None:
        """The script raised an error of its own."""
        context = self.context
        context.accounts.fault(Kind.USER_ERROR.value)
        self.save_last()
        error = ScriptFailed(
            f"{context.plan.script.name} raised {said.summary}",
            cause=said.where,
            saved=context.saved(),
            hints=[f"its traceback and output are in {context.run_folder.path / 'output.log'}"],
        )
        error.blame = said.blame
        with contextlib.suppress(OSError):  # it stands in output.log too
            text = f"{said.traceback}\n"
            write_whole(context.run_folder.path / "traceback.txt", text.encode(errors="backslashreplace"))
        self.end(RunState.FAILED, ExitCode.NO, error)

    def refused(self, said: Refused) -> None:
        """The script asked for something that cannot be; the worker has the words."""
        self.save_last()
        self.end_with(from_json(said.error))

    def script_is_at_fault(self, fault: Fault, reason: str, tries: int, folder: Path) -> None:
        """A fault that would come again on every device."""
        self.save_last()
        verdict = judge(fault, None, None)
        proven = verdict.blame in (Blame.DATA, Blame.CODE)
        code = CODES[Kind.BAD_DATA] if verdict.blame is Blame.DATA else fault.code
        hints = [f"`holdfast explain {code}` says what this means", f"what was found is in {folder}"]
        sentence = verdict.sentence() if proven else fault.sentence()
        cause = f"it appeared as: {fault.sentence()}" if proven else fault.cause()
        said = fault.evidence.get("verdict")
        found: dict[str, Any] = said if isinstance(said, dict) else {}  # reading a sample alone has words of its own
        error = ScriptFailed(
            str(found.get("sentence") or sentence),
            cause=str(found.get("cause") or cause),
            saved=self.context.saved(),
            hints=[*map(str, found.get("hints") or ()), *hints],
        )
        error.blame = {**verdict.to_json(), **found} if proven or found else None
        self.end_with(error)

    def gave_up(self, fault: Fault, reason: str, tries: int) -> None:
        self.save_last()
        context = self.context
        saved = context.saved()
        self.end_with(
            GaveUp(
                f"gave up: {fault.sentence()}, {tries} times",
                cause=f"{fault.code}; {reason}",
                saved=f"{saved} (verified)" if saved else None,
                hints=[
                    *([] if context.plan.rungs[context.rung].on_cpu else [context.resume_hint(" --device cpu")]),
                    f"`holdfast explain {fault.code}` says what this means",
                    f"the worker's last output is in {context.run_folder.path / 'faults'}",
                ],
            )
        )

    # -- the end -------------------------------------------------------------------------------------------

    def receipt(self, state: RunState) -> dict[str, Any]:
        context = self.context
        receipt = self.counted(state, context.memory.session_numbers())
        at_once = context.plan.resume is None  # what lies between two sittings is not what it took
        return {**receipt, **(_compared(context.run_folder.info, state) if at_once else {})}


def _compared(info: dict[str, Any], state: RunState) -> dict[str, Any]:
    """What the plan said beside what it took, for a run that followed one and finished."""
    plan, began = info.get("plan"), Event("", str(info.get("created", ""))).seconds()
    if not isinstance(plan, dict) or state != RunState.FINISHED or began is None:
        return {}
    said = {name: plan.get(name) for name in ("time_s", "time_low_s", "time_high_s", "cost_usd")}
    return {"plan": {**said, "took_s": round(max(0.0, time.time() - began), 1)}}


def _named(good: checkpoint.Checkpoint | None) -> str | None:
    return f"step {good.step} in {good.path} (verified)" if good else "nothing was saved yet"
