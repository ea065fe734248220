"""The crew: the worker there is now, and the launcher its successor comes from. No torch here.

    crew = Crew(affairs, make_launcher)
    crew.open()                              # a nursery, or what does its work where forking is not safe
    crew.start(move)                         # the next generation, from the newest snapshot
    if not crew.end(worker, gently=True):    # SIGTERM, then SIGKILL, to everything it started
        crew.abandon(worker)                 # it cannot be killed: its slots stay with it
    crew.account_for(worker)                 # counted, then dropped
    crew.tick()                              # a second nursery, in case this one dies

It says nothing about when or why: that is decided in supervisor.py, recovery.py and run_end.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from typing import Any

from holdfast.base import processes
from holdfast.base.board import Beat, Board
from holdfast.base.broken_torch import no_torch
from holdfast.base.errors import UserError
from holdfast.faults.ladder import Action, Move
from holdfast.injection import chaos
from holdfast.run.folder import whole
from holdfast.run.messages import LastWords
from holdfast.supervisor import process_start
from holdfast.supervisor.process_start import CannotFork, Launcher, NurseryDied, NurseryLauncher, WorkerProcess
from holdfast.supervisor.run_state import Affairs

EXIT_PATIENCE = 10.0
"""Seconds the exit status of a worker that is gone may take to arrive: a nursery that imports something looks late,
and could start no other worker meanwhile."""
STILLBORN = 3
"""Nurseries that end in the same way before torch is there: another one would do so, too."""
SPARE_SHARE = {False: 0.01, True: 0.001}
"""Of the processors' time so far that making a second nursery may take; less where the training is on the CPU."""
SPARE_MEMORY = 8
"""Times what a nursery takes that must be free for a second one."""


