"""Trying a step until it is done: roll back, ask the ladder, try again, or say that this process cannot.

    attempts = Attempts(context, rungs, rung)
    result = attempts.until_done(perform, work, samples)         # whole or not at all; raises LostWorker

A fault this process survives is mended here: another try, the batch in more pieces, this one batch on the CPU.
For every other the worker is lost, and the supervisor asks the same ladder.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from holdfast.base.board import Phase
from holdfast.data import batch as batches
from holdfast.data.loader import Batch, Loader
from holdfast.data.sample_order import Indices
from holdfast.data.sample_sources import source_of
from holdfast.devices import flags
from holdfast.faults.blame import Verdict
from holdfast.faults.classification import Fault, Kind, classify_exception
from holdfast.faults.ladder import Limits, Move, Past, Rung, next_move
from holdfast.faults.terms import Action, Health
from holdfast.run.commit_points import CommitPoint
from holdfast.run.messages import FaultMended, Note, Recovered
from holdfast.state.rng import capture_rng, restore_rng
from holdfast.worker import step
from holdfast.worker.ahead import Ahead
from holdfast.worker.checks import StepChecks
from holdfast.worker.compilation import CompileWatch
from holdfast.worker.peers import PeerFault
from holdfast.worker.session_context import LostWorker, SessionContext
from holdfast.worker.step import Work
from holdfast.worker.step_inquiry import BEFORE, Describe

T = TypeVar("T")
_STEP = "_holdfast_step"
"""The attribute of an error that says in which step it was raised."""
LONGEST_WAIT = 10_000
"""Steps after which larger pieces are tried again at the latest."""


class Pieces:
    """In how many pieces a batch is computed: more after it did not fit, fewer again after enough steps."""

    def __init__(self, context: SessionContext) -> None:
        self.count = 1
        self._context = context
        self._wait = context.settings.oom.grow_back_steps
        self._until = self._wait
        self._grown = False

    def begin_with(self, count: int) -> None:
        """As the worker before had it."""
        self.count = max(1, count)
        if self.count > 1:
            self._context.board.pieces(self.count)

    def stay(self) -> None:
        """Ranks that hold parts of the state begin anew each time a batch does not fit: larger ones are not tried."""
        self._until = sys.maxsize

    def hold(self) -> None:
        """So they stay for a while, from this step on."""
        if self._until != sys.maxsize:
            self._until = self._context.position.step + self._wait

    def change(self, count: int) -> None:
        """After a fault."""
        if self._grown and count > self.count:
            self._wait = min(self._wait * 2, LONGEST_WAIT)
            self._grown = False
        if count != self.count:
            self.count = count
            self._context.board.pieces(count)
        self.hold()

    def grow_back(self) -> None:
        """After enough steps in pieces, try larger ones; if that fails, wait twice as long the next time."""
        if self.count > 1 and self._context.position.step >= self._until:
            self.count //= 2
            self._grown = True
            self.hold()
            self._context.board.pieces(self.count)
            what = f"{self.count} pieces" if self.count > 1 else "the whole batch"
            self._context.link.send(Note(f"memory: trying {what} again", pieces=self.count))


@dataclass(slots=True, eq=False)
class Samples:
    """The samples of the loop's batch: whose they are, and which."""

    name: str
    """Of the loader."""
    loader: Loader
    batch: Batch

    @property
    def indices(self) -> Indices:
        return self.batch.own

    @property
    def dataset(self) -> Any:
        return self.loader.dataset


@dataclass(slots=True, eq=False)
class _Begun:
    """What a step began with, to go back to."""

    pieces: int
    meta: dict[str, Any] | None = None
    """What was not a tensor, if the last snapshot is of this very moment; else there is a savepoint at best."""
    generators: tuple[dict[str, torch.Tensor], dict[str, Any]] = ({}, {})

    @property
    def exact(self) -> bool:
        return self.meta is not None


