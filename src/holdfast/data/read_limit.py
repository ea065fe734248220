"""How long a batch may take before the child that reads it is called stuck.

patience = Patience()
patience.limit(fresh=False, attempt=0)       # seconds; grows with each attempt, so that what is only slow passes
patience.note(seconds)                       # a batch took that long
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Patience:
    """How long a batch may take, judged by what batches took so far."""

    floor_s: float = 5.0
    """No child is called stuck sooner."""
    first_wait_s: float = 120.0
    """For the first batch of all: a dataset opens its files, a child imports its libraries."""
    factor: float = 4.0
    """Times the slowest recent batch; and again at each respawn, so that a batch that is only slow passes."""
    fixed_s: float = 0.0
    """What the script says (`timeout=`): then nothing is measured. 0: nothing said."""
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    _firsts: deque[float] = field(default_factory=lambda: deque(maxlen=8))

    def limit(self, *, fresh: bool, attempt: int) -> float:
        """Seconds. `fresh`: the children have only just started."""
        if self.fixed_s:
            return self.fixed_s
        if fresh and not self._firsts:
            return self.first_wait_s
        slowest = max([*self._recent, *(self._firsts if fresh else ())], default=0.0)
        return float(max(self.floor_s, self.factor * slowest) * self.factor**attempt)

    def note(self, seconds: float) -> None:
        """A batch took that long in its child."""
        self._recent.append(seconds)

    def note_first(self, seconds: float) -> None:
        """The first batch of a generation was there that long after its start."""
        self._firsts.append(seconds)