class Crew:
    """One worker at a time."""

    def __init__(self, affairs: Affairs, make_launcher: Callable[[], Launcher]) -> None:
        self.affairs = affairs
        self.worker: WorkerProcess | None = None
        self.launcher: Launcher | None = None
        self.generation = whole(affairs.run_folder.info.get("generations"))
        """Of the next worker."""
        self.said: LastWords | None = None
        """The worker's last words, once it has spoken them."""
        self.entering: Callable[[], None] = lambda: None
        """Called before a worker is started: the ledger is told before the device is touched."""
        self.orders: Callable[[], dict[str, Any]] = dict
        """What else the next worker is told: a step to compute again, steps to compare with the CPU."""
        self._make_launcher = make_launcher
        self._move: Move | None = None
        """What the ladder decided for the worker there is now."""
        self._memory_kills = 0
        self._exit_deadline = 0.0
        self._stillborn: list[int] = []
        """How the last nurseries ended that never had torch ready."""
        self._spare: NurseryLauncher | None = None
        """A nursery that waits. Without it a run whose nursery is killed waits for torch to be imported."""
        self._spare_from = time.monotonic()
        """Since when time is counted for the next one."""
        self._not_forked: NurseryLauncher | None = None
        """A nursery that could not fork another."""

    # -- starting ------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.launcher = self._make_launcher()

    def renew_launcher(self) -> None:
        """Another nursery: the last one is gone, or the next worker needs another environment."""
        if self.launcher is not None:
            self.launcher.close()
        spare, self._spare = self._spare, None
        if spare is not None and spare.ready is not None and spare.env == self._env():
            self.launcher = spare
            return
        if spare is not None:
            spare.close()
        self.launcher = self._make_launcher()

    def _env(self) -> dict[str, str]:
        return dict(self.affairs.plan.rungs[self.affairs.rung].env)

    @property
    def spare(self) -> NurseryLauncher | None:
        """The nursery that waits, once torch is there."""
        return self._spare if self._spare is not None and self._spare.ready is not None else None

    def tick(self) -> None:
        """Have a second nursery, and look after it: a fork of the first one, or where that is not possible, one that
        imports torch once the run is long enough for what that costs."""
        if self._spare is None:
            nursery = self.launcher
            if isinstance(nursery, NurseryLauncher) and nursery.warmed and nursery is not self._not_forked:
                if self._has_room(nursery):
                    self._spare = nursery.second()
            elif self._affords_spare():
                made = self._make_launcher()
                self._spare = made if isinstance(made, NurseryLauncher) else None
            return
        was_ready = self._spare.ready is not None
        try:
            self._spare.poll()
        except (NurseryDied, CannotFork, UserError):  # the one at work says so if it matters
            if not was_ready and isinstance(self.launcher, NurseryLauncher):
                self._not_forked = self.launcher
            self._spare.close()
            self._spare, self._spare_from = None, time.monotonic()
            return
        if not was_ready and self._spare.ready is not None and not self._spare.forked:
            self._spare.warm()

    def _affords_spare(self) -> bool:
        nursery = self.launcher
        if not isinstance(nursery, NurseryLauncher) or nursery.took_s is None:
            return False
        share = SPARE_SHARE[self.affairs.plan.rungs[self.affairs.rung].on_cpu]
        earned = (time.monotonic() - self._spare_from) * (os.cpu_count() or 1) * share
        return earned >= nursery.took_s and self._has_room(nursery)

    def _has_room(self, nursery: NurseryLauncher) -> bool:
        """A fork shares its memory with the first one, as long as neither of them writes there."""
        info, available = processes.inspect(nursery.pid or 0), processes.available_memory()
        return info is not None and (available is None or available > SPARE_MEMORY * info.rss_bytes)

    def nursery_ended(self) -> None:
        """Raises UserError if no nursery can be had: where the address space is limited, the first one shows it."""
        launcher = self.launcher
        code = launcher.stillborn() if isinstance(launcher, NurseryLauncher) else None
        if code is None:
            self._stillborn = []
            return
        self._stillborn = [*self._stillborn, code][-STILLBORN:]
        by_limit = processes.address_space_limit() is not None and code not in (-processes.KILL, -signal.SIGTERM)
        if by_limit or self._stillborn == [code] * STILLBORN:
            raise no_torch(code)

    def start(self, move: Move | None = None) -> None:
        """The next generation, from the newest snapshot, as the ladder decided. Raises NurseryDied."""
        self._move = move
        assert self.launcher is not None
        self.said = None
        self._memory_kills = processes.memory_kills()
        affairs = self.affairs
        affairs.teller.worker_begins()
        step = affairs.newest_step
        self.entering()
        self.worker = self.launcher.start(self.config(move), affairs.memory.arenas)
        affairs.gathering.worker_begins(dict(affairs.plan.rungs[affairs.rung].env))
        affairs.accounts.on_device(affairs.device, step)
        self.generation += 1
        affairs.keeping.tell_board(self.worker.board)
        affairs.keep_accounts(generations=self.generation)

    def config(self, move: Move | None) -> dict[str, Any]:
        """All that a process which runs the script is told."""
        affairs, plan = self.affairs, self.affairs.plan
        newest = affairs.memory.newest()
        return {
            "generation": self.generation,
            "name": affairs.run_folder.name,
            "folder": str(affairs.run_folder.path.resolve()),
            "script": str(plan.script),
            "argv": plan.argv,
            "arguments": plan.arguments,
            "settings": affairs.settings.to_json(),
            "rungs": [each.to_json() for each in plan.rungs],
            "rung": affairs.rung,
            "seed": plan.seed,
            "threads": plan.threads,
            "pieces": move.pieces if move else 1,
            "cpu_batch": move is not None and move.action is Action.CPU_BATCH,
            "chaos": plan.chaos or chaos.from_environment(),
            "pretend": os.environ.get("HOLDFAST_PRETEND"),
            "scratch": str(affairs.scratch.path),
            "pids": self._pids(),
            "checkpoint": str(plan.resume.state) if plan.resume and newest is None else None,
            **self.orders(),
        }

    def _pids(self) -> dict[str, int | None]:
        """Who is who, for the chaos kit: it ends only processes of its own run."""
        nursery = self.launcher.pid if self.launcher else None
        return {"supervisor": os.getpid(), "keeper": self.affairs.keeping.pid, "nursery": nursery}

    def spawn_instead(self, why: CannotFork) -> None:
        """Forking is not safe here: a slower launcher, and the same worker from it."""
        affairs = self.affairs
        affairs.teller.emit("note", text=f"workers are spawned instead of forked: {why}")
        if self.launcher is not None:
            self.launcher.close()
        env = dict(affairs.plan.rungs[affairs.rung].env)
        self.launcher = process_start.SpawnLauncher(env, affairs.run_folder.path / "slots")
        self.drop()
        self.start(self._move)

    # -- what is seen of it --------------------------------------------------------------------------------

    @property
    def sources(self) -> list[Any]:
        """What becomes readable when something happens to the worker or its nursery."""
        sources: list[Any] = list(self.launcher.channels) if self.launcher is not None else []
        worker = self.worker
        if worker is not None and not worker.gone:
            if not worker.deaf:
                sources.append(worker.channel)
            if worker.pidfd is not None:
                sources.append(worker.pidfd)
        return sources

    def notice_exit(self, ready: Collection[Any]) -> None:
        """Its pidfd is readable: it is gone, and its exit status is on the way."""
        worker = self.worker
        if worker is not None and worker.pidfd in ready:
            self.note_gone(worker)

    def note_gone(self, worker: WorkerProcess) -> None:
        """It has ended, and the word about how may still be on its way."""
        if not worker.gone:
            worker.gone = True
            self._exit_deadline = time.monotonic() + EXIT_PATIENCE

    def exit_known(self, worker: WorkerProcess) -> bool:
        """True once its exit status is here, or has taken too long. A nursery that hangs does not ask for it."""
        if not worker.told and (code := processes.status_of_zombie(worker.pid)) is not None:
            worker.exit_code, worker.told = code, True
        return worker.told or time.monotonic() > self._exit_deadline

    @property
    def memory_kills(self) -> int:
        """Processes the kernel ended for want of memory since this worker was started."""
        return processes.memory_kills() - self._memory_kills

    @property
    def board(self) -> Board | None:
        return self.worker.board if self.worker is not None else None

    def read_board(self) -> Beat | None:
        return self.worker.board.read() if self.worker is not None else None

    # -- ending it -----------------------------------------------------------------------------------------

    def end(self, worker: WorkerProcess, *, gently: bool) -> bool:
        """SIGTERM, SIGKILL to everything it started; False if it cannot be killed."""
        watchdog = self.affairs.settings.watchdog
        if gently:
            processes.send_group(worker.pid, signal.SIGTERM)
            if self._await_death(worker, watchdog.term_grace):
                return True
        info = processes.inspect(worker.pid)
        kill_group(worker)
        grace = watchdog.kill_grace + (info.rss_bytes / (4 << 30) if info else 0.0)
        return self._await_death(worker, grace)

    def _await_death(self, worker: WorkerProcess, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(NurseryDied, CannotFork):
                if self.launcher is not None:
                    self.launcher.poll()
            if worker.gone or not processes.exists(worker.pid) or _is_zombie(worker.pid):
                worker.gone = True
                kill_group(worker)
                return True
            time.sleep(0.005)
        return False

    def abandon(self, worker: WorkerProcess) -> None:
        """It cannot be killed and may still write: its slots stay with it, the newest snapshot is copied."""
        affairs = self.affairs
        device = None if affairs.plan.rungs[affairs.rung].on_cpu else affairs.device
        text = f"process {worker.pid} cannot be killed; the run continues without it"
        if device is not None:
            text += f" and without {device}, which it holds until the machine is restarted"
        affairs.teller.emit("abandoned", pid=worker.pid, device=device, text=text)
        affairs.memory.abandon()
        affairs.keeping.tell_arenas()

    def account_for(self, worker: WorkerProcess) -> None:
        """Its attempts count; then nothing of it is needed any more."""
        self.affairs.accounts.attempts += worker.board.read().attempts
        self.affairs.keep_accounts()
        self.drop()

    def drop(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            self.affairs.teller.pump_output()
            worker.close()
            self.affairs.scratch.sweep()

    def close(self) -> None:
        if self.worker is not None:
            if self.worker.pid:
                self.end(self.worker, gently=False)
            self.drop()
        for launcher in (self.launcher, self._spare):
            if launcher is not None:
                launcher.close()


def kill_group(worker: WorkerProcess) -> None:
    """Everything it started goes with it."""
    processes.send_group(worker.pid, processes.KILL)


def _is_zombie(pid: int) -> bool:
    info = processes.inspect(pid)
    return info is not None and info.state == "Z"
