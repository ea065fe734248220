"""The watch over one run's workers: what they taught, and how long the one there is now may still be silent.

    watch = Watch(settings.watchdog)
    limit = watch.limit(beat)                    # seconds of silence allowed in the phase it is in
    if watch.silence(beat) >= limit:
        fault = watch.hung(beat, limit, device, state)     # its step is allowed four times as long again
    watch.learn(beat)                            # the worker is gone; its successor inherits what it taught

The judgement itself is pure and in watchdog.py; here is what is remembered between two looks.
"""

from __future__ import annotations

import time

from holdfast.runtime.board import Beat, Phase, PhaseTimes
from holdfast.runtime.faults import Fault, Kind
from holdfast.runtime.watchdog import allowed_silence, merge_known
from holdfast.settinggroups import WatchdogSettings

PAUSE = 1.0
"""Seconds between two looks from which on this process itself was stopped: a closed lid, a paused container."""


class Watch:
    """Memory of the watchdog."""

    def __init__(self, settings: WatchdogSettings) -> None:
        self.settings = settings
        self._known: dict[Phase, PhaseTimes] = {}
        self._stretch: dict[int | None, float] = {}
        self._last_look = time.monotonic()
        self._heard_since = 0.0

    def limit(self, beat: Beat) -> float:
        return allowed_silence(beat, self._known, self.settings, stretch=self._stretch.get(beat.at, 1.0))

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
