"""How many samples of a batch each rank should compute, from what was measured. Pure functions. No torch.

    Measured((16, 16), [[0.1, …], [0.4, …]])       # the parts as they are, and seconds for a step by rank and window
    better(measured)                               # (26, 6), or None: no gain that is larger than the noise
    is_faster(shared, alone)                       # whether windows of one way are faster than those of the other

The slowest rank decides how long a step takes. A rank's time is taken to be in proportion to its samples where it gets
more of them, which is the worst case. Where it gets fewer, the time that did not depend on samples between the last
two ways to share stays. So a gain is never promised from a cost that is fixed, and parts do not swing back and forth.

Parts change only if the gain is larger than the noise: the width of a rank's windows without the fastest and the
slowest, of the rank where it is largest.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """One way to share, and how long the ranks took."""

    counts: tuple[int, ...]
    windows: Sequence[Sequence[float]]
    """Seconds for a step, without waiting for others: by rank, then by window."""

    @property
    def computed(self) -> tuple[int, ...]:
        """A rank without a part computes one sample, which does not count."""
        return tuple(max(1, count) for count in self.counts)

    @property
    def times(self) -> list[float]:
        return [statistics.median(each) for each in self.windows]

    @property
    def noise(self) -> float:
        return max(map(width, self.windows))


def width(windows: Sequence[float]) -> float:
    """How much windows differ: all but the fastest and the slowest."""
    kept = sorted(windows)[1:-1]
    return kept[-1] - kept[0]


def better(now: Measured, before: Measured | None = None) -> tuple[int, ...] | None:
    """Other parts of the same batch, each of one sample or more. `before` is how it was shared last, with its times."""
    samples, ranks = sum(now.counts), len(now.counts)
    if samples < ranks:
        return None
    times = now.times
    fixed = [_fixed(now, before, rank) for rank in range(ranks)]

    def time(rank: int, count: int) -> float:
        had, took = now.computed[rank], times[rank]
        if count >= had:
            return took * count / had
        return fixed[rank] + (took - fixed[rank]) * count / had

    counts = [1] * ranks
    queue = [(time(rank, 2), rank) for rank in range(ranks)]
    heapq.heapify(queue)
    for _ in range(samples - ranks):  # each sample goes to the rank that is through with it first
        _, rank = heapq.heappop(queue)
        counts[rank] += 1
        heapq.heappush(queue, (time(rank, counts[rank] + 1), rank))
    expected = max(time(rank, count) for rank, count in enumerate(counts))
    found = tuple(counts)
    return found if found != now.counts and max(times) - expected > now.noise else None


def _fixed(now: Measured, before: Measured | None, rank: int) -> float:
    """Seconds of a rank's step that do not depend on its samples, as far as two ways to share show that."""
    took, had = now.times[rank], now.computed[rank]
    if before is None or before.computed[rank] == had:
        return 0.0
    slope = (before.times[rank] - took) / (before.computed[rank] - had)
    return min(took, max(0.0, took - slope * had))


def is_faster(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether all but one window of `one` are faster than all but one of `other`, and by more than windows differ."""
    gap = statistics.median(other) - statistics.median(one)
    return sorted(one)[-2] < sorted(other)[1] and gap > max(width(one), width(other))
