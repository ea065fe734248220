"""The time that a search may take in all, kept by giving no question more than what is left.

clock = Clock(300.0)
clock.within(600.0)           # seconds until a deadline, never more than are left for trying
clock.over                    # nothing new is begun
clock.words()                 # "2 min 10 s left"

A part is kept for the end: the bundle is written in any case.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.base.human import duration

KEPT = 0.1
"""The share of the time that is kept for the profile and the bundle, up to MOST_KEPT seconds."""
MOST_KEPT = 20.0
LEAST = 1.0


@dataclass
class Clock:
    """Starts when it is made."""

    limit_s: float
    now: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.now()

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return max(0.0, self.limit_s - (self.now() - self.began))

    @property
    def to_try(self) -> float:
        """Seconds that candidates may still take."""
        return max(0.0, self.left - min(KEPT * self.limit_s, MOST_KEPT))

    @property
    def over(self) -> bool:
        return self.to_try <= 0.0

    def within(self, deadline_s: float) -> float:
        """A deadline that is not later than the limit. Who is asked at all gets a second."""
        return max(LEAST, min(deadline_s, self.to_try))

    def at_the_end(self, deadline_s: float) -> float:
        return max(LEAST, min(deadline_s, self.left))

    def words(self) -> str:
        return "no limit" if math.isinf(self.limit_s) else f"{duration(self.to_try)} left"
