"""Fewer points with the same look: of every bucket its lowest and its highest stay, so that no peak is lost.

    xs, ys = downsample(steps, losses, 800)      # at most about 800 points, in order, the first and last among them

    tops = Peaks()                               # the same for columns that grow: nothing is looked at twice
    tops.extend(losses)
    at = tops.pick(losses, 0, len(losses), 800)  # positions to keep

A value that is not finite is kept once a bucket, as NaN: a curve that breaks off must be seen to break off.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

BLOCK = 512
"""Values that are looked at once and then known by their lowest and highest."""
_NONE = 0xFFFFFFFF
_BYTES = 2 * array("d").itemsize + 3 * array("I").itemsize
"""What is kept of a block."""


def downsample(xs: Sequence[float], ys: Sequence[float], n: int) -> tuple[list[float], list[float]]:
    """At most about `n` points (never less than 2 a bucket, and at least one bucket) that keep every peak."""
    count = min(len(xs), len(ys))
    keep = _pick_exactly(ys, 0, count, max(1, n))
    return [xs[at] for at in keep], [ys[at] if math.isfinite(ys[at]) else math.nan for at in keep]


def _pick_exactly(ys: Sequence[float], first: int, last: int, n: int) -> list[int]:
    if last - first <= n:
        return list(range(first, last))
    buckets = max(1, n // 2)
    keep = {first, last - 1}
    for bucket in range(buckets):
        begin = first + bucket * (last - first) // buckets
        end = first + (bucket + 1) * (last - first) // buckets
        keep.update(_extremes(ys, begin, end))
    return sorted(keep)


def _extremes(ys: Sequence[float], begin: int, end: int) -> list[int]:
    """Where the lowest and the highest finite value are, and the first that is not finite."""
    part = array("d", ys[begin:end])
    if not part:
        return []
    if math.isfinite(sum(part)):  # C speed: with anything else in it, the sum is not finite
        return [begin + part.index(min(part)), begin + part.index(max(part))]
    finite = [value for value in part if math.isfinite(value)]
    found = [begin + part.index(min(finite)), begin + part.index(max(finite))] if finite else []
    bad = next((at for at, value in enumerate(part) if not math.isfinite(value)), None)
    return found if bad is None else [*found, begin + bad]


class Peaks:
    """The lowest, the highest and the first broken value of every block of a column, and where they are."""

    def __init__(self, saved: bytes = b"") -> None:
        self._at = (array("I"), array("I"), array("I"))
        """In its block: the lowest, the highest, the first that is not finite; or _NONE."""
        self._lows, self._highs = array("d"), array("d")
        blocks, rest = divmod(len(saved), _BYTES)
        if not rest:
            view = memoryview(saved)
            for part in (self._lows, self._highs, *self._at):
                part.frombytes(view[: blocks * part.itemsize])
                view = view[blocks * part.itemsize :]

    def to_bytes(self) -> bytes:
        return b"".join(part.tobytes() for part in (self._lows, self._highs, *self._at))

    @property
    def blocks(self) -> int:
        return len(self._lows)

    def extend(self, ys: Sequence[float]) -> None:
        """Look at the blocks that are full now; those that were cut off are forgotten."""
        full = len(ys) // BLOCK
        for part in (self._lows, self._highs, *self._at):
            del part[full:]
        for block in range(self.blocks, full):
            begin = block * BLOCK
            found = _extremes(ys, begin, begin + BLOCK)
            finite, bad = found[:2] if len(found) >= 2 else [], found[2:] if len(found) != 1 else found
            self._lows.append(ys[finite[0]] if finite else math.inf)
            self._highs.append(ys[finite[1]] if finite else -math.inf)
            for part, at in zip(self._at, [*(finite or (None, None)), *(bad or (None,))], strict=True):
                part.append(_NONE if at is None else at - begin)

    def pick(self, ys: Sequence[float], first: int, last: int, n: int) -> list[int]:
        """Positions between `first` and `last` that keep every peak, at most about `n`."""
        buckets = max(1, n // 2)
        width = -(-(last - first) // buckets // BLOCK) * BLOCK
        if (last - first) // buckets < BLOCK:
            return _pick_exactly(ys, first, last, n)
        keep = {first, last - 1}
        begin = first
        while begin < last:  # up to the next border of blocks, so that what is known of them is enough
            end = min(last, (begin // width + 1) * width)
            keep.update(self._of_bucket(ys, begin, end))
            begin = end
        return sorted(keep)

    def _of_bucket(self, ys: Sequence[float], begin: int, end: int) -> list[int]:
        """From whole blocks what is known of them, from the rest what they hold."""
        inner, outer = -(-begin // BLOCK), min(end // BLOCK, self.blocks)
        if inner >= outer:
            return _extremes(ys, begin, end)
        there = _extremes(ys, begin, inner * BLOCK) + _extremes(ys, outer * BLOCK, end)
        known = self._of_blocks(inner, outer)
        if not there:
            return known
        values = {at: ys[at] for at in [*there, *known]}
        finite = [at for at, value in values.items() if math.isfinite(value)]
        bad = [at for at, value in values.items() if not math.isfinite(value)]
        found = [min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)] if finite else []
        return [*found, min(bad)] if bad else found

    def _of_blocks(self, first: int, last: int) -> list[int]:
        """The same from whole blocks alone: not one value is read."""
        lows, highs, (low_at, high_at, bad_at) = self._lows[first:last], self._highs[first:last], self._at
        found = []
        low, high = first + lows.index(min(lows)), first + highs.index(max(highs))
        if low_at[low] != _NONE:
            found = [low * BLOCK + low_at[low], high * BLOCK + high_at[high]]
        bad = next((block for block in range(first, last) if bad_at[block] != _NONE), None)
        return found if bad is None else [*found, bad * BLOCK + bad_at[bad]]