class Attempts:
    """The steps of one worker, each tried until it is done."""

    def __init__(self, context: SessionContext, rungs: list[Rung], rung: int, folder: Path | None = None) -> None:
        self.context = context
        self.checks = StepChecks(context.enter, context.link.send, context.settings, rungs[rung], folder)
        self.pieces = Pieces(context)
        self.ahead = Ahead()
        self.cpu_next = False
        """The next try is on the CPU."""
        self._rungs = rungs
        self._rung = rung
        self._history: list[Past] = []
        self._microbatch = flags.amount("microbatch") is not None
        """Asked once: what the environment says is said when a worker starts."""
        self._compiling = CompileWatch(context.board, context.enter)

    def begin_with(
        self,
        *,
        pieces: int,
        cpu_batch: bool,
        trial: Mapping[str, Any] | None = None,
        probation: int = 0,
        sentinel: bool = True,
    ) -> None:
        """What was decided for the first steps of this worker, after its predecessor was lost in one."""
        self.pieces.begin_with(pieces)
        self.cpu_next = cpu_batch
        self.checks.begin_with(trial, probation, sentinel=sentinel)

    def protect(self) -> None:
        """What is protected is on the device now."""
        context = self.context
        self.checks.protect(context.named_modules(), context.device, context.snapshots, context.elsewhere)
        self.checks.ranks = context.peers.ranks
        if self.checks.sentinel is not None:
            self.checks.sentinel.ranks = context.peers.ranks
            self.checks.sentinel.neighbours = context.peers.neighbours

    def close(self) -> None:
        self._compiling.end()
        self.checks.close()

    # -- trying --------------------------------------------------------------------------------------------

    def until_done(self, perform: Callable[[torch.device], T], work: Work | None, samples: Samples | None) -> T:
        """After a fault: roll back, then do what the ladder says. `samples` are those of the loop's batch."""
        self._compiling.begin()
        begun = self._begin(work)
        peers = self.context.peers
        peers.begin_step(None if samples is None else samples.batch)
        looked = self.checks.idle
        while True:
            try:
                if not looked:
                    looked = True
                    self._look(work, samples, begun)
                result = self._once(perform)
                peers.all_done(None)
            except Exception as error:
                fault = self._fault_of(error, work, samples)
                alive = fault is None or fault.health is Health.ALIVE
                back = alive and self._can_go_back(begun, work)
                if back:
                    self._settle()
                if fault is None:  # the script's own error: it may go on, and must not find half a step
                    _remember_step(error, work, samples)
                    if back:
                        self._roll_back(begun)
                    raise
                move = self._judge(self._placed(fault, work, samples), error, back=back)
                self._roll_back(begun)
                self._apply(move, begun)
                continue
            if self._history:
                self._tell_recovered()
            return result

    def _look(self, work: Work | None, samples: Samples | None, begun: _Begun) -> None:
        """Before the step: compute again what failed here, and hear what became of earlier looks."""
        step, peers = self.context.position.step + 1, self.context.peers
        describe = _describe(work, samples) if work is not None else None
        together = peers.ranks > 1 and work is not None and self.checks.tries(step)
        with peers.apart() if together else contextlib.nullcontext():
            fault = self.checks.before_step(work, step, describe)
        of_look = fault is None or fault.blame is not None  # the sentinel may have something else to say
        if together and of_look and work is not None and describe is not None:
            finding, size = self.checks.finding, batches.batch_size(work.batch) or 0
            every = finding is not None and finding.every_sample and finding.why != BEFORE
            fault = peers.blame(fault, [describe(row) for row in range(size if every else 0)])
        if fault is not None:
            self.lose(without_bad_samples(fault, samples))
        if self.checks.computed and begun.exact and self.context.protected.meta() != begun.meta:  # on trial it is exact
            self._roll_back(begun)  # the function changes more than its gradients: a generator, a count

    def check_numbers(self) -> None:
        """A step whose numbers were not finite was not kept, and this worker is past it."""
        fault = self.checks.refused()
        if fault is not None:
            self.lose(fault)

    def lose(self, fault: Fault) -> NoReturn:
        """This process must not go on. The supervisor asks the ladder again, with the whole history."""
        self.context.lose(fault)

    def explain(self, error: BaseException) -> Verdict | None:
        """The script's own error came out of a step: was it one of its samples? Raises LostWorker if it may go."""
        self._look_back()
        found = vars(error).pop(_STEP, None)
        if found is None or not isinstance(error, Exception):
            return None
        work, samples = found
        verdict = None
        with contextlib.suppress(Exception):  # what was raised is the answer, whatever the replay does
            passed = self.context.position.step > 0
            verdict = self.checks.explain(work, error, _describe(work, samples), others_passed=passed)
        if verdict is not None:
            step, device = self.context.position.step + 1, self._rungs[self._rung].device
            fault = Fault(Kind.BAD_DATA, device, step, Phase.FORWARD.label, verdict.why)
            fault = without_bad_samples(fault.at(verdict=verdict.to_json()), samples)
            if "leave_out" in fault.evidence:
                self.lose(fault)
        return verdict

    def _look_back(self) -> None:
        """The script failed. Was the step before it finite? On the CPU that was seen before the script went on."""
        if self.context.ready:
            with contextlib.suppress(RuntimeError):  # a device that fails here says so to nobody's surprise
                self.context.snapshots.flush()
            self.check_numbers()

    def perform(self, work: Work, device: torch.device) -> torch.Tensor:
        """Forward, backward and update, in as many pieces as fit."""
        context, checks = self.context, self.checks
        work.pieces = self.pieces.count
        if self._microbatch:
            work.pieces = max(work.pieces, flags.pieces(batches.batch_size(work.batch)))
        work.updating = False
        work.ahead = self.ahead.take
        work.watch = checks.watches_numbers and (checks.on_trial or context.cadence.expects(context.uncommitted.count))
        work.on_loss = checks.wants_graph(work)
        work.together = context.peers.together(work)
        return step.perform(work, device, checks.entering(context.entering))

    def _begin(self, work: Work | None) -> _Begun:
        """A step goes back to its savepoint if it fails before its update; a transaction needs a whole snapshot."""
        context, snapshots, cadence = self.context, self.context.snapshots, self.context.cadence
        if self.pieces.count > 1:
            self.pieces.grow_back()
        if self.checks.only_judges:
            return _Begun(self.pieces.count)
        wanted = cadence.each_step or self.checks.on_trial or (work is None and cadence.fixed is None)
        wanted = wanted or snapshots.last is None
        exact = (wanted or context.uncommitted.count == 0) and snapshots.fresh()
        if wanted and not exact:
            context.take(CommitPoint.SAVE, resumable=False)
            self.check_numbers()
            exact = True
        if exact:
            return _Begun(self.pieces.count, snapshots.meta_now(), capture_rng(context.device))
        if work is not None:
            context.light.take(context.device, cadence.patience)
        return _Begun(self.pieces.count)

    def _can_go_back(self, begun: _Begun, work: Work | None) -> bool:
        return begun.exact or (work is not None and not work.updating and self.context.light.holds())

    def _once(self, perform: Callable[[torch.device], T]) -> T:
        context, checks = self.context, self.checks
        step = context.position.step + 1
        context.board.begin_attempt(step)
        if self.cpu_next:
            result = self._on_the_cpu(perform)
        elif checks.sentinel is None:
            result = perform(context.device)
        else:
            with checks.looking(step):
                result = perform(context.device)
            fault = checks.after_step(step)
            if fault is not None:
                self.lose(fault)
        self._compiling.check()
        self.cpu_next = False
        return result

    def _on_the_cpu(self, perform: Callable[[torch.device], T]) -> T:
        """This one batch where there is room, and back."""
        context = self.context
        home, cpu = context.device, torch.device("cpu")
        pieces, self.pieces.count = self.pieces.count, 1
        context.snapshots.flush()
        try:
            context.protected.move(cpu)
            context.device = cpu
            return perform(cpu)
        finally:
            context.device, self.pieces.count = home, pieces
            context.protected.move(home)
            context.snapshots.moved(home)

    # -- after a fault -------------------------------------------------------------------------------------

    def _fault_of(self, error: Exception, work: Work | None, samples: Samples | None) -> Fault | None:
        """What it was, told to the other ranks if it happened here; None for the script's own error."""
        if isinstance(error, PeerFault):
            return error.fault
        fault = classify_exception(error, device=self._rungs[self._rung].device)
        if fault is not None and self.context.peers.ranks > 1:
            fault = self._placed(fault, work, samples)
        return self.context.peers.after_error(error, fault)

    def _placed(self, fault: Fault, work: Work | None, samples: Samples | None) -> Fault:
        """The fault with what is known about the step it came in."""
        return fault.at(
            step=self.context.position.step + 1,
            phase=self.context.board.read().phase.label,
            pieces=self.pieces.count,
            batch=None if work is None else batches.batch_size(work.batch),
            splittable=work is not None and self._splittable(work, samples),
        )

    def _judge(self, fault: Fault, error: Exception, *, back: bool) -> Move:
        """What now? What this process cannot mend is raised: also if it has no exact state to go back to."""
        context = self.context
        retry = context.settings.retry
        limits = Limits(tries=retry.same_step, outside=retry.without_progress)
        move = context.peers.agree_on(next_move(fault, self._history, self._rungs, self._rung, limits=limits))
        in_process = move.action in (Action.RETRY, Action.SPLIT, Action.CPU_BATCH)
        if not in_process or fault.health is not Health.ALIVE or not back:
            context.over = LostWorker(fault)
            raise context.over from error
        self._history.append(Past(fault, move, self._rung))
        context.link.send(FaultMended(fault, move))
        error.__traceback__ = None  # the frames hold the tensors we are about to free
        return move

    def _splittable(self, work: Work, samples: Samples | None) -> bool:
        """May this batch be computed in pieces? Into how many, the ladder decides (`faults/ladder.py`)."""
        oom = self.context.settings.oom
        if not oom.split or (work.split is None and not _samples_come_first(work, samples)):
            return False
        return oom.allow_batchnorm_split or not step.mixes_samples(self.context.modules())

    def _settle(self) -> None:
        """What the step began with has arrived and was kept. There is no way back to numbers that are not finite."""
        self.context.snapshots.flush()
        self.check_numbers()

    def _roll_back(self, begun: _Begun) -> None:
        """Everything protected, and the generators, as they were when the step began."""
        self._settle()
        self.context.snapshots.make_room()
        self.context.drop_gradients()
        step.free_memory(self.context.device)
        if begun.meta is None:
            self.context.light.restore(self.context.device)
        else:
            self.context.snapshots.roll_back(begun.meta)
            restore_rng(*begun.generators, self.context.device)

    def _apply(self, move: Move, begun: _Begun) -> None:
        """Where the next try is, and in how many pieces."""
        self.cpu_next = move.action is Action.CPU_BATCH
        # A batch that did not fit in any number of pieces says nothing about those after it.
        self.pieces.change(begun.pieces if self.cpu_next else move.pieces)

    def _tell_recovered(self) -> None:
        step = self.context.position.step + 1
        if self._history and self._history[-1].fault.step == step:
            self.context.link.send(Recovered(step, in_process=True))

    def loader_mended(self, kind: str, details: dict[str, Any]) -> None:
        """A loader lost its processes and has replaced them by itself: a fault, told like any other."""
        # It belongs to the step of the batch that could not be read, which may be read ahead of its turn.
        step, link = self.context.position.step + 1 + int(details.get("ahead", 0)), self.context.link
        message = str(details.get("message", ""))
        fault = Fault(Kind(kind), step=step, phase=Phase.DATA.label, message=message, evidence=details)
        move = Move(Action.RETRY, self._rung, reason="the loader's processes were replaced")
        link.send(FaultMended(fault, move))
        link.send(Recovered(step, in_process=True))


