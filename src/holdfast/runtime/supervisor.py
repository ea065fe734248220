"""The supervisor: starts the worker, watches it, and decides what follows when it ends. No torch here.

    outcome = Supervisor(run, plan, settings, face).run()

One loop, one thread: wait for something to happen, hear what the processes say, look at what they do.
Whatever touches a device is in a child; the state is in slots this process owns, so no child's death loses it.
Every decision is the ladder's, every limit the watchdog's; this file only carries them out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.errors import ExitCode, GaveUp, HoldfastError, InternalError, ScriptFailed, Stopped, UserError, from_json
from holdfast.events import Event, utc_now
from holdfast.runfolder import RunFolder, write_json
from holdfast.runtime import checkpoint, evidence, launch, layout, process
from holdfast.runtime.accounts import Accounts
from holdfast.runtime.board import Beat, Phase, PhaseTimes
from holdfast.runtime.channel import Channel, Closed
from holdfast.runtime.faults import Fault, Kind, classify_exit
from holdfast.runtime.ladder import Action, Limits, Move, Past, Rung, next_move
from holdfast.runtime.launch import CannotFork, Launcher, NurseryDied, WorkerProcess
from holdfast.runtime.slots import HEADER, Arena, Commit, no_room
from holdfast.runtime.watchdog import allowed_silence, merge_known
from holdfast.settings import Settings
from holdfast.testing import chaos

TICK = 0.1
BEAT_EVERY = 1.0
STOP_PATIENCE = 30.0
"""Seconds a worker has to reach its next commit when the run is asked to stop."""
MIN_EPOCH_SAVE = 5.0
"""Epochs shorter than this do not each get a checkpoint."""
SHARE = 0.5
"""Of the memory that is free, the part snapshots may take when nobody said otherwise."""
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]


class Face:
    """Who shows the run to somebody. This one shows nothing; the command line has others."""

    def event(self, event: Event) -> None: ...
    def beat(self, info: dict[str, Any]) -> None: ...
    def output(self, text: str) -> None: ...


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
    committed: int


class Supervisor:
    """One run, from its first worker to its receipt."""

    def __init__(self, run: RunFolder, plan: Plan, settings: Settings, face: Face | None = None) -> None:
        self.run_folder = run
        self.plan = plan
        self.settings = settings
        self.face = face or Face()
        self.rung = plan.rung
        self.accounts = Accounts.from_json(run.info.get("accounts") or {})
        self.history: list[Past] = []
        self.known: dict[Phase, PhaseTimes] = {}
        self.arenas: list[Arena] = []
        self.worker: WorkerProcess | None = None
        self.outcome: Outcome | None = None
        self.generation = int(run.info.get("generations", 0))
        self._portable = process.portable() or settings.run.portable
        self._launcher: Launcher | None = None
        self._keeper: tuple[subprocess.Popen[bytes], Channel] | None = None
        self._keeper_fails = 0
        self._saving: dict[str, Any] | None = None
        self._wishes: list[dict[str, Any]] = []
        self._signals: list[int] = []
        self._wake, self._waker = socket.socketpair()
        self._said: dict[str, Any] | None = None
        self._stopping: int | None = None
        self._stop_deadline = 0.0
        self._crisis: _Crisis | None = None
        self._stretch: dict[int, float] = {}
        self._output_at = 0
        self._worker_output_at = 0
        self._oom_kills = 0
        self._saved: dict[str, Any] = {}
        self._last_save = time.monotonic()
        self._last_beat = 0.0
        self._rate = _Rate()
        self._best: tuple[str, float, int] | None = None
        self._best_due = False
        self._exit_wait = 0.0
        self._final: dict[str, Any] | None = None

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until the run is over, whatever happens to the worker."""
        self._set_state("STARTING", pid=os.getpid(), boot_id=process.boot_id())
        with self._listening():
            try:
                self._start_keeper()
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

        before = {number: signal.signal(number, note) for number in _SIGNALS}
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
            sources.append(self.worker.channel)
            if self.worker.pidfd is not None:
                sources.append(self.worker.pidfd)
        if self._keeper is not None:
            sources.append(self._keeper[1])
        ready, _, _ = select.select(sources, [], [], 0.005 if self.worker and self.worker.gone else TICK)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
        if self.worker is not None and self.worker.pidfd in ready and not self.worker.gone:
            self.worker.gone = True
            self._exit_wait = time.monotonic() + 2.0

    # -- starting ------------------------------------------------------------------------------------------

    def _make_launcher(self) -> Launcher:
        env = dict(self.plan.rungs[self.rung].env)
        if self._portable:
            return launch.SpawnLauncher(env, self.run_folder.path / "slots")
        return launch.NurseryLauncher(env, self.plan.preload)

    def _start_worker(self, pieces: int = 1) -> None:
        assert self._launcher is not None
        self._said = None
        self._oom_kills = process.memory_kills()
        self._worker_output_at = self._output_size()
        rung = self.plan.rungs[self.rung]
        newest = self._newest()
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
            "pieces": pieces,
            "chaos": self.plan.chaos or chaos.from_environment(),
            "pids": self._pids(),
            "checkpoint": str(self.plan.resume.state) if self.plan.resume and newest is None else None,
        }
        self.worker = self._launcher.start(config, self.arenas)
        step = newest.step if newest else (self.plan.resume.step if self.plan.resume else 0)
        self.accounts.on_device(rung.device, step)
        self.generation += 1
        self.run_folder.update_info(generations=self.generation)

    def _pids(self) -> dict[str, int | None]:
        """Who is who, for the chaos kit: it ends only processes of its own run."""
        keeper = self._keeper[0].pid if self._keeper else None
        nursery = self._launcher.pid if self._launcher else None
        return {"supervisor": os.getpid(), "keeper": keeper, "nursery": nursery}

    # -- hearing -------------------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._stopping is None:
                self._ask_to_stop(number)
            else:
                self._stop_at_once(number)

    def _hear_launcher(self) -> None:
        if self._launcher is None:
            return
        try:
            for note in self._launcher.poll():
                self._emit("note", text=note)
        except NurseryDied:
            self._nursery_died()
        except CannotFork as error:
            self._emit("note", text=f"workers are spawned instead of forked: {error}")
            self._launcher.close()
            self._launcher = launch.SpawnLauncher(dict(self.plan.rungs[self.rung].env), self.run_folder.path / "slots")
            self._drop_worker()
            self._start_worker()

    def _hear_worker(self) -> None:
        worker = self.worker
        if worker is None:
            return
        try:
            for message in worker.channel.pending():
                self._heed(worker, message)
        except (Closed, OSError, ValueError):
            if worker.pidfd is None and not worker.gone and worker.pid and not process.exists(worker.pid):
                worker.gone = True

    def _heed(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        kind = message.pop("kind", "")
        if kind == "arena":
            self._give_arena(worker, int(message["capacity"]))
        elif kind == "started":
            self._set_state("RUNNING")
            self._emit("worker", generation=worker.generation, **message)
            if self._launcher is not None:
                self._launcher.warm()
        elif kind == "log":
            self._log(message)
        elif kind == "epoch":
            self._epoch(message)
        elif kind == "fault":
            self._fault_in_process(message)
        elif kind == "recovered":
            self._emit("recovered", **message)
        elif kind == "note":
            self._emit("note", **message)
        elif kind in ("done", "stopped", "failed", "refused", "lost"):
            self._said = {"kind": kind, **message}

    def _fault_in_process(self, message: dict[str, Any]) -> None:
        """The worker mended it by itself; it counts, and is told, like any other."""
        fault, move = Fault.from_json(message["fault"]), Move.from_json(message["move"])
        self.accounts.fault(fault.kind.value)
        self.history.append(Past(fault, move, self.rung))
        folder = evidence.collect(self.run_folder, fault, move, self._read_board(), "", {}, "")
        self._emit_fault(fault, move, folder)

    def _log(self, message: dict[str, Any]) -> None:
        values: dict[str, Any] = message["values"]
        self.run_folder.append_metrics(
            {"time": utc_now(), "step": message["step"], "epoch": message["epoch"], **values}
        )
        self._emit("log", step=message["step"], epoch=message["epoch"], values=values)
        self._judge_best(values, int(message["step"]))

    def _judge_best(self, values: dict[str, Any], step: int) -> None:
        name = self.settings.checkpoint.best
        if name == "none":
            return
        if name == "auto":
            name = self._best[0] if self._best else next((key for key in values if key.startswith("val")), "")
        value = values.get(name)
        if not isinstance(value, (int, float)):
            return
        smaller = any(word in name for word in ("loss", "error", "mse", "mae"))
        if self._best is None or (value < self._best[1] if smaller else value > self._best[1]):
            self._best = (name, float(value), step)
            self._best_due = True

    def _epoch(self, message: dict[str, Any]) -> None:
        best, self._best_due = self._best_due, False
        self._emit("epoch", **message, best=best, device=self.plan.rungs[self.rung].device)
        due = self.settings.checkpoint.at_epochs and time.monotonic() - self._last_save >= MIN_EPOCH_SAVE
        if best or due:
            self._wish("epoch", weights=["best"] if best else [], checkpoint=due)

    # -- looking -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Has the worker ended, has it gone silent, has it committed?"""
        worker = self.worker
        if worker is None:
            return
        self._notice_commit()
        if worker.gone:
            if worker.exit_code is not None or time.monotonic() > self._exit_wait:
                self._worker_ended(worker)
            return
        beat = worker.board.read()
        if worker.pid == 0 or beat.pid == 0:
            self._look_at_birth(worker)
            return
        stretch = self._stretch.get(beat.attempt, 1.0)
        limit = allowed_silence(beat, self.known, self.settings.watchdog, stretch=stretch)
        if beat.silence > limit:
            self._worker_hangs(worker, beat, limit)
        elif self._stopping is not None and time.monotonic() > self._stop_deadline:
            self._end_worker(worker, gently=False)

    def _look_at_birth(self, worker: WorkerProcess) -> None:
        if time.monotonic() - worker.started > self.settings.watchdog.setup:
            raise InternalError("no worker could be started", cause="the nursery gave no sign of life")

    def _notice_commit(self) -> None:
        """The first commit of a new worker ends the crisis its predecessor left."""
        newest = self._newest()
        if newest is None:
            return
        if newest.step > self.accounts.steps:
            self._rate.note(newest.step)
            if self.history:
                past = self.history[-1]
                committed = past.committed + newest.step - self.accounts.steps
                self.history[-1] = dataclasses.replace(past, committed=committed)
            self.accounts.steps = newest.step
        crisis = self._crisis
        if crisis is not None and newest.generation == self.generation - 1 and newest.step > crisis.committed:
            seconds = time.monotonic() - crisis.since
            lost_s = (newest.time_ns - crisis.last_commit_ns) / 1e9
            self.accounts.recovered(seconds, lost_s)
            self._crisis = None
            self._emit("recovered", step=newest.step, seconds=round(seconds, 3), lost_s=round(lost_s, 3))
            self._set_state("RUNNING")

    def _worker_hangs(self, worker: WorkerProcess, beat: Beat, limit: float) -> None:
        """Silent for too long: keep its stacks, end it, and let the ladder decide."""
        info = process.inspect(worker.pid)
        device = self.plan.rungs[self.rung].device
        fault = Fault(
            Kind.HANG,
            device=device,
            step=beat.attempt or None,
            phase=beat.phase.label,
            message=f"silent for {beat.silence:.1f} s in {beat.phase.label}, allowed {limit:.1f} s",
            evidence={
                "silence_s": round(beat.silence, 3),
                "limit_s": round(limit, 3),
                "process_state": info.state if info else None,
            },
        )
        self._stretch[beat.attempt] = 4.0 * self._stretch.get(beat.attempt, 1.0)
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
        said = self._said or {}
        device = self.plan.rungs[self.rung].device
        if said.get("kind") == "done":
            self._finished(worker)
        elif said.get("kind") == "stopped" or self._stopping is not None:
            self._account_for(worker)
            self._stopped(self._stopping or signal.SIGTERM)
        elif said.get("kind") == "failed":
            self._account_for(worker)
            self._failed(said)
        elif said.get("kind") == "refused":
            self._account_for(worker)
            self._end_with(from_json(said))
        elif said.get("kind") == "lost":
            self._after_death(worker, Fault.from_json(said["fault"]), {})
        else:
            beat = worker.board.read()
            fault = classify_exit(
                exitcode=worker.exit_code if worker.exit_code is not None else -9,
                last_words=self._last_words(),
                oom_kills=process.memory_kills() - self._oom_kills,
                device=device,
            ).at(step=beat.attempt or None, phase=beat.phase.label)
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
        folder = evidence.collect(self.run_folder, fault, move, beat, self._last_words(), stacks, crash)
        self._emit_fault(fault, move, folder)
        if self._stopping is not None:
            self._stopped(self._stopping)
        elif move.action is Action.GIVE_UP:
            self._gave_up(fault)
        elif move.action is Action.FAIL:
            self._end_with(ScriptFailed(fault.sentence(), cause=fault.cause()))
        else:
            self._recover(move)

    def _recover(self, move: Move) -> None:
        """A new worker from the newest snapshot, on the rung the ladder chose."""
        newest = self._newest()
        committed = self.accounts.steps
        step = newest.step if newest else (self.plan.resume.step if self.plan.resume else 0)
        self.accounts.restored(committed, step)
        since = self._crisis.since if self._crisis else time.monotonic()
        commit_ns = self._crisis.last_commit_ns if self._crisis else (newest.time_ns if newest else time.time_ns())
        self._crisis = _Crisis(since, commit_ns, step)
        self._set_state("RECOVERING")
        if move.rung != self.rung:
            self._change_rung(move.rung, step)
        for arena in self.arenas:
            arena.release_all()
        try:
            self._start_worker(move.pieces)
        except NurseryDied:
            self._nursery_died()

    def _change_rung(self, rung: int, step: int) -> None:
        before, after = self.plan.rungs[self.rung], self.plan.rungs[rung]
        self.rung = rung
        self.known = {}
        self._emit("moved", step=step, device=after.device, before=before.label, after=after.label)
        if before.env != after.env and self._launcher is not None:
            self._launcher.close()
            self._launcher = self._make_launcher()

    def _nursery_died(self) -> None:
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
        if self._said is not None and self._said["kind"] == "done":
            self._finished(worker)
            return
        beat = worker.board.read()
        fault = Fault(Kind.NURSERY_DIED, step=beat.attempt or None, phase=beat.phase.label, message="the nursery ended")
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
        """It cannot be killed and may still write: its slots are given up with it, the newest snapshot is copied."""
        self._emit("abandoned", pid=worker.pid, text="the worker cannot be killed; the run goes on without it")
        newest = self._newest_slot()
        old, self.arenas = self.arenas, []
        if newest is not None:
            arena, commit = newest
            fresh = self._make_arena(arena.capacity)
            target = fresh.slots[0]
            target.begin(commit.sequence)
            target.payload(commit.size)[:] = arena.slots[commit.slot].payload(commit.size)
            target.commit(
                sequence=commit.sequence, step=commit.step, generation=commit.generation, size=commit.size
            )
            self.arenas = [fresh]
        for arena in old:
            arena.close()
        self._tell_keeper_arenas()

    def _account_for(self, worker: WorkerProcess) -> None:
        self.accounts.attempts += worker.board.read().attempts
        self.run_folder.update_info(accounts=self.accounts.to_json())
        self._drop_worker()

    def _drop_worker(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            self._pump_output()
            worker.close()

    # -- stopping ------------------------------------------------------------------------------------------

    def _ask_to_stop(self, number: int) -> None:
        self._stopping = number
        self._stop_deadline = time.monotonic() + STOP_PATIENCE
        self._emit("stopping", signal=signal.Signals(number).name, step=self.accounts.steps)
        worker = self.worker
        if worker is None:
            self._stopped(number)
            return
        worker.board.request_stop()
        if worker.pid and worker.board.read().phase is Phase.SETUP:
            self._end_worker(worker, gently=True)  # nothing is committed yet: there is no boundary to wait for

    def _stop_at_once(self, number: int) -> None:
        """The second signal: nothing is waited for; the last verified checkpoint is named."""
        if self.worker is not None:
            if self.worker.pid:
                self._end_worker(self.worker, gently=False)
            self._account_for(self.worker)
        code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
        good, _ = checkpoint.newest_good(self.run_folder.path / "checkpoints")
        error = Stopped("stopped at once", saved=_named(good), hints=[self._resume_hint()])
        self._end("STOPPED", code, error)

    def _stopped(self, number: int) -> None:
        self._save_last()
        code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.RESUME_ME
        saved = self._saved.get("path")
        error = Stopped(
            f"stopped at step {self.accounts.steps}",
            saved=f"step {self._saved['step']} in {saved}" if saved else None,
            hints=[self._resume_hint()],
        )
        self._end("STOPPED", code, error)

    def _resume_hint(self) -> str:
        return f"go on with `holdfast resume {self.run_folder.name}`"

    # -- the end -------------------------------------------------------------------------------------------

    def _finished(self, worker: WorkerProcess) -> None:
        self._account_for(worker)
        self._save_last(weights=["final"])
        self._end("FINISHED", ExitCode.OK, None)

    def _failed(self, said: dict[str, Any]) -> None:
        self.accounts.fault(Kind.USER_ERROR.value)
        self._save_last()
        saved = self._saved.get("path")
        error = ScriptFailed(
            f"{self.plan.script.name} raised {said['summary']}",
            saved=f"step {self._saved['step']} in {saved}" if saved else None,
            hints=[f"its traceback and output are in {self.run_folder.path / 'output.log'}"],
        )
        (self.run_folder.path / "traceback.txt").write_text(str(said.get("traceback", "")) + "\n")
        self._end("FAILED", ExitCode.NO, error)

    def _end_with(self, error: HoldfastError) -> None:
        self._save_last()
        state = {GaveUp: "GAVE_UP"}.get(type(error), "FAILED")
        self._end(state, error.exit_code, error)

    def _gave_up(self, fault: Fault) -> None:
        self._save_last()
        device = self.plan.rungs[self.rung].device
        tries = sum(past.fault.step == fault.step for past in self.history)
        saved = self._saved.get("path")
        self._end_with_saved(
            GaveUp(
                f"{device} failed {tries} times at the same step and no other device is left",
                cause=f"{fault.code}, {fault.sentence()}",
                saved=f"step {self._saved['step']} in {saved} (verified)" if saved else None,
                hints=[
                    f"continue elsewhere with `holdfast resume {self.run_folder.name} --device cpu`",
                    f"`holdfast explain {fault.code}` says what this means",
                    f"the worker's last words are in {self.run_folder.path / 'faults'}",
                ],
            )
        )

    def _end_with_saved(self, error: HoldfastError) -> None:
        self._end("GAVE_UP", error.exit_code, error)

    def _end(self, state: str, code: int, error: HoldfastError | None) -> None:
        if self.outcome is not None:
            return
        if self.accounts.timeline:
            self.accounts.timeline[-1]["to_step"] = self.accounts.steps
        skipped, repeated = self._samples()
        receipt = self.accounts.receipt(
            steps=self.accounts.steps,
            survived=state == "FINISHED",
            skipped=skipped,
            repeated=repeated,
            sha256=(self._final or {}).get("weights_sha256"),
        )
        write_json(self.run_folder.path / "receipt.json", receipt)
        self.outcome = Outcome(state, int(code), error, receipt)
        best = None if self._best is None else {"name": self._best[0], "value": self._best[1], "step": self._best[2]}
        self._set_state(state, exit_code=int(code), ended=utc_now(), accounts=self.accounts.to_json(), best=best)
        data = error.to_json() if error else {}
        self._emit("end", state=state, exit_code=int(code), step=self.accounts.steps, **{"error": data or None})

    def _samples(self) -> tuple[int, int]:
        """What the loaders themselves counted, from the newest snapshot."""
        newest = self._newest_slot()
        if newest is None:
            return 0, 0
        arena, commit = newest
        session = layout.read_meta(arena.slots[commit.slot].payload(commit.size)).get("session", {})
        return int(session.get("skipped", 0)), int(session.get("repeated", 0))

    def _close(self) -> None:
        """Leave nothing behind: no process, no descriptor, no memory."""
        self._pump_output()
        if self.worker is not None:
            if self.worker.pid:
                self._end_worker(self.worker, gently=False)
            self._drop_worker()
        if self._launcher is not None:
            self._launcher.close()
        if self._keeper is not None:
            popen, channel = self._keeper
            with contextlib.suppress(Closed):
                channel.send({"quit": True})
            channel.close()
            try:
                popen.wait(60.0)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
        for arena in self.arenas:
            arena.close()
        self._wake.close()
        self._waker.close()
        for path in self.run_folder.path.glob("stacks-*.txt"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.run_folder.path / "slots", ignore_errors=True)
        if self.outcome is None:
            self._set_state("CRASHED")

    # -- slots ---------------------------------------------------------------------------------------------

    def _newest_slot(self) -> tuple[Arena, Commit] | None:
        found = [(arena, commit) for arena in self.arenas if (commit := arena.newest()) is not None]
        return max(found, key=lambda pair: pair[1].sequence, default=None)

    def _newest(self) -> Commit | None:
        found = self._newest_slot()
        return None if found is None else found[1]

    def _give_arena(self, worker: WorkerProcess, capacity: int) -> None:
        """The worker's state needs slots of this size. Older slots stay until the new ones hold a commit."""
        try:
            arena = self._make_arena(capacity)
        except UserError as error:
            worker.channel.send({"error": True, **error.to_json()})
            return
        self._drop_old_arenas()
        self.arenas.append(arena)
        if self._portable:
            worker.channel.send({"paths": launch.slot_paths(arena)})
        else:
            worker.channel.send({"where": arena.where, "slots": len(arena.slots)}, arena.fds)
        self._tell_keeper_arenas()

    def _drop_old_arenas(self) -> None:
        """Keep only the arena with the newest commit."""
        newest = self._newest_slot()
        for arena in [arena for arena in self.arenas if newest is None or arena is not newest[0]]:
            self.arenas.remove(arena)
            arena.close()

    def _make_arena(self, capacity: int) -> Arena:
        wanted = self.settings.snapshot
        need = wanted.slots * (capacity + HEADER)
        folder = self.run_folder.path / "slots"
        why = self._no_memory_for(need)
        if not self._portable and wanted.where != "file" and why is None:
            try:
                return Arena.create(capacity, slots=wanted.slots)
            except OSError as error:
                why = str(error.strerror or error)
        if wanted.where == "memory" and why is not None:
            raise no_room(need, f"in memory ({why})")
        free = shutil.disk_usage(self.run_folder.path).free
        if need > free:
            raise no_room(need, f"in memory or in {folder}")
        if wanted.where != "file" and not self._portable:
            self._emit("arena", where="file", bytes=need, text=f"snapshots go to a file instead of memory: {why}")
        try:
            return Arena.create(capacity, slots=wanted.slots, folder=folder, named=self._portable)
        except OSError as error:
            raise no_room(need, f"in {folder} ({error.strerror or error})") from None

    def _no_memory_for(self, need: int) -> str | None:
        limit = self.settings.snapshot.memory
        if isinstance(limit, int):
            return None if need <= limit else f"{need >> 20} MiB are needed, snapshot.memory allows {limit >> 20} MiB"
        available = process.available_memory()
        if available is None or need <= available * SHARE:
            return None
        return f"{need >> 20} MiB are needed, {available >> 20} MiB are free"

    # -- the keeper ----------------------------------------------------------------------------------------

    def _start_keeper(self) -> None:
        self._keeper = launch.start_keeper(
            self.run_folder.path,
            self.settings.checkpoint.keep,
            self.run_folder.lock_fd,
            portable=self._portable,
        )
        self._saving = None
        if self.arenas:
            self._tell_keeper_arenas()

    def _tell_keeper_arenas(self) -> None:
        if self._keeper is None:
            return
        described = [
            {"paths": launch.slot_paths(arena)} if self._portable else {"slots": len(arena.slots)}
            for arena in self.arenas
        ]
        fds = [] if self._portable else [fd for arena in self.arenas for fd in arena.fds]
        with contextlib.suppress(Closed):
            self._keeper[1].send({"arenas": described}, fds)

    def _wish(self, reason: str, *, weights: list[str] | None = None, checkpoint: bool = True) -> None:
        """Ask for a save; one at a time is under way, the others wait and are joined."""
        wish = {"reason": reason, "weights": weights or [], "checkpoint": checkpoint}
        if self._wishes:
            last = self._wishes[-1]
            last["weights"] = sorted({*last["weights"], *wish["weights"]})
            last["checkpoint"] = last["checkpoint"] or checkpoint
        else:
            self._wishes.append(wish)
        self._send_wish()

    def _send_wish(self) -> None:
        if self._keeper is None or self._saving is not None or not self._wishes or self._newest() is None:
            return
        wish = self._wishes.pop(0)
        with contextlib.suppress(Closed):
            self._keeper[1].send({"save": wish})
            self._saving = wish
            self._last_save = time.monotonic()

    def _hear_keeper(self) -> None:
        if self._keeper is None:
            return
        try:
            for message in self._keeper[1].pending():
                self._heed_keeper(message)
        except Closed:
            self._keeper_died()

    def _heed_keeper(self, message: dict[str, Any]) -> None:
        if "adopted" in message:
            return
        self._saving = None
        if "not_saved" in message:
            self._emit("not_saved", text=message["not_saved"], reason=message.get("reason"))
        elif message.get("saved"):
            report = message["saved"]
            if "path" in report:
                self._saved = report
                self._emit("checkpoint", step=report["step"], path=report["path"], seconds=round(message["seconds"], 3))
            if report.get("weights_sha256"):
                self._final = report
        self._send_wish()

    def _keeper_died(self) -> None:
        """Checkpoints stop, training does not: start another keeper."""
        assert self._keeper is not None
        popen, channel = self._keeper
        channel.close()
        code = popen.wait()
        self._keeper = None
        self._keeper_fails += 1
        wish = self._saving
        fault = Fault(Kind.KEEPER_DIED, message=f"the keeper ended with {code}", evidence={"status": code})
        move = Move(Action.REPLACE, self.rung, reason="a new keeper; training went on")
        self.accounts.fault(fault.kind.value)
        for arena in self.arenas:
            arena.release_all()
        if self._keeper_fails <= self.settings.retry.without_progress:
            self._start_keeper()
            if wish is not None:
                self._wishes.insert(0, wish)
        folder = evidence.collect(self.run_folder, fault, move, self._read_board(), "", {}, "")
        self._emit_fault(fault, move, folder)

    def _save_last(self, weights: list[str] | None = None) -> None:
        """The state as it is now, on disk and verified, before the run ends."""
        if self._newest() is None:
            return
        deadline = time.monotonic() + 600.0
        while self._saving is not None and self._keeper is not None and time.monotonic() < deadline:
            select.select([self._keeper[1]], [], [], 0.5)
            self._hear_keeper()
        self._wishes.clear()
        self._wish("end", weights=weights)
        while (self._saving is not None or self._wishes) and self._keeper is not None and time.monotonic() < deadline:
            select.select([self._keeper[1]], [], [], 0.5)
            self._hear_keeper()

    # -- telling -------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        self._pump_output()
        if now - self._last_beat >= BEAT_EVERY:
            self._last_beat = now
            self._write_beat()
        newest = self._newest()
        if newest is not None and now - self._last_save >= self.settings.checkpoint.every:
            self._wish("time")
        elif self._wishes:
            self._send_wish()

    def _write_beat(self) -> None:
        beat = self._read_board()
        if beat is None:
            return
        info = {
            "schema": 1,
            "time": utc_now(),
            "pid": beat.pid,
            "device": self.plan.rungs[self.rung].device,
            "phase": beat.phase.label,
            "silence_s": round(beat.silence, 3),
            "step": self.accounts.steps,
            "steps_total": beat.epochs * beat.batches or None,
            "attempts": self.accounts.attempts + beat.attempts,
            "epoch": beat.epoch,
            "epochs": beat.epochs,
            "batch": beat.batch,
            "batches": beat.batches,
            "loss": beat.loss,
            "pieces": max(1, beat.pieces),
            "rate": self._rate.per_second(),
            "progress": {"done": beat.done, "total": beat.total, "label": beat.label} if beat.total else None,
            "recoveries": self.accounts.recoveries,
        }
        info["time_left_s"] = self._rate.time_left(info["step"], info["steps_total"])
        self.run_folder.write_beat(info)
        self.face.beat(info)

    def _emit(self, what: str, /, **data: Any) -> None:
        event = Event.now(what, **data)
        self.run_folder.append(event)
        self.face.event(event)

    def _emit_fault(self, fault: Fault, move: Move, folder: Path) -> None:
        self._emit(
            "fault",
            code=fault.code,
            kind=fault.kind.value,
            device=fault.device,
            step=fault.step,
            phase=fault.phase,
            sentence=fault.sentence(),
            action=move.action.value,
            reason=move.reason,
            folder=str(folder),
        )

    def _set_state(self, state: str, **more: Any) -> None:
        self.run_folder.update_info(state=state, device=self.plan.rungs[self.rung].device, **more)

    def _read_board(self) -> Beat | None:
        return self.worker.board.read() if self.worker is not None else None

    def _output_size(self) -> int:
        with contextlib.suppress(OSError):
            return (self.run_folder.path / "output.log").stat().st_size
        return 0

    def _pump_output(self) -> None:
        """What the script printed since the last look, for the face."""
        size = self._output_size()
        if size <= self._output_at:
            return
        with open(self.run_folder.path / "output.log", "rb") as file:
            file.seek(self._output_at)
            text = file.read(size - self._output_at)
        self._output_at = size
        self.face.output(text.decode(errors="replace"))

    def _last_words(self) -> str:
        return evidence.last_words(self.run_folder.path / "output.log", self._worker_output_at)

    def _crash_stack(self, generation: int) -> str:
        """What faulthandler wrote when the worker crashed."""
        path = self.run_folder.path / f"stacks-{generation}.txt"
        with contextlib.suppress(OSError):
            text = path.read_text(errors="replace")
            path.unlink()
            return text
        return ""


class _Rate:
    """Steps a second, from commits: a recent mean that restarts and slow spells do not throw off."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def note(self, step: int) -> None:
        self._marks.append((time.monotonic(), step))
        if len(self._marks) > 400:
            self._marks = self._marks[::2]

    def per_second(self) -> float | None:
        if len(self._marks) < 2:
            return None
        (begin, first), (end, last) = self._marks[0], self._marks[-1]
        return None if end <= begin else round((last - first) / (end - begin), 4)

    def time_left(self, step: int, total: int | None) -> float | None:
        rate = self.per_second()
        return None if not rate or not total else round(max(0, total - step) / rate, 1)


def _is_zombie(pid: int) -> bool:
    info = process.inspect(pid)
    return info is not None and info.state == "Z"


def _named(good: checkpoint.Checkpoint | None) -> str | None:
    return f"step {good.step} in {good.path} (verified)" if good else "nothing was saved yet"
