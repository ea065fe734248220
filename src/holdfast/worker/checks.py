"""What a session does to be believed: the trial of a step its predecessor failed in, the sentinel, finite numbers.

    checks = StepChecks(context.enter, link.send, settings, rung)
    checks.begin_with(config["trial"], config["probation"])
    checks.protect(modules, device, snapshots, on_device)
    checks.keeps(step)                                    # the snapshot after this step is evidence: it is held
    fault = checks.before_step(work, step, describe)      # None: go on
    with checks.looking(step): ...                        # the step itself; now and then some operators are noted
    fault = checks.after_step(step)                       # known answers after the first one; what came of looks
    fault = checks.refused()                              # a step whose numbers were not finite, noticed on arrival

It finds out and says so. What follows is the session's and the ladder's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.base.board import Phase
from holdfast.faults.blame import Finding, Verdict, blamed, judge
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Rung
from holdfast.run.messages import Agreed, Blind, Found, Message, Note, Suspicion
from holdfast.run.settings import Settings
from holdfast.state.snapshot import Snapshots
from holdfast.state.taken_snapshot import Taken
from holdfast.worker.operators import zeros
from holdfast.worker.operators.comparison import METHOD
from holdfast.worker.precision import force_fp32
from holdfast.worker.replay import Replay
from holdfast.worker.sentinel import Opinion, Sentinel
from holdfast.worker.session_context import StopRun
from holdfast.worker.step import Work
from holdfast.worker.step_inquiry import Describe, Inquiry

SUSPICIONS = "suspicions"
"""The folder, in that of the run, with operators that disagreed once."""
_PHASE = "backward"
"""What is not finite, or wrong, was computed by then."""


class StepChecks:
    """One worker's doubts about its device, its data and its script."""

    def __init__(
        self,
        enter: Callable[[Phase], None],
        send: Callable[[Message], None],
        settings: Settings,
        rung: Rung,
        folder: Path | None = None,
    ) -> None:
        self.settings = settings
        self._folder = folder
        """Of the run."""
        self._asked: frozenset[str] | None = frozenset()
        """The operators whose known answers were asked for; None for all."""
        self._answered: set[tuple[Any, ...]] = set()
        """The functions whose first step was looked at."""
        self._function: tuple[Any, ...] = ()
        self._graphs: list[frozenset[str] | None] = []
        """The operators of the pieces of a step of that function; None where they do not show."""
        self.watches_numbers = settings.blame.non_finite == "stop"
        self._taken: dict[int, Taken] = {}
        """By the step that is looked at: the snapshot before it."""
        self.rung = rung
        self.sentinel: Sentinel | None = None
        self._enter = enter
        self._send = send
        self.computed = False
        """Whether the last look computed anything off the record."""
        self._trial: Fault | None = None
        self._tried: int | None = None
        """The step of a trial that found nothing, until it has passed."""
        self.finding: Finding | None = None
        """Of the last trial."""
        self.ranks = 1
        self.only_judges = False
        """This process is there for the trial alone, and trains nothing."""
        self._keep: int | None = None
        """The step whose state is evidence: the step after it is the one that failed."""
        self._probation = 0
        self._wanted = True
        self._replay: Replay | None = None
        self._snapshots: Snapshots | None = None

    def begin_with(self, trial: Mapping[str, Any] | None, probation: int, *, sentinel: bool = True) -> None:
        """What this worker is told: a step to compute again, how many to compare with the CPU, whether to at all.

        A trial is one of three: `fault` is computed again here before the step; with `only` nothing else is done here;
        `keep` is the step whose snapshot another process needs, which computes the one after it. With `looked` the step
        of the fault was computed again before, in vain.
        """
        self._wanted = sentinel
        self._trial = Fault.from_json(trial["fault"]) if trial and "fault" in trial else None
        if self._trial is not None and trial and trial.get("looked"):
            self._tried = self._trial.step
            self._trial = None
        self.only_judges = bool(trial and trial.get("only"))
        self._keep = int(trial["keep"]) if trial and "keep" in trial else None
        self._probation = probation

    def protect(
        self,
        modules: Mapping[str, nn.Module],
        device: torch.device,
        snapshots: Snapshots,
        on_device: Callable[[torch.device], contextlib.AbstractContextManager[None]],
    ) -> None:
        """The modules are there, and on the device."""
        self._snapshots = snapshots
        snapshots.watch_numbers = self.watches_numbers
        if modules:
            self._replay = Replay(modules, home=device, on_device=on_device)
        wanted = self.settings.sentinel.enabled if self._wanted else "never"
        if wanted == "always" or (wanted == "auto" and not self.rung.on_cpu):
            self._keep_watch(device, snapshots)
        if self._probation and self.sentinel is None:
            self._send(Blind())

    def _keep_watch(self, device: torch.device, snapshots: Snapshots) -> None:
        keep = self._folder / SUSPICIONS if self._folder is not None else None
        self.sentinel = Sentinel(device, self.settings.sentinel, label=self.rung.device, keep=keep)
        self.sentinel.beat = lambda: self._enter(Phase.SENTINEL)
        self.sentinel.every_step = self._probation
        snapshots.on_numbers, snapshots.compares = self.sentinel.note, True
        if self.sentinel.rare:
            text = f"{self.rung.device} is compared with the CPU more rarely: {self.sentinel.rare}"
            self._send(Note(text))

    @property
    def on_trial(self) -> bool:
        """On the way to the step that failed: every step is committed, and that one too, so that the first bad one is
        found."""
        return self._trial is not None or self._tried is not None

    def tries(self, step: int) -> bool:
        """Whether this is the step that is computed again before it is taken."""
        return self._trial is not None and self._trial.step == step and self._replay is not None

    def keeps(self, step: int) -> bool:
        """Whether the state after this step is to be committed and held."""
        return self._keep == step

    def _secure_evidence(self, step: int) -> None:
        """Before the step that failed: the snapshot another process needs has arrived, or it would be lost with us."""
        if self._keep is not None and step > self._keep:
            self._keep = None
            if self._snapshots is not None:
                self._snapshots.flush()

    # -- before a step -------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do before a step: `before_step` and `heard` would say None, as on most steps of a
        worker on the CPU."""
        return (
            self.sentinel is None
            and not self.on_trial
            and self._keep is None
            and not self.only_judges
            and self.rung.precision != "fp32"
        )

    def before_step(self, work: Work | None, step: int, describe: Describe | None) -> Fault | None:
        """Compute again what failed here; hear what came of looks. A fault if this worker must not go on."""
        self.computed = False
        if self.rung.precision == "fp32":
            force_fp32()
        self._secure_evidence(step)
        if self._tried is not None and step > self._tried:
            self._tried = None
        if self._trial is not None and self._trial.step is not None and step > self._trial.step:
            self._trial = None  # the script has gone another way, or it was a transaction, which nobody can repeat
        if self._trial is not None and work is not None and describe is not None:
            fault = self._try(work, step, describe)
            if fault is not None:
                return fault
        if self.only_judges:  # it was computed, or it cannot be: the step is no step of session.step
            raise StopRun
        return (self._ask(step, None) if work is None else None) or self.heard()

    def wants_graph(self, work: Work) -> Callable[[torch.Tensor], None] | None:
        """To be called with the loss, before backward, in the first step of each function that computes one."""
        if self.sentinel is None or self._asked is None:
            return None
        self._function = (getattr(work.fn, "__code__", type(work.fn)), *map(id, work.optimizers))
        self._graphs.clear()
        return None if self._function in self._answered else self._note_graph

    def _note_graph(self, loss: torch.Tensor) -> None:
        self._graphs.append(zeros.behind(loss))

    def after_step(self, step: int) -> Fault | None:
        """The step is computed, and not committed yet. A fault if this worker must not go on."""
        fault = None
        if self._graphs:
            known = [each for each in self._graphs if each is not None]
            fault = self._ask(step, frozenset().union(*known) if len(known) == len(self._graphs) else None)
            self._answered.add(self._function)
            self._graphs.clear()
        return fault or self.heard()

    def _ask(self, step: int, used: frozenset[str] | None) -> Fault | None:
        """Do the kernels write anything? Known answers, twice, of the operators in `used`; None for all there are.

        This comes after the first step of a worker and before its commit: a device that writes nothing costs one step,
        and no wrong number is ever kept. So only operators that the step has used are asked. Their libraries are loaded
        by then, and loading those that a model never calls takes a second and more. Nobody knows before a transaction
        what it will use: all are asked before the first one.
        """
        if self.sentinel is None or self._asked is None:
            return None
        only = None if used is None else used - self._asked
        if only is not None and not only:
            return None
        triton = zeros.uses_triton()
        self._asked = None if used is None else self._asked | used
        device = self.sentinel.device
        found = zeros.silent(device, triton=triton, only=only)
        if not found:
            return None
        again = [each for each in zeros.silent(device, 1, triton=triton, only=only) if each in found]
        if not again:
            return None
        text = f"{', '.join(again)} does not give the known answer"
        told = {"method": METHOD, "by": "known answers, twice", "tensor": again[0]}
        return Fault(Kind.WRONG_NUMBERS, self.rung.device, step, _PHASE, text, told)

    @contextlib.contextmanager
    def looking(self, step: int) -> Iterator[None]:
        """Around a step on the device."""
        if self.sentinel is None:
            yield
            return
        taken = self._snapshots.last if self._snapshots is not None else None
        with self.sentinel.looking(step) as looks:
            if looks and self._snapshots is not None:
                taken = self._snapshots.consider()
            yield
        if looks and taken is not None:
            self._taken[step] = taken

    def entering(self, enter: Callable[[Phase], None]) -> Callable[[Phase], None]:
        """The same, and the sentinel hears which part of the step comes."""
        sentinel = self.sentinel
        if sentinel is None:
            return enter

        def entered(phase: Phase) -> None:
            sentinel.enters(phase.name.lower())
            enter(phase)

        return entered

    def _try(self, work: Work, step: int, describe: Describe) -> Fault | None:
        """The step a predecessor failed in: what does the CPU make of it?"""
        trial = self._trial
        assert trial is not None and trial.step is not None
        if step < trial.step:
            return None
        self._trial, self._tried = None, step
        if self._replay is None:
            return None
        self._enter(Phase.REPLAY)
        self.computed = True
        beat = lambda: self._enter(Phase.REPLAY)  # noqa: E731 - a sign of life between two samples
        budget = self.settings.blame.budget
        # Of several ranks each has a part of the batch. Whether the other parts passed is known when all have looked.
        passed = step > 1 and self.ranks == 1
        inquiry = Inquiry(self._replay, work, budget_s=budget, describe=describe, beat=beat, others_passed=passed)
        finding = self.finding = inquiry.into(trial.kind)
        self._send(Found(finding))
        verdict = judge(trial, finding, None, on_cpu=self.rung.on_cpu)
        return blamed(trial, verdict)

    def heard(self) -> Fault | None:
        """What has come of looks: agreement, a suspicion, or a fault that is confirmed."""
        sentinel = self.sentinel
        for opinion in sentinel.opinions() if sentinel is not None else ():
            taken = self._taken.pop(opinion.step, None)
            if not opinion.agrees:
                self._send(Suspicion(opinion.step, opinion.text, opinion.to_json()))
                if opinion.confirmed:
                    return self._wrong(opinion)
            elif opinion.why:
                self._unheard(opinion)
            elif opinion.compared:
                if self._snapshots is not None and taken is not None:
                    self._snapshots.agreed(taken)
                self._send(Agreed(opinion.step - 1, opinion.to_json()))
        return None

    def _unheard(self, opinion: Opinion) -> None:
        """Nobody could compare: a look is lost, or all that would follow."""
        assert self.sentinel is not None
        if self.sentinel.off is not None:
            if self._snapshots is not None:
                self._snapshots.compares = False
            self._send(Note(f"{self.rung.device} is not compared with the CPU any more: {opinion.why}"))
            self._send(Blind())

    def _wrong(self, opinion: Opinion) -> Fault:
        assert opinion.finding is not None
        part = "forward" if " in forward" in opinion.finding.operator else _PHASE
        return Fault(Kind.WRONG_NUMBERS, self.rung.device, opinion.step, part, opinion.text, opinion.to_json())

    def close(self) -> None:
        if self.sentinel is not None:
            self.sentinel.close()

    # -- afterwards ----------------------------------------------------------------------------------------

    def refused(self) -> Fault | None:
        """The fault of a step whose numbers were not finite: it was not committed, and nothing after it was."""
        found = self._snapshots.not_finite if self._snapshots is not None else None
        if found is None:
            return None
        message = f"loss {found.loss:g}, gradient norm {found.norm:g}"
        return Fault(Kind.NON_FINITE, self.rung.device, found.step, _PHASE, message, {"what": found.what})

    def explain(
        self, work: Work, error: Exception, describe: Describe, *, others_passed: bool = False
    ) -> Verdict | None:
        """The step raised an error of the script's own: is it the code's, or some samples'?"""
        if self._replay is None:
            return None
        beat = lambda: self._enter(Phase.REPLAY)  # noqa: E731
        budget = self.settings.blame.budget
        inquiry = Inquiry(
            self._replay, work, budget_s=budget, describe=describe, beat=beat, others_passed=others_passed
        )
        finding = inquiry.raised(error)
        if not finding.samples:
            return None
        return judge(Fault(Kind.CRASH, self.rung.device), finding, None)
