"""The watch over one run's workers: what they taught, and how long the one there is now may still be silent.

    watch = Watch(settings.watchdog, tell)
    limit = watch.weighed(beat, watch.silence(beat))   # seconds of silence allowed in the phase it is in
    if watch.silence(beat) >= limit:
        fault = watch.hung(beat, limit, device, state)     # its step is allowed four times as long again
    watch.learn(beat)                            # the worker is gone; its successor inherits what it taught

The judgement itself is pure and in watchdog.py; here is what is remembered between two looks. Where nothing was
learned, and in the user's own code, it is looked at what a silent worker waits for: one that waits for something
outside (a socket, a file, a child, its own timer) is not called hung, and somebody is told before any worker is ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from holdfast.base import process_tree
from holdfast.base.board import Beat, Phase, PhaseTimes
from holdfast.base.human import duration
from holdfast.faults.classification import Fault, Kind
from holdfast.run.setting_groups import WatchdogSettings
from holdfast.supervisor.waits import Finding, Grade, Waits
from holdfast.supervisor.watchdog import allowed_silence, is_open, merge_known

LOOK_EVERY = 1.0
"""Seconds between two looks at what a silent worker waits for."""
PAUSE = 1.0
"""Seconds between two looks from which on this process itself was stopped: a closed lid, a paused container."""


class Watch:
    """Memory of the watchdog."""

    def __init__(self, settings: WatchdogSettings, tell: Callable[..., None] | None = None) -> None:
        self.settings = settings
        self._tell = tell
        self._waits = Waits()
        self._finding: Finding | None = None
        self._looked = 0.0
        self._told: set[Grade] = set()
        self._beats = -1
        self._known: dict[Phase, PhaseTimes] = {}
        self._stretch: dict[int | None, float] = {}
        self._last_look = time.monotonic()
        self._heard_since = 0.0

    def limit(self, beat: Beat) -> float:
        return allowed_silence(beat, self._known, self.settings, stretch=self._stretch.get(beat.at, 1.0))

    def weighed(self, beat: Beat, silence: float) -> float:
        """As `limit`; longer where the worker waits for something outside, in a phase of unknown length."""
        limit = self.limit(beat)
        if beat.beats != self._beats:
            self._beats, self._finding, self._looked = beat.beats, None, 0.0
            self._told.clear()
            self._waits.forget()
        if silence <= limit / 2 or beat.pid <= 0 or not is_open(beat, self._known):
            return limit
        finding = self._look(beat.pid)
        if finding.grade is Grade.WAITS:
            ends = silence + finding.until + limit if finding.until is not None else 0.0
            limit = math.inf if finding.endless else max(limit, self.settings.wait, ends)
        self._warn(beat, silence, limit, finding)
        return limit

    def _look(self, pid: int) -> Finding:
        now = time.monotonic()
        if self._finding is None or now - self._looked >= LOOK_EVERY:
            own = process_tree.look(pid)
            members = process_tree.family(pid) | ({pid: own} if own is not None else {})
            self._finding, self._looked = self._waits.look(pid, members), now
        return self._finding

    def _warn(self, beat: Beat, silence: float, limit: float, finding: Finding) -> None:
        """Somebody hears of it before anything is ended."""
        if self._tell is None or finding.grade in self._told or limit < self.settings.floor:
            return
        self._told.add(finding.grade)
        waits, after = finding.grade is Grade.WAITS, f"after {duration(limit)}"
        next_ = "holdfast waits" if waits else f"holdfast will treat it as hung and end it {after}"
        text = f"no sign of life for {duration(silence)} in {beat.phase.label}; {finding.words}; {next_}"
        end = None if math.isinf(limit) else round(limit, 1)
        self._tell("silent", text=text, seconds=round(silence, 1), limit_s=end, waits=waits)

    def silence(self, beat: Beat) -> float:
        """The worker's silence while we were there to hear it: if all of us were paused, nobody hung."""
        now = time.monotonic()
        if now - self._last_look > PAUSE:
            self._heard_since = now
        self._last_look = now
        return min(beat.silence, now - self._heard_since)

    def hung(self, beat: Beat, limit: float, device: str, process_state: str | None) -> Fault:
        """The fault of a silence longer than `limit`. If the step was only slow, it passes the second time."""
        self._stretch[beat.at] = 4.0 * self._stretch.get(beat.at, 1.0)
        return Fault(
            Kind.HANG,
            device=device,
            step=beat.at,
            phase=beat.phase.label,
            message=f"silent for {beat.silence:.1f} s in {beat.phase.label}, allowed {limit:.1f} s",
            evidence={
                "silence_s": round(beat.silence, 3),
                "limit_s": round(limit, 3),
                "process_state": process_state,
            },
        )

    def learn(self, beat: Beat) -> None:
        """What a worker that is gone taught."""
        self._known = merge_known(self._known, beat)

    def forget(self) -> None:
        """Another device has other times."""
        self._known = {}
