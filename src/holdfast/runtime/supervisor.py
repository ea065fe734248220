"""The supervisor: starts the worker, watches it, and decides what follows when it ends. No torch here.

    outcome = Supervisor(run, plan, settings, face).run()

One loop, one thread: wait for something to happen, hear what the processes say, look at what they do.
Whatever touches a device is in a child; the state is in slots this process owns: no child's death loses it.
Every decision is the ladder's, every limit the watchdog's; this file only carries them out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.errors import (
    ExitCode,
    GaveUp,
    HoldfastError,
    InternalError,
    ScriptFailed,
    Stopped,
    UserError,
    from_json,
)
from holdfast.events import utc_now
from holdfast.naming import handle
from holdfast.runfolder import RunFolder, whole, write_json
from holdfast.runtime import checkpoint, evidence, launch, process
from holdfast.runtime.accounts import Accounts
from holdfast.runtime.board import Beat, Phase, PhaseTimes
from holdfast.runtime.channel import Closed
from holdfast.runtime.faults import Fault, Kind, classify_exit
from holdfast.runtime.keeping import KeeperDied, Keeping, Report
from holdfast.runtime.ladder import Action, Limits, Move, Past, Rung, next_move
from holdfast.runtime.launch import CannotFork, Launcher, NurseryDied, WorkerProcess
from holdfast.runtime.memory import Memory
from holdfast.runtime.scratch import Scratch
from holdfast.runtime.telling import Face, Teller
from holdfast.runtime.watchdog import allowed_silence, merge_known
from holdfast.settings import Settings
from holdfast.testing import chaos

TICK = 0.1
QUICK = 0.01
"""Seconds between two looks, and in a crisis."""
PAUSE = 1.0
"""Seconds between two looks from which on this process itself was stopped: a closed lid, a paused container."""
BEAT_EVERY = 1.0
STOP_PATIENCE = 30.0
"""Seconds a worker has to reach its next commit when the run is asked to stop."""
KEEPER_PATIENCE, KEEPER_HURRY = 60.0, 1.0
"""Seconds the keeper has to leave at the end of a run, and when nobody wants to wait."""
MIN_EPOCH_SAVE = 5.0
"""Epochs shorter than this do not each get a checkpoint."""
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
_URGENT = (signal.SIGINT, signal.SIGTERM)
"""Those that mean "now" when they come a second time. A terminal that closes may say so twice: kernel and shell."""


@dataclass(slots=True)
class Plan:
    """What to run."""

    script: Path
    argv: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    rungs: list[Rung] = field(default_factory=list)
    rung: int = 0
    seed: int = 0
    threads: int | None = None
    chaos: dict[str, Any] | None = None
    resume: checkpoint.Checkpoint | None = None
    crashed_ns: int | None = None
    """When the supervisor before this one last committed, if it died: from then on time was lost."""
    preload: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """How it ended."""

    state: str
    exit_code: int
    error: HoldfastError | None = None
    receipt: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Crisis:
    """From a fault to the next commit."""

    since: float
    last_commit_ns: int
    sequence: int
    """Of the last snapshot there was. Steps do not tell: a worker may be lost after the last of them."""


class Supervisor:
    """One run, from its first worker to its receipt."""

    def __init__(self, run: RunFolder, plan: Plan, settings: Settings, face: Face | None = None) -> None:
        self.run_folder = run
        self.plan = plan
        self.settings = settings
        self.rung = plan.rung
        self.worker: WorkerProcess | None = None
        self.outcome: Outcome | None = None
        portable = process.portable() or settings.run.portable
        self.teller = Teller(run, face or Face(), settings.checkpoint.best)
        self.memory = Memory(run, settings, portable=portable, say=self.teller.emit)
        self.scratch = Scratch.create()
        self.keeping = Keeping(run, settings, self.memory, self.scratch, portable=portable)
        self.accounts = Accounts.from_json(run.info.get("accounts") or {})
        self.history: list[Past] = []
        self.known: dict[Phase, PhaseTimes] = {}
        self.generation = whole(run.info.get("generations"))
        self._portable = portable
        self._launcher: Launcher | None = None
        self._keeper_deaths = 0
        self._signals: list[int] = []
        self._wake, self._waker = socket.socketpair()
        self._move: Move | None = None
        """What the ladder decided for the worker there is now."""
        self._said: dict[str, Any] = {}
        """The worker's last words, once it has spoken them."""
        self._stopping: int | None = None
        self._stop_deadline = 0.0
        self._at_once = False
        self._exit_deadline = 0.0
        self._crisis: _Crisis | None = None
        self._stretch: dict[int | None, float] = {}
        self._oom_kills = 0
        self._last_beat = 0.0
        self._last_look = time.monotonic()
        self._heard_since = 0.0
        self._limit_in = TICK
        """Seconds until the worker's silence would be too long: the next look comes no later."""

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until the run is over, whatever happens to the worker."""
        self._set_state("STARTING", pid=os.getpid(), boot_id=process.boot_id())
        if self.plan.crashed_ns is not None:
            self._crisis = _Crisis(time.monotonic(), self.plan.crashed_ns, self.accounts.steps)
        with self._listening():
            try:
                self.keeping.start()
                self._launcher = self._make_launcher()
                self._start_worker()
                while self.outcome is None:
                    self._wait()
                    self._hear_signals()
                    self._hear_launcher()
                    self._hear_worker()
                    self._hear_keeper()
                    if self.outcome is None:
                        self._look()
                        self._tick()
            except HoldfastError as error:
                self._save_last()
                self._end("FAILED", error.exit_code, error)
            finally:
                self._close()
        assert self.outcome is not None
        return self.outcome

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Signals become entries in a list; the wake-up socket ends the wait at once."""
        self._wake.setblocking(False)
        self._waker.setblocking(False)

        def note(number: int, _frame: FrameType | None) -> None:
            self._signals.append(number)

        ignored = getattr(signal, "SIGHUP", None)  # as nohup and a detached start leave it
        wanted = [each for each in _SIGNALS if each != ignored or signal.getsignal(each) is not signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in wanted}
        wake_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wake_before)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _wait(self) -> None:
        sources: list[Any] = [self._wake]
        if self._launcher is not None:
            sources += self._launcher.channels
        if self.worker is not None and not self.worker.gone:
            if not self.worker.deaf:
                sources.append(self.worker.channel)
            if self.worker.pidfd is not None:
                sources.append(self.worker.pidfd)
        if self.keeping.channel is not None:
            sources.append(self.keeping.channel)
        patience = QUICK if self._crisis is not None or (self.worker and self.worker.gone) else TICK
        ready, _, _ = select.select(sources, [], [], max(0.001, min(patience, self._limit_in)))
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
        if self.worker is not None and self.worker.pidfd in ready and not self.worker.gone:
            self.worker.gone = True
            self._exit_deadline = time.monotonic() + 2.0

    # -- starting ------------------------------------------------------------------------------------------

    def _make_launcher(self) -> Launcher:
        env = dict(self.plan.rungs[self.rung].env)
        if self._portable:
            return launch.SpawnLauncher(env, self.run_folder.path / "slots")
        return launch.NurseryLauncher(env, self.plan.preload)

    def _start_worker(self, move: Move | None = None) -> None:
        self._move = move
        assert self._launcher is not None
        self._said = {}
        self._oom_kills = process.memory_kills()
        self.teller.worker_begins()
        rung = self.plan.rungs[self.rung]
        newest = self.memory.newest()
        config = {
            "generation": self.generation,
            "name": self.run_folder.name,
            "folder": str(self.run_folder.path.resolve()),
            "script": str(self.plan.script),
            "argv": self.plan.argv,
            "arguments": self.plan.arguments,
            "settings": self.settings.to_json(),
            "rungs": [each.to_json() for each in self.plan.rungs],
            "rung": self.rung,
            "seed": self.plan.seed,
            "threads": self.plan.threads,
            "pieces": move.pieces if move else 1,
            "cpu_batch": move is not None and move.action is Action.CPU_BATCH,
            "chaos": self.plan.chaos or chaos.from_environment(),
            "scratch": str(self.scratch.path),
            "pids": self._pids(),
            "checkpoint": str(self.plan.resume.state) if self.plan.resume and newest is None else None,
        }
        self.worker = self._launcher.start(config, self.memory.arenas)
        step = newest.step if newest else (self.plan.resume.step if self.plan.resume else 0)
        self.accounts.on_device(rung.device, step)
        self.generation += 1
        self.keeping.tell_board(self.worker.board)
        self.run_folder.update_info(generations=self.generation, accounts=self.accounts.to_json())

    def _pids(self) -> dict[str, int | None]:
        """Who is who, for the chaos kit: it ends only processes of its own run."""
        nursery = self._launcher.pid if self._launcher else None
        return {"supervisor": os.getpid(), "keeper": self.keeping.pid, "nursery": nursery}

    # -- hearing -------------------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._stopping is None:
                self._ask_to_stop(number)
            elif number in _URGENT:
                self._stop_at_once(number)

    def _hurried(self) -> bool:
        """During the last save: has somebody asked, for the second time, not to wait any longer?"""
        urgent = sum(number in _URGENT for number in self._signals)
        return urgent > (0 if self._stopping is not None else 1)

    def _hear_launcher(self) -> None:
        if self._launcher is None:
            return
        try:
            for note in self._launcher.poll():
                self.teller.emit("note", text=note)
        except NurseryDied:
            self._nursery_died()
        except CannotFork as error:
            self.teller.emit("note", text=f"workers are spawned instead of forked: {error}")
            self._launcher.close()
            self._launcher = launch.SpawnLauncher(dict(self.plan.rungs[self.rung].env), self.run_folder.path / "slots")
            self._drop_worker()
            self._start_worker(self._move)

    def _hear_worker(self) -> None:
        worker = self.worker
        if worker is None:
            return
        try:
            for message in worker.channel.pending():
                self._heed(worker, message)
        except (Closed, OSError, ValueError):
            worker.deaf = True  # its end is closed: that stays readable, and only its death is left to notice
            if worker.pidfd is None and not worker.gone and worker.pid and not process.exists(worker.pid):
                worker.gone = True

    def _heed(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        kind = message.pop("kind", "")
        if kind == "arena":
            self._give_slots(worker, int(message["capacity"]))
        elif kind == "started":
            self._set_state("RUNNING")
            self.teller.emit("worker", generation=worker.generation, **message)
            if self._launcher is not None:
                self._launcher.warm()
        elif kind == "log":
            self.teller.log(int(message["step"]), int(message["epoch"]), message["values"])
        elif kind == "epoch":
            self._epoch(message)
        elif kind == "fault":
            self._fault_in_process(message)
        elif kind == "recovered":
            self.teller.emit("recovered", **message)
        elif kind == "note":
            self.teller.emit("note", **message)
        elif kind in ("done", "stopped", "failed", "refused", "lost"):
            self._said = {"kind": kind, **message}

    def _give_slots(self, worker: WorkerProcess, capacity: int) -> None:
        try:
            arena = self.memory.grow(capacity)
        except UserError as error:
            worker.channel.send({"error": True, **error.to_json()})
            return
        if worker.spawned:
            worker.channel.send({"paths": launch.slot_paths(arena)})
        else:
            worker.channel.send({"where": arena.where, "slots": len(arena.slots)}, arena.fds)
        self.keeping.tell_arenas()

    def _fault_in_process(self, message: dict[str, Any]) -> None:
        """The worker mended it by itself; it counts, and is told, like any other."""
        fault, move = Fault.from_json(message["fault"]), Move.from_json(message["move"])
        self.accounts.fault(fault.kind.value)
        self.history.append(Past(fault, move, self.rung))
        self.run_folder.update_info(accounts=self.accounts.to_json())
        folder = evidence.collect(self.run_folder, fault, move, self._read_board(), "", {}, "")
        self.teller.emit_fault(fault, move, folder)

    def _epoch(self, message: dict[str, Any]) -> None:
        best, self.teller.best_due = self.teller.best_due, False
        sequence = message.pop("sequence", None)
        self.teller.emit("epoch", **message, best=best, device=self.device)
        due = self.settings.checkpoint.at_epochs and time.monotonic() - self.keeping.last_wish >= MIN_EPOCH_SAVE
        if best:
            self.keeping.wish("epoch", weights=["best"], checkpoint=due, sequence=sequence)
            return
        self.memory.let_go(sequence)
        if due:
            self.keeping.wish("epoch")

    # -- looking -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Has the worker ended, has it gone silent, has it committed?"""
        self._limit_in = TICK
        worker = self.worker
        if worker is None:
            return
        self._notice_commit()
        if worker.gone:
            if worker.exit_code is not None or time.monotonic() > self._exit_deadline:
                self._worker_ended(worker)
            return
        beat = worker.board.read()
        if worker.pid == 0 or beat.pid == 0:
            self._look_at_birth(worker, beat)
            return
        stretch = self._stretch.get(beat.at, 1.0)
        limit = allowed_silence(beat, self.known, self.settings.watchdog, stretch=stretch)
        self._limit_in = limit - self._silence(beat)
        if self._limit_in <= 0:
            self._worker_hangs(worker, beat, limit)
        elif self._stopping is not None and time.monotonic() > self._stop_deadline:
            self._stop_without(worker, self._stopping)

    def _stop_without(self, worker: WorkerProcess, number: int) -> None:
        """It did not come to its next commit in time: what it committed last is what is kept."""
        if not self._end_worker(worker, gently=False):
            self._abandon(worker)
            self._account_for(worker)
            self._stopped(number)

    def _silence(self, beat: Beat) -> float:
        """The worker's silence while we were there to hear it: if all of us were paused, nobody hung."""
        now = time.monotonic()
        if now - self._last_look > PAUSE:
            self._heard_since = now
        self._last_look = now
        return min(beat.silence, now - self._heard_since)

    def _look_at_birth(self, worker: WorkerProcess, beat: Beat) -> None:
        """A fork takes milliseconds once torch is there, unless the nursery hangs in a module it imports ahead."""
        assert self._launcher is not None
        ready = self._launcher.ready
        if ready is None:
            if time.monotonic() - worker.started > self.settings.watchdog.setup:
                raise InternalError("no worker could be started", cause="the nursery gave no sign of life")
            return
        waited = time.monotonic() - max(worker.started, ready)
        if waited <= self.settings.watchdog.first_step:
            return
        if worker.pid:
            self._worker_hangs(worker, beat, self.settings.watchdog.first_step)
        else:
            self.plan.preload = []
            self._nursery_died(f"the nursery gave no sign of life for {waited:.0f} s")

    def _notice_commit(self) -> None:
        """The first commit of a new worker ends the crisis its predecessor left."""
        newest = self.memory.newest()
        if newest is None:
            return
        if self.memory.drop_outgrown():
            self.keeping.tell_arenas()
        if newest.step > self.accounts.steps:
            self.teller.rate.note(newest.step)
            if self.history:
                past = self.history[-1]
                committed = past.committed + newest.step - self.accounts.steps
                self.history[-1] = dataclasses.replace(past, committed=committed)
            self.accounts.steps = newest.step
        crisis = self._crisis
        if crisis is not None and newest.generation == self.generation - 1 and newest.sequence > crisis.sequence:
            seconds = time.monotonic() - crisis.since
            lost_s = (newest.time_ns - crisis.last_commit_ns) / 1e9
            self.accounts.recovered(seconds, lost_s)
            self._crisis = None
            self.teller.emit("recovered", step=newest.step, seconds=round(seconds, 3), lost_s=round(lost_s, 3))
            self._set_state("RUNNING")

    def _worker_hangs(self, worker: WorkerProcess, beat: Beat, limit: float) -> None:
        """Silent for too long: keep its stacks, end it, and let the ladder decide."""
        info = process.inspect(worker.pid)
        fault = Fault(
            Kind.HANG,
            device=self.device,
            step=beat.at,
            phase=beat.phase.label,
            message=f"silent for {beat.silence:.1f} s in {beat.phase.label}, allowed {limit:.1f} s",
            evidence={
                "silence_s": round(beat.silence, 3),
                "limit_s": round(limit, 3),
                "process_state": info.state if info else None,
            },
        )
        self._stretch[beat.at] = 4.0 * self._stretch.get(beat.at, 1.0)
        path = self.run_folder.path / f"stacks-{worker.generation}.txt"
        stacks = evidence.ask_for_stacks(worker.pid, path, native=True) if self.settings.run.stacks else {}
        dead = self._end_worker(worker, gently=True)
        if not dead:
            self._abandon(worker)
        self._after_death(worker, fault, stacks)

    def _worker_ended(self, worker: WorkerProcess) -> None:
        """It is gone: what did it say, and if nothing, what does its exit status say?"""
        self._hear_worker()
        process.send_group(worker.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        self._notice_commit()
        said = self._said
        if said.get("kind") == "done":
            self._finished(worker)
        elif said.get("kind") == "failed":
            self._account_for(worker)
            self._failed(said)
        elif said.get("kind") == "refused":
            self._account_for(worker)
            self._save_last()
            self._end_with(from_json(said))
        elif said.get("kind") == "stopped" or self._stopping is not None:
            self._account_for(worker)
            self._stopped(self._stopping or signal.SIGTERM)
        elif said.get("kind") == "lost":
            self._after_death(worker, Fault.from_json(said["fault"]), {})
        else:
            beat = worker.board.read()
            fault = classify_exit(
                exitcode=worker.exit_code if worker.exit_code is not None else -9,
                last_words=self.teller.last_words(),
                oom_kills=process.memory_kills() - self._oom_kills,
                device=self.device,
            ).at(step=beat.at, phase=beat.phase.label)
            self._after_death(worker, fault, {})

    def _after_death(self, worker: WorkerProcess, fault: Fault, stacks: dict[str, str]) -> None:
        """Count it, keep the evidence, ask the ladder, do what it says."""
        beat = worker.board.read()
        self.known = merge_known(self.known, beat)
        self._account_for(worker)
        self.accounts.fault(fault.kind.value)
        limits = Limits(tries=self.settings.retry.same_step, outside=self.settings.retry.without_progress)
        move = next_move(fault, self.history, self.plan.rungs, self.rung, limits=limits)
        self.history.append(Past(fault, move, self.rung))
        crash = self._crash_stack(worker.generation)
        folder = evidence.collect(self.run_folder, fault, move, beat, self.teller.last_words(), stacks, crash)
        self.teller.emit_fault(fault, move, folder)
        if self._stopping is not None:
            self._stopped(self._stopping)
        elif move.action is Action.GIVE_UP:
            self._gave_up(fault, move)
        elif move.action is Action.FAIL:
            self._save_last()
            hints = [f"`holdfast explain {fault.code}` says what this means", f"what was found is in {folder}"]
            error = ScriptFailed(fault.sentence(), cause=fault.cause(), saved=self._saved(), hints=hints)
            self._end_with(error)
        else:
            self._recover(move)

    def _recover(self, move: Move) -> None:
        """A new worker from the newest snapshot, on the rung the ladder chose."""
        if self.memory.session_numbers().get("at") == "end":  # it was lost after `train` had returned
            self._finish()
            return
        newest = self.memory.newest()
        committed = self.accounts.steps
        step = newest.step if newest else (self.plan.resume.step if self.plan.resume else 0)
        self.accounts.restored(committed, step)
        since = self._crisis.since if self._crisis else time.monotonic()
        commit_ns = self._crisis.last_commit_ns if self._crisis else (newest.time_ns if newest else time.time_ns())
        self._crisis = _Crisis(since, commit_ns, newest.sequence if newest else 0)
        self._set_state("RECOVERING")
        if move.rung != self.rung:
            self._change_rung(move.rung, step)
        self.memory.release_leases(keep=self.keeping.awaited)
        try:
            self._start_worker(move)
        except NurseryDied:
            self._nursery_died()

    def _change_rung(self, rung: int, step: int) -> None:
        before, after = self.plan.rungs[self.rung], self.plan.rungs[rung]
        self.rung = rung
        self.known = {}
        self.teller.emit("moved", step=step, device=after.device, before=before.label, after=after.label)
        if before.env != after.env and self._launcher is not None:
            self._launcher.close()
            self._launcher = self._make_launcher()

    def _nursery_died(self, message: str = "the nursery ended") -> None:
        """The nursery is gone and the kernel ended its worker: a new nursery, then a new worker."""
        if self._launcher is not None:
            self._launcher.close()
        worker = self.worker
        self._launcher = self._make_launcher()
        if worker is None or self.outcome is not None:
            return
        self._hear_worker()
        if worker.pid:
            self._end_worker(worker, gently=False)
        if self._said:  # it had come to its end by itself
            self._worker_ended(worker)
            return
        beat = worker.board.read()
        fault = Fault(Kind.NURSERY_DIED, step=beat.at, phase=beat.phase.label, message=message)
        self._after_death(worker, fault, {})

    # -- ending a worker -----------------------------------------------------------------------------------

    def _end_worker(self, worker: WorkerProcess, *, gently: bool) -> bool:
        """SIGTERM, SIGKILL to everything it started; False if it cannot be killed."""
        watchdog = self.settings.watchdog
        if gently:
            process.send_group(worker.pid, signal.SIGTERM)
            if self._await_death(worker, watchdog.term_grace):
                return True
        info = process.inspect(worker.pid)
        process.send_group(worker.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        grace = watchdog.kill_grace + (info.rss_bytes / (4 << 30) if info else 0.0)
        return self._await_death(worker, grace)

    def _await_death(self, worker: WorkerProcess, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(NurseryDied, CannotFork):
                if self._launcher is not None:
                    self._launcher.poll()
            if worker.gone or not process.exists(worker.pid) or _is_zombie(worker.pid):
                worker.gone = True
                process.send_group(worker.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
                return True
            time.sleep(0.005)
        return False

    def _abandon(self, worker: WorkerProcess) -> None:
        """It cannot be killed and may still write: its slots stay with it, the newest snapshot is copied."""
        self.teller.emit("abandoned", pid=worker.pid, text="the worker cannot be killed; the run goes on without it")
        self.memory.abandon()
        self.keeping.tell_arenas()

    def _account_for(self, worker: WorkerProcess) -> None:
        self.accounts.attempts += worker.board.read().attempts
        self.run_folder.update_info(accounts=self.accounts.to_json())
        self._drop_worker()

    def _drop_worker(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            self.teller.pump_output()
            worker.close()
            self.scratch.sweep()

    # -- stopping ------------------------------------------------------------------------------------------

    def _ask_to_stop(self, number: int) -> None:
        self._stopping = number
        self._stop_deadline = time.monotonic() + STOP_PATIENCE
        self.teller.emit("stopping", signal=signal.Signals(number).name, step=self.accounts.steps)
        worker = self.worker
        if worker is not None and worker.pid == 0 and not process.exists(worker.board.read().pid):
            self._drop_worker()  # not born yet: the nursery, which may still import torch, is ended with its wish
        if self.worker is None:
            self._stopped(number)
            return
        self.worker.board.request_stop()
        if self.worker.pid and self.worker.board.read().phase is Phase.SETUP:
            self._end_worker(self.worker, gently=True)  # there is no boundary to wait for

    def _stop_at_once(self, number: int) -> None:
        """The second signal: nothing is waited for; the last verified checkpoint is named."""
        self._at_once = True
        if self.worker is not None:
            if self.worker.pid:
                self._end_worker(self.worker, gently=False)
            self._account_for(self.worker)
        code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
        good, _ = checkpoint.newest_good(self.run_folder.path / "checkpoints")
        error = Stopped("stopped at once", saved=_named(good), hints=[self._resume_hint()])
        self._end("STOPPED", code, error)

    def _stopped(self, number: int) -> None:
        if not self._save_last():
            self._stop_at_once(self._signals[-1])
            return
        code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.RESUME_ME
        error = Stopped(f"stopped at step {self.accounts.steps}", saved=self._saved(), hints=[self._resume_hint()])
        self._end("STOPPED", code, error)

    def _saved(self) -> str | None:
        """What the keeper wrote last, for the error that ends the run."""
        saved = self.keeping.saved
        return f"step {saved['step']} in {saved['path']}" if saved else None

    def _resume_hint(self, flags: str = "") -> str:
        return f"go on with `holdfast resume {handle(self.run_folder)}{flags}`"

    # -- the end -------------------------------------------------------------------------------------------

    def _finished(self, worker: WorkerProcess) -> None:
        self._account_for(worker)
        self._finish()

    def _finish(self) -> None:
        if not self._save_last(weights=["final"]):
            self._stop_at_once(self._signals[-1])
        elif self.memory.newest() is not None and "weights_sha256" not in self.keeping.final:
            self._end_with(self._not_saved())
        else:
            self._end("FINISHED", ExitCode.OK, None)

    def _not_saved(self) -> GaveUp:
        """A run whose weights are nowhere is not finished, however well it trained."""
        return GaveUp(
            "training is over, but its result could not be saved",
            cause=self.keeping.problem or "the keeper ended again and again",
            saved=self._saved(),
            hints=[f"make room in {self.run_folder.path}", self._resume_hint()],
        )

    def _failed(self, said: dict[str, Any]) -> None:
        self.accounts.fault(Kind.USER_ERROR.value)
        self._save_last()
        error = ScriptFailed(
            f"{self.plan.script.name} raised {said['summary']}",
            cause=said.get("where"),
            saved=self._saved(),
            hints=[f"its traceback and output are in {self.run_folder.path / 'output.log'}"],
        )
        (self.run_folder.path / "traceback.txt").write_text(str(said.get("traceback", "")) + "\n")
        self._end("FAILED", ExitCode.NO, error)

    def _end_with(self, error: HoldfastError) -> None:
        state = "GAVE_UP" if isinstance(error, GaveUp) else "FAILED"
        self._end(state, error.exit_code, error)

    def _gave_up(self, fault: Fault, move: Move) -> None:
        self._save_last()
        tries = sum(past.fault.step == fault.step for past in self.history)
        saved = self._saved()
        self._end_with(
            GaveUp(
                f"gave up: {fault.sentence()}, {tries} times",
                cause=f"{fault.code}; {move.reason}",
                saved=f"{saved} (verified)" if saved else None,
                hints=[
                    *([] if self.plan.rungs[self.rung].on_cpu else [self._resume_hint(" --device cpu")]),
                    f"`holdfast explain {fault.code}` says what this means",
                    f"the worker's last words are in {self.run_folder.path / 'faults'}",
                ],
            )
        )

    def _end(self, state: str, code: int, error: HoldfastError | None) -> None:
        if self.outcome is not None:
            return
        if self.accounts.timeline:
            self.accounts.timeline[-1]["to_step"] = self.accounts.steps
        counted = self.memory.session_numbers()
        receipt = self.accounts.receipt(
            steps=self.accounts.steps,
            survived=state in ("FINISHED", "STOPPED"),
            skipped=int(counted.get("skipped", 0)),
            repeated=int(counted.get("repeated", 0)),
            sha256=self.keeping.final.get("weights_sha256") if state == "FINISHED" else None,
        )
        write_json(self.run_folder.path / "receipt.json", receipt)
        self.outcome = Outcome(state, int(code), error, receipt)
        self._set_state(
            state,
            exit_code=int(code),
            ended=utc_now(),
            accounts=self.accounts.to_json(),
            best=self.teller.best,
        )
        data = error.to_json() if error else {}
        self.teller.emit("end", state=state, exit_code=int(code), step=self.accounts.steps, error=data or None)

    def _close(self) -> None:
        """Leave nothing behind: no process, no descriptor, no memory."""
        self.teller.pump_output()
        if self.worker is not None:
            if self.worker.pid:
                self._end_worker(self.worker, gently=False)
            self._drop_worker()
        if self._launcher is not None:
            self._launcher.close()
        # Without an outcome something here failed: the keeper then saves what is in memory, as if we had been killed.
        patience = KEEPER_HURRY if self._at_once else KEEPER_PATIENCE
        self.keeping.close(patience=patience, save=self.outcome is None)
        self.memory.close()
        self.scratch.remove()
        self._wake.close()
        self._waker.close()
        for path in self.run_folder.path.glob("stacks-*.txt"):
            path.unlink(missing_ok=True)
        if self.outcome is None:
            self._set_state("CRASHED")

    # -- the keeper ----------------------------------------------------------------------------------------

    def _hear_keeper(self) -> None:
        try:
            self._note_saves(self.keeping.hear())
        except KeeperDied as died:
            self._keeper_died(died)

    def _note_saves(self, reports: list[Report]) -> None:
        for report in reports:
            if report.why is not None:
                self.teller.emit("not_saved", text=report.why, reason=report.reason)
            elif report.saved is not None and "path" in report.saved:
                self._keeper_deaths = 0
                saved, seconds = report.saved, round(report.seconds, 3)
                self.teller.emit("checkpoint", step=saved["step"], path=saved["path"], seconds=seconds)

    def _keeper_died(self, died: KeeperDied) -> None:
        """Checkpoints stop, training does not: start another keeper."""
        self._keeper_deaths += 1
        fault = Fault(Kind.KEEPER_DIED, message=str(died), evidence={"status": died.code})
        move = Move(Action.REPLACE, self.rung, reason="a new keeper; training went on")
        self.accounts.fault(fault.kind.value)
        self.memory.release_leases(keep=self.keeping.awaited)
        if self._keeper_deaths <= self.settings.retry.without_progress:
            self.keeping.start()
        folder = evidence.collect(self.run_folder, fault, move, self._read_board(), "", {}, "")
        self.teller.emit_fault(fault, move, folder)

    def _save_last(self, weights: list[str] | None = None) -> bool:
        """The state as it is now, on disk and verified, before the run ends. False if a signal cut it short."""
        for _ in range(3):
            try:
                self._note_saves(self.keeping.finish(weights, hurry=self._hurried))
                return self.keeping.idle or not self._hurried()
            except KeeperDied as died:
                self._keeper_died(died)
        return True

    # -- every now and then --------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        self.teller.pump_output()
        beat = self._read_board()
        if beat is not None and now - self._last_beat >= BEAT_EVERY:
            self._last_beat = now
            self.teller.beat(beat, self.device, self.accounts)
        if self.keeping.stuck():
            self.keeping.kill()
        if now - self.keeping.last_wish >= self.settings.checkpoint.every and self.memory.newest() is not None:
            self.keeping.wish("time")
        else:
            self.keeping.send()

    def _set_state(self, state: str, **more: Any) -> None:
        self.run_folder.update_info(state=state, device=self.device, **more)

    def _read_board(self) -> Beat | None:
        return self.worker.board.read() if self.worker is not None else None

    @property
    def device(self) -> str:
        return self.plan.rungs[self.rung].device

    def _crash_stack(self, generation: int) -> str:
        """What faulthandler wrote when the worker crashed."""
        path = self.run_folder.path / f"stacks-{generation}.txt"
        with contextlib.suppress(OSError):
            text = path.read_text(errors="replace")
            path.unlink()
            return text
        return ""


def _is_zombie(pid: int) -> bool:
    info = process.inspect(pid)
    return info is not None and info.state == "Z"


def _named(good: checkpoint.Checkpoint | None) -> str | None:
    return f"step {good.step} in {good.path} (verified)" if good else "nothing was saved yet"
