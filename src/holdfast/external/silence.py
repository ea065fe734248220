"""A script that makes no step and says nothing: how long it may, and what is done when that is over.

    silence = Silence(supervisor)
    silence.begins()                          # a new process, or it was stopped and goes on
    silence.listen(script, notes, streams)    # at every look; a hang ends the script and is told

How long is decided in patience.py, whether it computes meanwhile in activity.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.external import patience
from holdfast.external.activity import Activity
from holdfast.external.launching import Script
from holdfast.external.notes import Notes
from holdfast.external.stacks import ask_for_stacks
from holdfast.external.streams import Streams
from holdfast.runtime import process
from holdfast.runtime.board import Beat
from holdfast.runtime.faults import Fault, Kind
from holdfast.runtime.watching import Watch

if TYPE_CHECKING:
    from holdfast.external.supervising import ScriptSupervisor

SILENT = 2.0
"""Seconds of silence after which it is looked at what the script does."""
PAUSE = 5.0
"""Seconds between two looks from which on all of us were stopped: a closed lid."""


class Silence:
    """How long the script has been silent, and whether that is too long."""

    def __init__(self, supervisor: ScriptSupervisor) -> None:
        self.supervisor = supervisor
        self.settings = supervisor.settings
        self.activity = Activity(supervisor.kin)
        self.watch = Watch(supervisor.settings.watchdog)
        self._stretch: dict[int | None, float] = {}
        self._heard_since = self._last_look = time.monotonic()

    def begins(self) -> None:
        self._heard_since = self._last_look = time.monotonic()
        self.activity.forget()

    def listen(self, script: Script, notes: Notes, streams: Streams) -> None:
        now = time.monotonic()
        if now - self._last_look > PAUSE:
            self._heard_since = now
        self._last_look = now
        beat = notes.board.read()
        if self.supervisor.attached.exact and beat.beats > 0:
            limit, silence = self.watch.limit(beat), self.watch.silence(beat)
        else:
            silence = min(beat.silence, now - streams.last_output, now - self._heard_since, now - script.began)
            if silence < SILENT:
                self.activity.forget()
                return
            self.activity.look()
            limit = patience.allowed(
                stepping=beat.attempts > 0,
                longest_gap=max(each.slowest_s for each in beat.times.values()),
                busy=self.activity.busy(),
                settings=self.settings.watchdog,
                stretch=self._stretch.get(beat.at, 1.0),
                waiting=streams.blocked,
            )
        if silence > limit and self.supervisor.stopping is None:
            self._hangs(script, notes, beat, silence, limit)

    def _hangs(self, script: Script, notes: Notes, beat: Beat, silence: float, limit: float) -> None:
        """Keep its stacks, end it with all it started, and let the ladder decide."""
        place = beat.at if beat.attempts else None
        self._stretch[beat.at] = 4.0 * self._stretch.get(beat.at, 1.0)
        pid = beat.pid if beat.pid and process.exists(beat.pid) else script.pid
        info = process.inspect(pid)
        stacks = ask_for_stacks(pid, notes.stacks_path(pid)) if self.settings.run.stacks else {}
        if notes.board.read().beats != beat.beats or script.poll() is not None:
            self.supervisor.affairs.teller.emit(
                "note", text=f"process {pid} was silent for {silence:.0f} s and goes on by itself"
            )
            return  # asking where it was has woken it, or it was only slow
        fault = Fault(
            Kind.HANG,
            device=self.supervisor.device,
            step=place,
            phase=beat.phase.label if self.supervisor.attached.exact else None,
            message=f"no step and no output for {silence:.0f} s, allowed {limit:.0f} s",
            evidence={
                "silence_s": round(silence, 3),
                "limit_s": round(limit, 3),
                "busy": self.activity.busy(),
                "process_state": info.state if info else None,
                "pid": pid,
                "process": pid,
            },
        )
        grace = self.settings.watchdog
        supervisor = self.supervisor
        stuck = supervisor.kin.end(script, term=grace.term_grace, kill=grace.kill_grace)
        script.poll()
        if stuck:
            fault = fault.at(abandoned=stuck[0])
            for left in stuck:
                text = f"process {left} cannot be killed; the run goes on without it"
                self.supervisor.affairs.teller.emit("abandoned", pid=left, text=text)
        assert supervisor.streams is not None
        supervisor.streams.finish(0.1)
        supervisor.attached.hear(supervisor)
        words = supervisor.record.last_words()
        supervisor.drop()
        supervisor.answering.lost(script, fault, words, stacks)
