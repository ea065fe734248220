"""Which rank holds the others up, and with what: from the times that the ranks' boards have anyway. No torch.

    stragglers = Stragglers()
    slow = stragglers.look(seen)          # once a second; a Slow when a rank is found to be slow, else None
    slow.sentence                         # rank 2 holds the others up: reading data takes 41 ms a step there, …

Each rank adds up on its board (base/board.py) how long it has been in each phase. All ranks do the same steps, so time
for reading data, computing and the script's own code can be compared; a fast rank spends the rest waiting for the
others. A window is a second or more, SET windows make a set. A rank is slow in a set if all but one of its windows are
slower than all but one of the windows of each other rank, and by more than those windows differ among themselves. It
is named after two such sets in a row. With two ranks that are alike that comes about once in 50,000 sets (simulated),
and more rarely with more of them, as long as windows are independent of each other.

Backward is left out: inside of DistributedDataParallel it has the waiting in it. On an accelerator the times are those
of the host, which hands out work: a slow card is not seen here, slow data is. A slow network holds up all ranks alike,
so no rank is named for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.base.board import Beat, Phase
from holdfast.base.human import duration
from holdfast.distributed.rank_watch import Seen

SET = 8
"""Windows."""
WINDOW = 1.0
"""Seconds of a window, at least: a window has one step or more."""
PARTS = {
    "data": (Phase.DATA,),
    "compute": (Phase.TO_DEVICE, Phase.FORWARD, Phase.OPTIMIZER),
    "own code": (Phase.LOOP,),
}
_WORDS = {"data": "reading data", "compute": "computing", "own code": "the script's own code"}

Row = dict[str, float]
"""Seconds for a step, by part."""


@dataclass(slots=True)
class _Set:
    """The windows of one set, by rank."""

    pids: tuple[int, ...]
    since: float
    began: list[Beat]
    windows: dict[int, list[Row]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slow:
    """One rank that holds the others up."""

    rank: int
    part: str
    own_s: float
    others_s: float
    """Seconds for a step: of this rank, and of the slowest of the others."""

    @property
    def sentence(self) -> str:
        own, others = duration(self.own_s), duration(self.others_s)
        text = f"rank {self.rank} holds the others up: {_WORDS[self.part]} takes {own} a step there"
        text += f", {others} in the slowest of the others"
        return text


class Stragglers:
    """Looks at the boards of one launch, again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._set: _Set | None = None
        self._suspect: Slow | None = None
        self.named: Slow | None = None

    def look(self, seen: Iterable[Seen]) -> Slow | None:
        """News: a rank that is slow from here on. `named` is None again once it is not."""
        found = sorted(seen, key=lambda each: each.rank)
        now = self._clock()
        current = self._set
        pids = tuple(each.pid for each in found)
        if current is None or current.pids != pids:  # other processes: their times begin anew
            self._suspect = None
            self._begin(found, now)
            return None
        if now - current.since < WINDOW or any(
            each.beat.attempts <= before.attempts for each, before in zip(found, current.began, strict=True)
        ):
            return None
        for each, before in zip(found, current.began, strict=True):
            current.windows.setdefault(each.rank, []).append(per_step(before, each.beat))
        current.since, current.began = now, [each.beat for each in found]
        if len(current.windows[found[0].rank]) < SET:
            return None
        verdict = judge(current.windows)
        self._begin(found, now)
        return self._hear(verdict)

    def _begin(self, found: list[Seen], now: float) -> None:
        pids = tuple(each.pid for each in found)
        self._set = _Set(pids, now, [each.beat for each in found]) if len(found) > 1 else None

    def _hear(self, verdict: Slow | None) -> Slow | None:
        before, self._suspect = self._suspect, verdict
        if verdict is None:
            self.named = None
            return None
        if before is None or before.rank != verdict.rank or (self.named and self.named.rank == verdict.rank):
            return None
        self.named = verdict
        return verdict


def per_step(before: Beat, now: Beat) -> Row:
    steps = now.attempts - before.attempts
    return {
        part: sum(now.times[phase].spent_s - before.times[phase].spent_s for phase in phases) / steps
        for part, phases in PARTS.items()
    }


def judge(windows: dict[int, list[Row]]) -> Slow | None:
    """The one rank that is slower than all others in these windows."""
    totals = {rank: sorted(sum(row.values()) for row in rows) for rank, rows in windows.items()}
    slowest = max(totals, key=lambda rank: statistics.median(totals[rank]))
    others = {rank: each for rank, each in totals.items() if rank != slowest}
    low = totals[slowest][1]  # all but one of its windows are slower than this
    high, spread = max(each[-2] for each in others.values()), _spread(others.values())
    if low <= high or statistics.median(totals[slowest]) - max(map(statistics.median, others.values())) <= spread:
        return None
    gaps = {part: _median(windows[slowest], part) - _most(windows, slowest, part) for part in PARTS}
    part = max(gaps, key=lambda each: gaps[each])
    own = _median(windows[slowest], part)
    return Slow(slowest, part, own, _most(windows, slowest, part))


def _spread(rows: Iterable[list[float]]) -> float:
    """How much windows of ranks that are not slow differ: all but the fastest and the slowest of each rank."""
    kept = [value for each in rows for value in each[1:-1]]
    return max(kept) - min(kept)


def _median(rows: list[Row], part: str) -> float:
    return statistics.median(row[part] for row in rows)


def _most(windows: dict[int, list[Row]], slowest: int, part: str) -> float:
    return max(_median(rows, part) for rank, rows in windows.items() if rank != slowest)
