"""The watch over one run's workers: what they taught, and how long the one there is now may still be silent.

    watch = Watch(settings.watchdog, tell)
    limit = watch.limit_now(beat, watch.silence(beat))   # seconds of silence allowed in the phase it is in
    if watch.silence(beat) >= limit:
        fault = watch.fault_of_worker(beat, limit, device, state)     # its step is allowed four times as long again
    watch.learn(beat)                            # the worker is gone; its successor inherits what it taught

For a script of somebody else scripts/silence.py finds limits of its own; the clock of a silence, the warning, the
fault and the longer limit after it are these.

watchdog.py gives the limit, as a pure function; here is what is remembered between two looks. If the length of a phase
is not known, or it is the user's own code, we look at what the silent worker waits for (waits/): one that waits for
something outside (a socket, a file, a child, its own timer) gets more time, and somebody is told before any worker is
ended. A worker that is deadlocked in a step (waits/deadlock.py) needs no limit: it will never say anything again.
`Supervisor._look` decides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.base import process_tree
from holdfast.base.board import Beat, Phase, PhaseTimes
from holdfast.base.human import duration
from holdfast.faults.classification import Fault, Kind
from holdfast.run.setting_groups import WatchdogSettings
from holdfast.supervisor.waits import Deadlock, Finding, Grade, Waits
from holdfast.supervisor.watchdog import allowed_silence, is_in_step, may_take_any_time, merge_known

LOOK_EVERY = 1.0
"""Seconds between two looks at what a silent worker waits for."""
DEADLOCK = "its threads wait for each other, without a deadline, and nobody can wake them"
PAUSE = 1.5
"""Seconds between two looks from which on this process itself was stopped: a closed lid, a paused container."""


class SilenceClock:
    """Seconds of silence while this process was there to hear: if all of us were paused, nobody hung."""

    def __init__(self, pause: float, since: float = 0.0) -> None:
        """`pause`: seconds between two looks from which on this process itself was stopped."""
        self._pause = pause
        self._heard_since = since
        self._last_look = time.monotonic()

    def begins(self) -> None:
        """A new process, or everything was stopped and goes on."""
        self._heard_since = self._last_look = time.monotonic()

    def heard(self, silence: float) -> float:
        """At every look."""
        now = time.monotonic()
        if now - self._last_look > self._pause:
            self._heard_since = now
        self._last_look = now
        return min(silence, now - self._heard_since)


class Watch:
    """Memory of the watchdog."""

    def __init__(self, settings: WatchdogSettings, tell: Callable[..., None] | None = None) -> None:
        self.settings = settings
        self._tell = tell
        self._waits = Waits()
        self._deadlock = Deadlock()
        self._deadlocked = False
        self._finding: Finding | None = None
        self._looked = 0.0
        self._told: set[Grade] = set()
        self._beats = -1
        self._known: dict[Phase, PhaseTimes] = {}
        self._stretch: dict[int | None, float] = {}
        self._clock = SilenceClock(PAUSE)

    def limit(self, beat: Beat) -> float:
        return allowed_silence(beat, self._known, self.settings, stretch=self.stretch(beat))

    def stretch(self, beat: Beat) -> float:
        """How many times as long a step may take that was called hung before."""
        return self._stretch.get(beat.at, 1.0)

    def limit_now(self, beat: Beat, silence: float) -> float:
        """As `limit`; longer where the worker waits for something outside, in a phase of unknown length.

        None is left to a worker that is deadlocked in a step.
        """
        limit = self.limit(beat)
        if beat.beats != self._beats:
            self._beats, self._finding, self._looked = beat.beats, None, 0.0
            self.heard()
            self._waits.forget()
            self._deadlock.forget()
            self._deadlocked = False
        if self._is_deadlocked(beat, silence):
            return min(limit, silence)
        if silence <= limit / 2 or beat.pid <= 0 or not may_take_any_time(beat, self._known):
            return limit
        finding = self._look(beat.pid)
        if finding.grade is Grade.WAITS:
            ends = silence + finding.until + limit if finding.until is not None else 0.0
            limit = math.inf if finding.endless else max(limit, self.settings.wait, ends)
        self._warn(beat, silence, limit, finding)
        return limit

    @property
    def suspects(self) -> bool:
        """The last look found a worker that nobody wakes: the next look should come soon."""
        return self._deadlock.suspected

    def _is_deadlocked(self, beat: Beat, silence: float) -> bool:
        """Only what is longer than any step before is worth a look."""
        usual = self.settings.factor * beat.times[beat.phase].slowest_s
        if not self._deadlocked and is_in_step(beat) and beat.pid > 0 and silence > usual:
            self._deadlocked = self._deadlock.proven(beat.pid)
        return self._deadlocked

    def _look(self, pid: int) -> Finding:
        now = time.monotonic()
        if self._finding is None or now - self._looked >= LOOK_EVERY:
            own = process_tree.look(pid)
            members = process_tree.family(pid) | ({pid: own} if own is not None else {})
            self._finding, self._looked = self._waits.look(pid, members), now
        return self._finding

    def _warn(self, beat: Beat, silence: float, limit: float, finding: Finding) -> None:
        """Somebody hears of it before anything is ended."""
        if self.warned(finding) or limit < self.settings.floor:
            return
        waits, after = finding.grade is Grade.WAITS, f"after {duration(limit)}"
        next_ = "holdfast waits" if waits else f"holdfast will treat it as hung and end it {after}"
        text = f"no sign of life for {duration(silence)} in {beat.phase.label}; {finding.words}; {next_}"
        self.warn(text, finding, silence, limit)

    def warned(self, finding: Finding) -> bool:
        """Whether this silence was told already, for what was found."""
        return finding.grade in self._told

    def warn(self, text: str, finding: Finding, silence: float, limit: float) -> None:
        """The event of a long silence, once for each grade of what is found."""
        self._told.add(finding.grade)
        if self._tell is not None:
            end = None if math.isinf(limit) else round(limit, 1)
            waits = finding.grade is Grade.WAITS
            self._tell("silent", text=text, seconds=round(silence, 1), limit_s=end, waits=waits)

    def heard(self) -> None:
        """It has said something: the next silence is told anew."""
        self._told.clear()

    def silence(self, beat: Beat) -> float:
        """The worker's silence while we were there to hear it."""
        return self._clock.heard(beat.silence)

    def fault_of_worker(self, beat: Beat, limit: float, device: str, process_state: str | None) -> Fault:
        """The fault of a worker that was silent for longer than `limit`, or is deadlocked."""
        found = {"process_state": process_state}
        message = f"silent for {beat.silence:.1f} s in {beat.phase.label}"
        if self._deadlocked:
            found["deadlock"] = DEADLOCK
            fault = self.fault_of(beat, beat.silence, None, device, f"{message}: {DEADLOCK}", found)
        else:
            fault = self.fault_of(beat, beat.silence, limit, device, f"{message}, allowed {limit:.1f} s", found)
        return fault.at(step=beat.at, phase=beat.phase.label)

    def fault_of(
        self, beat: Beat, silence: float, limit: float | None, device: str, message: str, found: Mapping[str, Any]
    ) -> Fault:
        """The fault of a silence longer than `limit`. If the step was only slow, it passes the second time."""
        self._stretch[beat.at] = 4.0 * self.stretch(beat)
        measured = {"silence_s": round(silence, 3)} | ({} if limit is None else {"limit_s": round(limit, 3)})
        return Fault(Kind.HANG, device=device, message=message, evidence={**measured, **found})

    def learn(self, beat: Beat) -> None:
        """What a worker that is gone taught."""
        self._known = merge_known(self._known, beat)

    def forget(self) -> None:
        """Another device has other times."""
        self._known = {}