def _remember_step(error: Exception, work: Work | None, samples: Samples | None) -> None:
    """For `explain`, should nobody catch the error. It travels with the error, so it goes when the script drops that:
    a batch, and the activations in the frames of its traceback, are gigabytes."""
    vars(error).pop(_STEP, None)
    if work is not None:
        vars(error)[_STEP] = (work, samples)


def _samples_come_first(work: Work, samples: Samples | None) -> bool:
    """Whether cutting the batch along its first dimension is known to part samples, not time or channels."""
    size = batches.batch_size(work.batch)
    if size is None or samples is None or work.accumulate > 1:
        return size is not None
    return size == len(samples.indices)


def without_bad_samples(fault: Fault, samples: Samples | None) -> Fault:
    """If the samples at fault may be left out, the fault says which: then the step is computed without them."""
    verdict = fault.evidence.get("verdict")
    if fault.blame != "data" or samples is None or not isinstance(verdict, dict):
        return fault
    named = verdict.get("samples", [])
    found = [int(sample["index"]) for sample in named]
    if not found or any(sample.get("row") for sample in named) or not samples.loader.may_leave_out(found):
        return fault  # a row of the batch that is no sample is not left out
    where = {"loader": samples.name, "epoch": samples.batch.epoch, "batch": samples.batch.index}
    return fault.at(leave_out={**where, "samples": found, "why": f"makes the step fail: {verdict.get('why')}"})


def _describe(work: Work, samples: Samples | None) -> Describe:
    """A row of the batch as a sample people can find."""

    def describe(row: int) -> dict[str, Any]:
        if samples is None or batches.batch_size(work.batch) != len(samples.indices):
            return {"index": row, "source": None, "row": True}
        index = int(samples.indices[row])
        return {"index": index, "source": source_of(samples.dataset, index)}

    return describe
