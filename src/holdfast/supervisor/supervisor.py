"""The supervisor: starts the worker, watches it, and decides what follows when it ends. No torch here.

    outcome = Supervisor(run, plan, settings, face).run()

One loop, one thread: wait for something to happen, hear what the processes say, look at what they do.
Whatever touches a device is in a child; the state is in slots this process owns: no child's death loses it.
Every decision is the ladder's, every limit the watchdog's. Here is what is noticed; what follows is elsewhere:

    run_loop.py        the loop and the end of a run, shared with `holdfast run`
    fault_response.py  what is done about a fault: ask the ladder, tell it, act on it, shared as well
    fault_history.py   the faults so far, and the question to the ladder, shared as well
    run_context.py     what all of them work on: folder, plan, memory, accounts, teller
    workers.py         the worker there is now: starting it, ending it
    worker_mail.py     what it says, message by message
    worker_watch.py    how long it has been silent; watchdog.py says how long it may be
    recovery.py        after a death: evidence, the ladder, a new worker
    fault_inquiry.py   whose fault it was; opinions.py asks the CPU, beside the worker
    device_trust.py    which devices are trusted, and how one comes back
    saves.py           checkpoints, and the keeper that writes them
    throttle.py        sensors and limits: warn, slow down, pause
    run_end.py         stopping, finishing, failing; the receipt
"""

from __future__ import annotations

import select
import signal
import time
from typing import Any

from holdfast.base import cgroup, processes
from holdfast.base.board import Beat
from holdfast.base.errors import HoldfastError, InternalError
from holdfast.base.files import remove
from holdfast.faults.classification import Fault, Kind, classify_exit
from holdfast.record import evidence
from holdfast.record.reporter import Face
from holdfast.run.folder import RunFolder
from holdfast.run.messages import Done, Failed, LastWords, Lost, Refused, SlotsWanted, StoppedAt, received
from holdfast.run.settings import Settings
from holdfast.supervisor import process_start
from holdfast.supervisor.device_trust import Trusting
from holdfast.supervisor.fault_response import Crisis
from holdfast.supervisor.process_start import CannotFork, Launcher, NurseryDied, WorkerProcess
from holdfast.supervisor.recovery import Recovery
from holdfast.supervisor.run_context import Outcome, Plan, RunContext
from holdfast.supervisor.run_end import Ending
from holdfast.supervisor.run_loop import RunLoop
from holdfast.supervisor.saves import Saving
from holdfast.supervisor.signal_queue import TO_TRAINING, URGENT, Signals
from holdfast.supervisor.throttle import Throttle
from holdfast.supervisor.worker_mail import WorkerMail
from holdfast.supervisor.worker_watch import Watch
from holdfast.supervisor.workers import Workers, kill_group

__all__ = ["Outcome", "Plan", "Supervisor"]

TICK = 0.1
QUICK = 0.01
CALM = 0.5
"""Seconds between two looks, those in a crisis, and those at a worker that trains while nothing else is under way.

A signal, a message, the end of a process and the moment at which a silence is too long wake the supervisor in any case.
Each look takes a core from the training for most of a millisecond, and threads that compute together wait for the one
that was interrupted: ten looks a second were 1 % of a run on two cores.
"""
KEEPER_PATIENCE, KEEPER_HURRY = 60.0, 1.0
"""Seconds the keeper has to leave at the end of a run, and when nobody wants to wait."""


