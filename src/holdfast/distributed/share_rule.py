"""How many samples of a batch each rank should compute, from what was measured. Pure functions. No torch.

    Measured((16, 16), [[0.1, …], [0.4, …]])       # the parts as they are, and seconds for a step by rank and window
    better(measured)                               # (26, 6), or None: no gain that is larger than the noise
    is_faster(shared, alone)                       # whether windows of one way are faster than those of the other

The slowest rank decides how long a step takes. A rank's time is taken to be in proportion to its samples where it gets
more of them, which is the worst case. Where it gets fewer, the time that did not depend on samples between the last
two ways to share stays. So a gain is never promised from a cost that is fixed, and parts do not swing back and forth.

Parts change only if the gain is larger than the noise. The noise is what is not known of a median: the range that holds
it in 93 of 100 cases, whatever the windows are distributed like. With 8 windows that is all but the fastest and the
slowest; with more of them it is narrower, so what is not clear after 8 windows may be after 32.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WINDOWS = 8
"""The fewest that anything is concluded from: one may be left out at each end of so many."""


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


def middle(windows: Sequence[float]) -> tuple[float, float]:
    """The range that holds the median: so many windows are left out at each end as chance explains in 7 % of cases."""
    count, ordered = len(windows), sorted(windows)
    left_out, below = 0, 0
    while True:  # `below` of 2**count ways to throw coins show fewer heads than `left_out`
        more = below + math.comb(count, left_out)
        if more * 2**WINDOWS > (1 + WINDOWS) * 2**count:
            break
        left_out, below = left_out + 1, more
    left_out = max(0, left_out - 1)
    return ordered[left_out], ordered[count - 1 - left_out]


def width(windows: Sequence[float]) -> float:
    low, high = middle(windows)
    return high - low


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
    """Whether the median of `one` is below that of `other` for certain: the ranges that hold them do not overlap."""
    return middle(one)[1] < middle(other)[0]
