"""What follows when a worker is lost: count it, keep the evidence, ask the ladder, do what it says. No torch here.

    recovery = Recovery(context, workers, ending, watch, trusting)
    recovery.after_death(worker, fault)      # a new worker, on the rung the ladder chose, or the end of the run
    recovery.in_process(fault, move)         # the worker mended it by itself: it counts all the same
    recovery.tick()                          # what the CPU makes of failed steps is heard, and what follows is done
    recovery.finish()                        # `train` has returned: the end of the run, once the CPU has spoken
    recovery.notice_commit()                 # the first commit of the new worker ends the crisis

From a death to the next commit the run is in a crisis: that is the time it lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

from holdfast.base.files import MAX_JSON, read_bounded, remove
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move
from holdfast.run.commit_points import CommitPoint
from holdfast.run.states import RunState
from holdfast.supervisor.device_trust import Trusting
from holdfast.supervisor.fault_inquiry import Inquest
from holdfast.supervisor.fault_response import Crisis, FaultResponse, Loss
from holdfast.supervisor.opinions import Opinion
from holdfast.supervisor.process_start import NurseryDied, WorkerProcess
from holdfast.supervisor.run_context import RunContext
from holdfast.supervisor.run_end import Ending
from holdfast.supervisor.undo import undo
from holdfast.supervisor.worker_watch import Watch
from holdfast.supervisor.workers import Workers

CALM = 600.0
"""Seconds without a fault that a run is taken to have behind it when it begins."""


class Recovery(FaultResponse):
    """What is done about the faults of workers."""

    def __init__(self, context: RunContext, workers: Workers, ending: Ending, watch: Watch, trusting: Trusting) -> None:
        super().__init__(context, trusting)
        self._workers = workers
        self._ending = ending
        self._watch = watch
        self._compares = True
        """Until the CPU turns out to be too slow for it."""
        self._left_out: list[Any] = []
        """Samples that make a step fail wherever it is computed. Every worker is told: its state may be older."""
        self.inquest = Inquest(context, workers, trusting.blamed)
        self._postponed: Loss | None = None
        """The same step has failed again, and the CPU has not spoken yet."""
        self.finishing = False
        """`train` has returned, and the CPU has not spoken yet."""
        self._began = time.monotonic()
        self._workers_lost = 0
        """Since then. The accounts of a resumed run also hold what an earlier supervisor has seen."""
        workers.orders = self._orders

    @property
    def ending(self) -> Ending:
        return self._ending

    def _orders(self) -> dict[str, Any]:
        return {
            "trial": self.inquest.trial,
            "probation": self.trusting.probation,
            "leave_out": tuple(self._left_out),
            "sentinel": self._compares,
            **self._losses(),
        }

    def _losses(self) -> dict[str, Any]:
        """What happened, and what is expected from it: one loss alone says little about the time to the next one."""
        lost, seconds = self._workers_lost, time.monotonic() - self._began
        between = (seconds + CALM) / (lost + 1) if lost else None
        return {"between_faults": between, "workers_lost": lost, "watched_s": seconds}

    # -- deciding ------------------------------------------------------------------------------------------

    def after_death(self, worker: WorkerProcess, fault: Fault, stacks: dict[str, str] | None = None) -> None:
        """Count it, keep the evidence, ask the ladder, do what it says."""
        beat = worker.board.read()
        self._watch.learn(beat)
        self.notice_commit()  # the last look may be older than what it committed before it was ended
        took = time.monotonic() - worker.started
        self._workers.account_for(worker)
        if self.inquest.concludes(fault):
            self._after_verdict(fault)
            return
        self._workers_lost += 1
        words, crash = self.context.teller.last_words(), self._crash_stack(worker.generation)
        loss = Loss(fault, beat, words, stacks, crash)
        if self._ending.stopping is None and self.inquest.must_wait(fault, took):
            self._postponed = loss
            self._begin_crisis()
            self.context.set_state(RunState.RECOVERING)
        else:
            self._answer(loss)

    def _answer(self, loss: Loss) -> None:
        known = self._as_known(loss)
        self.carry_out(known.fault, *self.tell(known))

    def _as_known(self, loss: Loss) -> Loss:
        """With the fault as it is known by now."""
        return dataclasses.replace(loss, fault=self.trusting.known_loss(self.inquest.hear(loss.fault)))

    def told(self, fault: Fault, move: Move, folder: Path) -> None:
        self.inquest.begin(fault, move, folder)

    def tell_postponed(self) -> None:
        """The run is to stop while a fault waits for the CPU: the fault is told, and nothing is done about it."""
        loss, self._postponed = self._postponed, None
        if loss is not None:
            self.tell(self._as_known(loss))

    def tick(self) -> None:
        """What the CPU makes of failed steps, and what waits for that."""
        inquest = self.inquest
        inquest.tick(self._workers.worker, waiting=self._postponed is not None)
        if self._postponed is not None and not inquest.waits:
            loss, self._postponed = self._postponed, None
            self._answer(loss)
        worker = self._workers.worker
        if inquest.decided and self._postponed is None and (worker is None or worker.pid):
            self._go_back_to_before(*inquest.decided.pop(0))
        elif self.finishing and not inquest.pending:
            self.finish_now()

    def _go_back_to_before(self, fault: Fault, folder: Path, opinion: Opinion) -> None:
        """The run is past a step that its data make wrong: it is computed again without them, or the run stops."""
        worker = self._workers.worker
        if worker is not None:
            if not self._workers.end(worker, gently=False):
                self._workers.abandon(worker)
            self._workers.account_for(worker)
        self.finishing = False
        undone = undo(self.context, opinion.commit.sequence)
        if undone is None:
            text = f"the state before step {fault.step} is not kept any more: the run cannot go back to it"
            self.context.teller.emit("note", text=text)
        elif undone.from_step != undone.to_step:
            self.context.teller.emit("undone", from_step=undone.from_step, to_step=undone.to_step)
        opinion.end()
        move = self.ask(fault)
        self.history.remember(fault, move, counted=False)
        self.carry_out(fault, move, folder)

    def finish(self) -> None:
        """`train` has returned. What the CPU is computing is waited for: the data may turn out to be at fault."""
        pending = self.inquest.pending
        if not pending and not self.inquest.decided:
            self._ending.finish()
            return
        self.finishing = True
        bound = max((opinion.bound_s for opinion in pending), default=0.0)
        steps = " and ".join(str(opinion.fault.step) for opinion in pending)
        text = f"training is over; what the CPU makes of step {steps} is waited for, at most {bound:.0f} s"
        self.context.teller.emit("note", text=text)

    def finish_now(self) -> None:
        """The end of a run that waited for the CPU, or that somebody does not want to wait for."""
        self.finishing = False
        self._ending.finish()

    def _after_verdict(self, fault: Fault) -> None:
        """The worker computed the failed step again and knows whose fault it was: that is the answer, not a fault."""
        folder = self.inquest.conclude(fault)
        move = self.ask(fault)
        self.history.remember(fault, move, counted=False)
        self.trusting.lost(fault, move)
        self.carry_out(fault, move, folder)

    def in_process(self, fault: Fault, move: Move) -> None:
        """The worker mended it by itself; it counts, and is told, like any other."""
        self.history.remember(fault, move)
        self.context.keep_accounts()
        fault = self.inquest.hear(fault)
        folder = self.context.tell_fault(fault, move, self._workers.read_board())
        self.inquest.begin(fault, move, folder)

    def ask(self, fault: Fault) -> Move:
        return self.history.ask(fault, probation=self.trusting.on_probation(), barred=self.trusting.barred())

    def carry_out(self, fault: Fault, move: Move, folder: Path) -> None:
        if fault.kind is Kind.HANG and fault.phase == "sentinel":
            self._compares = False
        if "leave_out" in fault.evidence:
            self._left_out.append(fault.evidence["leave_out"])
        super().carry_out(fault, move, folder)

    def go_on(self, fault: Fault, move: Move) -> None:
        if self.context.memory.session_numbers().get("at") == CommitPoint.END:  # lost after `train` had returned
            self._ending.finish()
        else:
            if fault.kind is Kind.WRONG_NUMBERS:
                self._undo()
            self.inquest.prepare()
            self._replace(move)

    def _undo(self) -> None:
        """Back to the last step at which device and CPU agreed."""
        undone = undo(self.context)
        if undone is None:
            text = "no snapshot is left from before the numbers went wrong: the run goes on from the newest"
            self.context.teller.emit("note", text=text)
        else:
            self.context.teller.emit("undone", from_step=undone.from_step, to_step=undone.to_step)

    def _crash_stack(self, generation: int) -> str:
        """What faulthandler wrote when the worker crashed."""
        path = self.context.run_folder.path / f"stacks-{generation}.txt"
        with contextlib.suppress(OSError):
            text = read_bounded(path, MAX_JSON).decode(errors="replace")
            remove(path)
            return text
        return ""

    # -- replacing -----------------------------------------------------------------------------------------

    def _replace(self, move: Move) -> None:
        """A new worker from the newest snapshot, on the rung the ladder chose."""
        context = self.context
        step = context.newest_step
        context.accounts.restored(context.accounts.steps, step)
        self._begin_crisis()
        context.set_state(RunState.RECOVERING)
        back = self.trusting.returned()  # it was lost on its way to the boundary: then it goes back from here
        self._start_on(move.rung if back is None else back, step, move)

    def go_back(self, rung: int) -> None:
        """The worker has made room at a boundary: the run returns to a device that has earned it."""
        self._start_on(rung, self.context.newest_step, None)

    def _start_on(self, rung: int, step: int, move: Move | None) -> None:
        context = self.context
        if rung != context.rung:
            self._change_rung(rung, step)
        context.memory.release_leases(keep=context.keeping.awaited)
        try:
            self._workers.start(move)
        except NurseryDied:  # while the last worker was being ended, and nobody listened
            self._workers.renew_launcher()
            self._workers.start(move)

    def _change_rung(self, rung: int, step: int) -> None:
        context = self.context
        before, after = context.change_rung(rung, step)
        if before.on_cpu:
            context.memory.agree_on_newest()
        self._watch.forget()
        if before.env != after.env:
            self._workers.renew_launcher()

    # -- the crisis ----------------------------------------------------------------------------------------

    def begin_after_crash(self, last_commit_ns: int) -> None:
        """The supervisor before this one died: the time since then is lost as well."""
        self.crisis = Crisis(time.monotonic(), 0, last_commit_ns)  # the memory is new, and empty

    def _begin_crisis(self) -> None:
        """One that is not over goes on: the time is counted from its first fault.

        Steps do not tell when it is over: a worker may be lost after the last of them. Sequences of snapshots do.
        """
        newest = self.context.memory.newest()
        sequence = newest.sequence if newest else 0
        if self.crisis is not None:
            self.crisis.reached = sequence
        else:
            self.crisis = Crisis(time.monotonic(), sequence, newest.time_ns if newest else time.time_ns())

    def notice_commit(self) -> None:
        """The first commit of a new worker ends the crisis its predecessor left."""
        context = self.context
        newest = context.newest_commit()
        if newest is None:
            return
        if newest.step > context.accounts.steps:
            self._count(newest.step)
        mine = newest.generation == self._workers.generation - 1
        if mine:
            self.inquest.committed(newest.step)
        if self.crisis is not None and mine and newest.sequence > self.crisis.reached:
            self.end_crisis(newest.step, newest.time_ns)

    def _count(self, step: int) -> None:
        """Steps were committed: progress since the last fault is what the ladder looks at."""
        context = self.context
        context.teller.rate.note(step)
        self.history.progressed(step - context.accounts.steps)
        self.trusting.committed(step - context.accounts.steps)
        context.accounts.steps = step