class Supervisor(RunLoop):
    """One run, from its first worker to its receipt."""

    def __init__(self, run: RunFolder, plan: Plan, settings: Settings, face: Face | None = None) -> None:
        super().__init__()
        context = RunContext.open(run, plan, settings, face or Face())
        self.context = context
        self.run_folder = run
        self.plan = plan
        self.settings = settings
        self.teller = context.teller
        self.memory = context.memory
        self.keeping = context.keeping
        self.accounts = context.accounts
        self.workers = Workers(context, self._make_launcher)
        self._signals = Signals(TO_TRAINING, ignored=("SIGHUP",))
        self._saving = Saving(context, self.workers.read_board)
        self._ending = Ending(context, self.workers, self._saving, self._signals)
        self._watch = Watch(settings.watchdog, self.teller.emit)
        self._trusting = Trusting(context, lambda: self.workers.board)
        self._recovery = Recovery(context, self.workers, self._ending, self._watch, self._trusting)
        self._mail = WorkerMail(context, self.workers, self._saving, self._recovery, self._trusting)
        self.workers.entering = self._trusting.entering
        self._throttle = Throttle(context, self.workers)
        self._limit_in = TICK
        """Seconds until the worker's silence would be too long: the next look comes no later."""
        self._calm = False
        """At the last look a worker was at its steps, and nothing else was under way."""

    @property
    def worker(self) -> WorkerProcess | None:
        return self.workers.worker

    @property
    def generation(self) -> int:
        return self.workers.generation

    @property
    def rung(self) -> int:
        return self.context.rung

    @property
    def ending(self) -> Ending:
        return self._ending

    @property
    def _stopping(self) -> int | None:
        return self._ending.stopping

    @property
    def _crisis(self) -> Crisis | None:
        return self._recovery.crisis

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        try:
            with self._signals.listening():
                return self.to_the_end()
        finally:
            self._signals.close()

    def begin(self) -> None:
        if self.plan.crashed_ns is not None:
            self._recovery.begin_after_crash(self.plan.crashed_ns)
        self._trusting.begin()
        self.keeping.start()
        self.workers.open()
        self.workers.start()

    def turn(self) -> None:
        self._wait()
        self._hear_signals()
        self._hear_launcher()
        self._hear_worker()
        self._saving.hear()
        if self.outcome is None:
            self._look()
            self._tick()

    def failed(self, error: HoldfastError) -> None:
        self._ending.save_last()
        super().failed(error)

    def _make_launcher(self) -> Launcher:
        env = dict(self.plan.rungs[self.rung].env)
        if self.context.portable:
            return process_start.SpawnLauncher(env, self.run_folder.path / "slots")
        return process_start.NurseryLauncher(env, self.plan.preload)

    def _wait(self) -> None:
        sources: list[Any] = [self._signals.wake, *self.workers.sources]
        if self.keeping.channel is not None:
            sources.append(self.keeping.channel)
        patience = min(CALM, max(TICK, self._saving.due_in())) if self._calm else TICK
        if self._crisis is not None or (self.worker and self.worker.gone):
            patience = QUICK
        ready, _, _ = select.select(sources, [], [], max(0.001, min(patience, self._limit_in)))
        self.workers.notice_exit(ready)

    def _tick(self) -> None:
        """Every now and then: what the script printed, a beat for readers elsewhere, a checkpoint."""
        printed = self.teller.pump_output()
        if self.worker is not None and self.beat_due():
            self.mirror(self.worker.board.read(), self.context.device)
        self._saving.tick()
        if self._stopping is None and self._crisis is None:
            self.workers.tick()
        if self._stopping is None:
            self._throttle.tick()
        self.tell_gathered()
        if self._stopping is None:
            self._trusting.tick()
        if printed or self._stopping is not None or not self.keeping.idle or self._recovery.inquest.open:
            self._calm = False
        if self._trusting.probing or self.context.gathering.open_cases:
            self._calm = False

    def close_processes(self) -> None:
        self.teller.pump_output()
        self._throttle.close()
        self._recovery.inquest.close()
        self.workers.close()
        self._trusting.close(self._ending.how_left(by_device=self._recovery.history.left_by_device))
        # Without an outcome something here failed: the keeper then saves what is in memory, as if we had been killed.
        patience = KEEPER_HURRY if self._ending.at_once else KEEPER_PATIENCE
        self.keeping.close(patience=patience, save=self.outcome is None)
        for path in self.run_folder.path.glob("stacks-*.txt"):
            remove(path)

    def gathering_patience(self) -> float:
        return 0.0 if self._ending.at_once else 1.0

    # -- hearing -------------------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        for number in self._signals.heard():
            if self._recovery.finishing:
                self._recovery.finish_now()
            elif self._stopping is None:
                self._recovery.tell_postponed()
                self._ending.ask_to_stop(number)
            elif number in URGENT:
                self._ending.stop_at_once(number)

    def _hear_launcher(self) -> None:
        if self.workers.launcher is None:
            return
        try:
            for note in self.workers.launcher.poll():
                self.teller.emit("note", text=note)
        except NurseryDied:
            self._nursery_died()
        except CannotFork as error:
            self.workers.spawn_instead(error)

    def _hear_worker(self) -> None:
        worker = self.worker
        if worker is None:
            return
        messages, closed = worker.channel.mail()
        for data in messages:
            kind = str(data.get("kind", ""))
            try:
                self._mail.heed(worker, received(data))
            except HoldfastError:
                raise
            except Exception as error:  # our own bug: neither the worker's fault nor the end of its channel
                self.teller.failed_over(kind, error)
                if kind == SlotsWanted.kind:  # it waits for an answer that does not come
                    raise InternalError(f"holdfast failed over `{kind}`", cause=repr(error)) from error
        if closed:
            worker.deaf = True  # its end is closed: that stays readable, and only its death is left to notice
            if worker.pidfd is None and worker.pid and not processes.exists(worker.pid):
                self.workers.note_gone(worker)

    # -- looking -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Has the worker ended, does it hang (silent for longer than its limit), has it committed?"""
        self._limit_in, self._calm = TICK, False
        if self.worker is not None:
            self._recovery.notice_commit()
        self._recovery.tick()
        worker = self.worker
        if worker is None or self.outcome is not None:
            return
        if worker.gone:
            if self.workers.exit_known(worker):
                self._worker_ended(worker)
            return
        beat = worker.board.read()
        if worker.pid == 0 or beat.pid == 0:
            self._look_at_birth(worker, beat)
            return
        silence = self._watch.silence(beat)
        limit = self._watch.limit_now(beat, silence)
        self._limit_in = limit - silence
        # Without a descriptor for its end nobody wakes us; from half of the limit on, we look at what it waits for.
        at_ease = silence < limit / 2 and not self._watch.suspects
        self._calm = worker.pidfd is not None and self.context.accounts.steps > 0 and at_ease
        if self._limit_in <= 0:
            self._worker_hangs(worker, beat, limit)
        else:
            self._ending.stop_if_late(worker)

    def _look_at_birth(self, worker: WorkerProcess, beat: Beat) -> None:
        """A fork takes milliseconds once torch is there, unless the nursery hangs in a module it imports ahead."""
        assert self.workers.launcher is not None
        ready = self.workers.launcher.ready
        if ready is None:
            if time.monotonic() - worker.started > self.settings.watchdog.setup:
                raise InternalError("no worker could be started", cause="the nursery process did not answer")
            return
        waited = time.monotonic() - max(worker.started, ready)
        if waited <= self.settings.watchdog.first_step:
            return
        if worker.pid:
            self._worker_hangs(worker, beat, self.settings.watchdog.first_step)
        else:
            self.plan.preload = []
            self._nursery_died(f"the nursery process did not answer for {waited:.0f} s")

    # -- what became of the worker -------------------------------------------------------------------------

    def _worker_hangs(self, worker: WorkerProcess, beat: Beat, limit: float) -> None:
        """Silent for too long: keep its stacks, end it, and let the ladder decide; unless it went on meanwhile."""
        info = processes.inspect(worker.pid)
        fault = self._watch.fault_of_worker(beat, limit, self.context.device, info.state if info else None)
        path = self.run_folder.path / f"stacks-{worker.generation}.txt"
        stacks = evidence.ask_for_stacks(worker.pid, path, native=True) if self.settings.run.stacks else {}
        if worker.board.read().beats != beat.beats:
            return  # asking took a while, and meanwhile it has gone on: it was only slow
        if not self.workers.end(worker, gently=True):
            self.workers.abandon(worker)
            fault = fault.at(abandoned=worker.pid)
        self._recovery.after_death(worker, fault, stacks)

    def _worker_ended(self, worker: WorkerProcess) -> None:
        """It is gone: what did it say, and if nothing, what does its exit status say?"""
        self._hear_worker()
        kill_group(worker)
        self._recovery.notice_commit()
        said = self.workers.said
        if isinstance(said, Done | Failed | Refused | StoppedAt) or self._stopping is not None:
            self.workers.account_for(worker)
            self._end_as_said(said)
        elif isinstance(said, Lost):
            self._recovery.after_death(worker, said.fault)
        else:
            self._recovery.after_death(worker, self._read_exit(worker))

    def _end_as_said(self, said: LastWords | None) -> None:
        if isinstance(said, Done):
            self._recovery.finish()
        elif isinstance(said, Failed):
            self._ending.failed(said)
        elif isinstance(said, Refused):
            self._ending.refused(said)
        elif self._stopping is None and (rung := self._trusting.returned()) is not None:
            self._recovery.go_back(rung)
        else:
            self._ending.stopped(self._stopping or signal.SIGTERM)

    def _read_exit(self, worker: WorkerProcess) -> Fault:
        beat = worker.board.read()
        return classify_exit(
            exitcode=worker.exit_code,
            last_words=self.teller.last_words(),
            oom_kills=self.workers.memory_kills,
            device=self.context.device,
            limit=cgroup.exhausted(),
        ).at(step=beat.at, phase=beat.phase.label)

    def _nursery_died(self, message: str = "the nursery ended") -> None:
        """The nursery is gone and the kernel ended its worker: a new nursery, then a new worker."""
        worker = self.worker
        self.workers.nursery_ended()
        self.workers.renew_launcher()
        if worker is None or self.outcome is not None:
            return
        self._hear_worker()
        ended = not worker.pid or self.workers.end(worker, gently=False)
        if ended and self.workers.said:  # it had come to its end by itself
            self._worker_ended(worker)
            return
        beat = worker.board.read()
        fault = Fault(Kind.NURSERY_DIED, step=beat.at, phase=beat.phase.label, message=message)
        if not ended:  # it holds its device, so the run cannot go on there: that weighs more than the nursery
            self.workers.abandon(worker)
            fault = self._watch.fault_of_worker(beat, self.settings.watchdog.kill_grace, self.context.device, None)
            fault = fault.at(abandoned=worker.pid)
        self._recovery.after_death(worker, fault)
