"""A script that makes no step and says nothing: how long it may, and what is done when that is over.

    silence = Silence(supervisor)
    silence.begins()                          # a new process, or it was stopped and goes on
    silence.listen(script, notes, streams)    # at every look; a hang ends the script and is told

How long is decided in silence_limit.py; the clock, the warning and the fault are those of worker_watch.py. What it
waits for is found by holdfast.supervisor.waits, whether it computes meanwhile in activity.py. Whoever watches the run
hears of a long silence before anything is ended.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from typing import TYPE_CHECKING

from holdfast.base import processes
from holdfast.base.board import Beat
from holdfast.supervisor.scripts import silence_limit
from holdfast.supervisor.scripts.activity import Activity
from holdfast.supervisor.scripts.hook_notes import Notes
from holdfast.supervisor.scripts.script_stacks import ask_for_stacks, wait_in
from holdfast.supervisor.scripts.script_start import Script
from holdfast.supervisor.scripts.streams import Streams
from holdfast.supervisor.scripts.words import silent_sentence
from holdfast.supervisor.waits import COMPUTES, UNSEEN, Finding, Grade, Waits
from holdfast.supervisor.worker_watch import SilenceClock, Watch

if TYPE_CHECKING:
    from holdfast.supervisor.scripts.script_parts import ScriptRun

SILENT = 2.0
"""Seconds of silence after which it is looked at what the script does."""
PAUSE = 5.0
"""Seconds between two looks from which on all of us were stopped: a closed lid."""
EVERY, LATER, WINDOW = 1.0, 4.0, 10.0
"""Seconds between two looks at what it waits for, at first and later, and how long all have to say that it is stuck."""
RECKON = 30.0
"""Seconds between two looks for what a restart would repeat."""


class Silence:
    """How long the script has been silent, and whether that is too long."""

    def __init__(self, supervisor: ScriptRun) -> None:
        self.supervisor = supervisor
        self.settings = supervisor.settings
        self.activity = Activity(supervisor.script_processes)
        self.watch = Watch(supervisor.settings.watchdog, supervisor.context.teller.emit)
        self._waits = Waits()
        self._findings: deque[tuple[float, Finding]] = deque(maxlen=64)
        self._by_stack: Finding | None = None
        self._lost: tuple[float, float] = (-math.inf, 0.0)
        self._clock = SilenceClock(PAUSE, since=time.monotonic())

    def begins(self) -> None:
        self._clock.begins()
        self._heard()

    def _heard(self) -> None:
        """It has said something: what it did before does not matter."""
        self.activity.forget()
        self._waits.forget()
        self._findings.clear()
        self.watch.heard()
        self._by_stack = None
        self._lost = (-math.inf, 0.0)

    def listen(self, script: Script, notes: Notes, streams: Streams) -> None:
        beat, now = notes.board.read(), time.monotonic()
        silence = self._clock.heard(min(beat.silence, now - streams.last_output, now - script.started))
        if self.supervisor.attached.exact and beat.beats > 0:
            silence = self.watch.silence(beat)
            limit = self.watch.limit_now(beat, silence)
        else:
            if silence < SILENT:
                self._heard()
                return
            limit = self._limit(script, notes, beat, silence, streams.blocked)
        if silence > limit and self.supervisor.stopping is None:
            self._hangs(script, notes, beat, silence, limit)

    # -- what it does --------------------------------------------------------------------------------------

    def _limit(self, script: Script, notes: Notes, beat: Beat, silence: float, blocked: bool) -> float:
        """Seconds it may be silent; on the way there somebody is told."""
        finding = self._look(script, beat, EVERY if silence < WINDOW else LATER)
        loop = self.settings.watchdog.loop
        limit = self._allowed(notes, beat, silence, finding, blocked, 0.0)
        if silence > min(limit, loop) / 2 and finding.grade is not Grade.STUCK:
            limit = self._allowed(notes, beat, silence, finding, blocked, self._work_lost(script, silence))
        soon = loop if finding.grade is Grade.WAITS else limit / 2
        matters = not math.isinf(limit) or (finding.endless and beat.attempts > 0)
        if silence > min(soon, limit) and matters and not self.watch.warned(finding):
            self.watch.warn(silent_sentence(finding, silence, limit), finding, silence, limit)
        return limit

    def _allowed(self, notes: Notes, beat: Beat, silence: float, finding: Finding, blocked: bool, lost: float) -> float:
        return silence_limit.allowed(
            stepping=beat.attempts > 0,
            longest_gap=max(each.slowest_s for each in beat.times.values()),
            finding=finding,
            settings=self.settings.watchdog,
            silence=silence,
            lost=lost,
            trains=notes.torch_seen,
            stretch=self.watch.stretch(beat),
            waiting=blocked,
        )

    def _look(self, script: Script, beat: Beat, every: float) -> Finding:
        """The best that was found in the last seconds: stuck is only what was stuck all the time."""
        now = time.monotonic()
        self.activity.look()
        if not self.activity.known:
            return self._by_stack or UNSEEN
        if not self._findings or now - self._findings[-1][0] >= every:
            members = self.supervisor.script_processes.members()
            root = beat.pid if beat.pid in members else script.followed or script.pid
            self._findings.append((now, self._waits.look(root, members)))
        recent = [finding for when, finding in self._findings if when >= now - WINDOW]
        best = max(reversed(recent), key=lambda each: each.grade)
        if best.grade is Grade.STUCK and (len(self._findings) < 3 or self.activity.busy()):
            return COMPUTES
        if best.kind == "unknown":
            return self._by_stack or (COMPUTES if self.activity.busy() else best)
        return best

    def _work_lost(self, script: Script, silence: float) -> float:
        """Seconds of work that a restart would repeat: since its newest checkpoint, or since it began."""
        now = time.monotonic()
        if now - self._lost[0] >= RECKON:
            saved = self.supervisor.answering.going_on.newest_time()
            since = max(script.started_ns, saved or 0)
            self._lost = (now, max(0.0, (time.time_ns() - since) / 1e9 - silence))
        return self._lost[1]

    # -- a hang --------------------------------------------------------------------------------------------

    def _hangs(self, script: Script, notes: Notes, beat: Beat, silence: float, limit: float) -> None:
        """Keep its stacks, end it with all it started, and let the ladder decide."""
        pid = beat.pid if beat.pid and processes.exists(beat.pid) else script.pid
        info = processes.inspect(pid)
        finding = self._findings[-1][1] if self._findings else UNSEEN
        stacks = ask_for_stacks(pid, notes.stacks_path(pid)) if self.settings.run.stacks else {}
        if notes.board.read().beats != beat.beats or script.poll() is not None:
            self.supervisor.context.teller.emit(
                "note", text=f"process {pid} was silent for {silence:.0f} s and continues without help"
            )
            return  # asking where it was has woken it, or it was only slow
        if finding.kind in ("unknown", "unseen") and self._by_stack is None:
            self._by_stack = wait_in(stacks.get("python", ""))
            if self._by_stack is not None:  # nobody could see it from outside, but its own stack says what it waits for
                with contextlib.suppress(OSError):
                    notes.stacks_path(pid).write_text("")
                return
        supervisor = self.supervisor
        message = f"no step and no output for {silence:.0f} s, allowed {limit:.0f} s"
        found = {"busy": self.activity.busy(), "doing": finding.words, "process_state": info.state if info else None}
        fault = self.watch.fault_of(beat, silence, limit, supervisor.device, message, found)
        phase = beat.phase.label if supervisor.attached.exact else None
        fault = fault.at(step=beat.at if beat.attempts else None, phase=phase, pid=pid, process=pid)
        stuck = supervisor.end_process()
        if stuck:
            fault = fault.at(abandoned=stuck[0])
        for left in stuck:
            supervisor.context.tell_abandoned(left)
        supervisor.attached.hear(supervisor)
        words = supervisor.record.last_words()
        supervisor.drop()
        supervisor.answering.lost(script, fault, words, stacks)
