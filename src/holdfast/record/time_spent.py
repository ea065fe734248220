"""Where a run's time goes, by phase: all of it, and the last minute of it.

    spending = Spending()
    spending.note(beat)                  # once a second, from the board; workers may come and go
    spending.total_s()                   # {"data": 62.1, "forward": 20.4, …} since this supervisor started
    spending.recent_s()                  # the same of the last minute

The worker adds up its own phases on the board; here those of a run's workers are put together. Set-up is left out:
it is shown by its own progress, and says nothing about a step.
"""

from __future__ import annotations

import time
from collections import deque

from holdfast.base.board import Beat, Phase

WINDOW = 60.0
_LEFT_OUT = (Phase.SETUP, Phase.COMPILE)


class Spending:
    """Seconds by phase, of every worker so far."""

    def __init__(self) -> None:
        self._earlier: dict[Phase, float] = {}
        self._now: dict[Phase, float] = {}
        self._generation: int | None = None
        self._past: deque[tuple[float, dict[Phase, float]]] = deque(maxlen=int(WINDOW) + 1)

    def note(self, beat: Beat, now: float | None = None) -> None:
        """Take a reading. One that is a little late loses the rest of a worker's last second, no more."""
        if self._generation is not None and beat.generation != self._generation:
            for phase, seconds in self._now.items():
                self._earlier[phase] = self._earlier.get(phase, 0.0) + seconds
        self._generation = beat.generation
        self._now = {phase: times.spent_s for phase, times in beat.times.items() if phase not in _LEFT_OUT}
        if beat.phase not in _LEFT_OUT:  # the phase it is in is not over, and may be a long one
            self._now[beat.phase] += beat.silence
        now = time.monotonic() if now is None else now
        if not self._past:
            self._past.append((now, {}))
        self._past.append((now, self._sum()))

    def _sum(self) -> dict[Phase, float]:
        return {phase: self._now.get(phase, 0.0) + self._earlier.get(phase, 0.0) for phase in Phase}

    def total_s(self) -> dict[str, float]:
        return _labelled(self._past[-1][1]) if self._past else {}

    def recent_s(self) -> dict[str, float]:
        if not self._past:
            return {}
        newest, last = self._past[-1]
        before = next((totals for when, totals in self._past if newest - when <= WINDOW), {})
        return _labelled({phase: seconds - before.get(phase, 0.0) for phase, seconds in last.items()})


def _labelled(seconds: dict[Phase, float]) -> dict[str, float]:
    return {phase.label: round(spent, 3) for phase, spent in seconds.items() if spent > 0.0005}
