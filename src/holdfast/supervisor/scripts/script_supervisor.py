"""The supervisor of a script that is not ours: starts it, passes everything on, watches it, and answers its end.

    with ScriptSetup(run, settings) as setup:
        outcome = ScriptSupervisor(run, order, settings, setup, face).run(setup.first(order))

One loop, one thread: bytes on their way, signals on theirs, the board, silence. No torch, no device. What follows when
the script ends is in fault_answer.py; the faults, the ladder and the folder of evidence are those of `holdfast train`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.board import Beat
from holdfast.faults.ladder import Rung
from holdfast.record.reporter import Face
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.run.states import RunState
from holdfast.supervisor.run_context import Outcome, Plan, RunContext
from holdfast.supervisor.run_loop import RunLoop
from holdfast.supervisor.scripts.attached import Attached
from holdfast.supervisor.scripts.continuation import Life
from holdfast.supervisor.scripts.exact import Exact
from holdfast.supervisor.scripts.fault_answer import Answering
from holdfast.supervisor.scripts.hook_notes import Notes
from holdfast.supervisor.scripts.loss import printed_epoch, printed_loss
from holdfast.supervisor.scripts.script_end import Ending
from holdfast.supervisor.scripts.script_order import Order
from holdfast.supervisor.scripts.script_processes import command_of
from holdfast.supervisor.scripts.script_setup import Process, ScriptSetup
from holdfast.supervisor.scripts.script_start import Script
from holdfast.supervisor.scripts.silence import Silence
from holdfast.supervisor.scripts.steps import Steps
from holdfast.supervisor.scripts.streams import Streams
from holdfast.supervisor.signal_queue import STOPPING

TICK = 0.2
INSIST = 5.0
"""Seconds a script has to end after it was asked twice."""


class ScriptSupervisor(RunLoop):
    """One run of somebody's script, from its first process to its receipt."""

    def __init__(
        self, run: RunFolder, order: Order, settings: Settings, setup: ScriptSetup, face: Face | None = None
    ) -> None:
        super().__init__()
        plan = Plan(
            script=Path(order.command[0]),
            argv=order.command[1:],
            rungs=order.rungs,
            rung=order.rung,
            resume=order.resume,
        )
        self.context = RunContext.open(run, plan, settings, face or Face())
        self.order = order
        self.settings = settings
        self.run_folder = run
        self.setup = setup
        self.record = setup.record
        self.script: Script | None = None
        self.notes: Notes | None = None
        self.streams: Streams | None = None
        self.generation = 0
        self.steps = Steps(run)
        self._name = b""
        self._asked = 0
        self._insist: float | None = None
        self.script_processes = setup.script_processes
        self.script_processes.ours = self._ours
        self.silence = Silence(self)
        self.exact = Exact(self, wanted=order.exact, rehearse=order.rehearse and not order.going_on)
        self.attached = Attached(self.context, setup.port)
        self.answering = Answering(self)
        self._last_loss = 0.0
        self._first: Process | None = None
        self._kills = 0
        self._loss: tuple[int, float] | None = None
        self._seen: dict[str, Any] = {}

    def _ours(self) -> set[int]:
        """Processes in our family that are no part of the script."""
        keeper = {self.context.keeping.pid} if self.context.keeping.pid is not None else set()
        return {*self.context.gathering.pids, *self.silence.activity.pids(), *self.answering.pids(), *keeper}

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self, first: Process | None = None) -> Outcome:
        """To the end. `first` is its first process, if that was started already."""
        self._first = first
        return self.to_the_end()

    def begin(self) -> None:
        self.answering.begin(self._first)

    def turn(self) -> None:
        self._wait()
        for number in self.setup.signals.heard():
            self._pass_on(number)
        self.attached.hear(self)
        self.exact.tick()
        self._look()
        self._tick()

    @property
    def ending(self) -> Ending:
        return self.answering.ending

    @property
    def stopping(self) -> int | None:
        """The signal somebody asked the script to end with."""
        return self.ending.stopping

    @property
    def rung(self) -> Rung:
        return self.order.rungs[self.context.rung]

    @property
    def device(self) -> str:
        """Where the script computes, as far as it is known: what it told, else what the rung says."""
        told, rung = self.notes.device if self.notes is not None else None, self.rung
        single = "CUDA_VISIBLE_DEVICES" in dict(rung.env) and not rung.on_cpu  # the script calls any such one cuda:0
        if told is None or single or rung.device.startswith("pretend"):
            return rung.device
        return told

    def start(self, command: list[str], env: dict[str, str], *, step: int) -> None:
        """A new process of the script, counting its steps from `step` on."""
        self.exact.process_begins()
        full = {**env, **self.exact.environment()}
        self.take(self.setup.start(command, self.rung, full, generation=self.generation, step=step), step=step)

    def take(self, started: Process, *, step: int) -> None:
        """Watch over this process from here on."""
        context = self.context
        self.script, self.notes, self.streams = started.script, started.notes, started.streams
        self._kills, self._name = started.kills, started.name
        context.gathering.worker_begins(dict(self.rung.env))
        self.attached.process_begins(self.generation, self.notes.board)
        context.accounts.on_device(context.device, step)
        context.accounts.steps = step
        self.generation += 1
        context.keep_accounts(generations=self.generation)
        state = RunState.RECOVERING if self.answering.crisis is not None else RunState.RUNNING
        context.set_state(state, script_pid=self.script.pid)
        context.teller.emit("worker", generation=self.script.generation, pid=self.script.pid, device=context.device)
        self.silence.begins()

    def _wait(self) -> None:
        sources: list[Any] = [self.setup.signals.wake, *self.attached.sources]
        writable: list[int] = []
        if self.streams is not None:
            readable, writable = self.streams.wants()
            sources += readable
        if self.script is not None and self.script.pidfd is not None and self.script.exit_code is None:
            sources.append(self.script.pidfd)
        ready, takes, _ = select.select(sources, writable, [], TICK)
        if self.streams is not None:
            self.streams.pump(ready, takes)

    def _tick(self) -> None:
        if self.notes is not None and self.beat_due():
            if self.script is not None:
                self.script_processes.reap_old(self.script)
            self._see_loss()
            self._see_frameworks(self.notes)
            self.exact.look(self.notes)
            self.mirror(self.notes.board.read(), self.device)
        self.attached.tick()
        self.tell_gathered()
        if self.outcome is None:
            self.answering.tick()

    def _see_frameworks(self, notes: Notes) -> None:
        """What the script is made of, written down once for whoever resumes the run."""
        seen = {"frameworks": notes.frameworks, "fits": notes.fits, "fitted": notes.fitted}
        if seen["frameworks"] and seen != self._seen:
            self._seen = seen
            self.run_folder.update_info(**seen)

    def _see_loss(self) -> None:
        """The loss the script prints, once a second, if it is another one."""
        assert self.notes is not None
        if self.streams is None or self.streams.last_output <= self._last_loss:
            return
        value = printed_loss(self.record.tail())
        self._last_loss = time.monotonic()
        step = self.context.accounts.steps
        if value is not None and (step, value) != self._loss:
            self._loss = (step, value)
            self.notes.board.loss(value)
            self.context.teller.log(step, 0, {"loss": value})

    def close_processes(self) -> None:
        """Leave nothing of the script behind, and the terminal as it was."""
        if self.script is not None and self.script.poll() is None:
            self.script_processes.end(self.script, term=0.0)
        elif self.script is not None:
            self.script_processes.end(self.script, term=self.settings.watchdog.term_grace)
        if self.streams is not None:
            self.streams.close()
        if self.script is not None:
            self.script.close()
        self.answering.close()
        self.attached.close(save=self.outcome is None)
        self.silence.activity.close()
        if self.notes is not None:
            self.notes.close()

    def gathering_patience(self) -> float:
        return 1.0 if self.context.accounts.faults else 0.0

    # -- signals -------------------------------------------------------------------------------------------

    def _pass_on(self, number: int) -> None:
        """What was sent to us is meant for the script."""
        if number == getattr(signal, "SIGWINCH", None):
            if self.streams is not None:
                self.streams.resize()
            return
        if number == getattr(signal, "SIGTSTP", None):
            self._suspend()
            return
        if number in STOPPING:
            self._asked += 1
            if self.stopping is None:
                self.ending.ask_to_stop(number)
            if self._asked > 1:
                self._insist = time.monotonic() + INSIST
            if self.attached.stop():
                return
        if self.script is None:
            self.ending.stopped(number)
        else:
            self.script.send(number)

    def _suspend(self) -> None:
        """Ctrl-Z, or SIGTSTP: the script stops, then we do; both go on together."""
        if self.script is None or self.streams is None or sys.platform == "win32":
            return
        self.script.send(signal.SIGSTOP)
        self.streams.make_cooked()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.streams.started()
        self.script.send(signal.SIGCONT)
        self.silence.begins()

    # -- looking -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        script, notes, streams = self.script, self.notes, self.streams
        if script is None or notes is None or streams is None:
            return
        if streams.interrupted and self.stopping is None:
            self.ending.stopping = signal.SIGINT
        if streams.suspend:
            streams.suspend = False
            self._suspend()
        self._count(notes.board.read())
        if self._ended(script):
            return
        if self._insist is not None and time.monotonic() > self._insist:
            self._insist = None
            self.script_processes.end(script, term=0.0, kill=self.settings.watchdog.kill_grace)
        self.silence.listen(script, notes, streams)

    def _count(self, beat: Beat) -> None:
        accounts = self.context.accounts
        if self.attached.exact:
            return
        if beat.step != accounts.steps:
            self.answering.progressed(beat.step)
            accounts.steps = beat.step
            self.context.teller.rate.note(beat.step)
        if self.notes is not None:
            self.steps.look(self.notes, beat)

    def _ended(self, script: Script) -> bool:
        """Is it over? A script that went into the background by itself is followed there."""
        if script.followed is not None:
            self.script_processes.reap(script)
            if processes.exists(script.followed) and script.followed in self.script_processes.members():
                return False
            self.script_processes.reap(script)  # it may have ended since the line above
            code = self.script_processes.reaped.get(script.followed, 0)
            further = self.script_processes.daemon(script, self._name) if code == 0 else None
            if further is not None:  # a daemon forks twice
                script.followed = further
                return False
        elif script.poll() is None:
            return False
        else:
            code = script.exit_code or 0
            daemon = self.script_processes.daemon(script, self._name) if code == 0 else None
            if daemon is not None:
                script.followed = daemon
                text = f"the script went into the background as process {daemon}; holdfast still watches it"
                self.context.teller.emit("note", text=text)
                return False
        self._over(script, code)
        return True

    def _over(self, script: Script, code: int) -> None:
        assert self.streams is not None and self.notes is not None
        self.streams.finish()
        self._count(self.notes.board.read())
        self.attached.hear(self)
        self._end_leftovers(script)
        self.streams.finish(0.1)
        self.exact.process_ended(self.streams, code)
        words = self.record.last_words()
        self.drop()
        self.answering.ended(script, code, words, oom_kills=processes.memory_kills() - self._kills)

    def _end_leftovers(self, script: Script) -> None:
        """What it started and left behind."""
        left = self.script_processes.members() if self.script_processes.adopts else {}
        if not left:
            if not self.script_processes.adopts:
                self.script_processes.end(script)
            return
        names = {pid: command_of(pid).replace(b"\0", b" ").decode(errors="replace").strip()[:80] for pid in left}
        stuck = self.script_processes.end(
            script, term=self.settings.watchdog.term_grace, kill=self.settings.watchdog.kill_grace
        )
        ended = [f"{pid} ({name})" for pid, name in names.items() if pid not in stuck]
        if ended:
            text = f"ended processes that the script left behind: {', '.join(ended[:5])}"
            more = len(ended) - 5
            self.context.teller.emit("note", text=f"{text} and {more} more" if more > 0 else text)
        for pid in stuck:
            self.context.tell_abandoned(pid, "it is left behind")

    def end_process(self, *, term: float | None = None) -> list[int]:
        """End it with all that it started; returns who cannot be killed. `term`: seconds to end by itself."""
        assert self.script is not None
        grace = self.settings.watchdog
        stuck = self.script_processes.end(
            self.script, term=grace.term_grace if term is None else term, kill=grace.kill_grace
        )
        self.script.poll()
        if self.streams is not None:
            self.streams.finish(0.1)
        return stuck

    def drop(self) -> None:
        """Its streams are done; notes and board are needed until it is known what follows."""
        if self.streams is not None:
            self.streams.close()
            self.streams = None
        if self.script is not None:
            epoch = printed_epoch(self.record.tail(1 << 15))
            life = Life(self.script.started_ns, time.time_ns(), self.record.of_process, epoch)
            self.answering.going_on.life = life
            self.script.close()
            self.script = None
