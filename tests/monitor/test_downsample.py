"""Fewer points of a curve, and no peak lost."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.monitor.downsample import BLOCK, Peaks, downsample


@given(st.lists(st.floats(), max_size=400), st.integers(1, 60))
def test_no_peak_is_lost(values: list[float], n: int) -> None:
    xs, ys = downsample(range(len(values)), values, n)
    assert len(xs) <= max(n, 3 * max(1, n // 2) + 2)
    assert list(xs) == sorted(set(xs))
    finite = [value for value in values if math.isfinite(value)]
    kept = [value for value in ys if math.isfinite(value)]
    assert bool(finite) == bool(kept)
    if finite:
        assert (min(finite), max(finite)) == (min(kept), max(kept))
    assert any(map(math.isnan, ys)) == (len(finite) < len(values))


def test_known_blocks_give_the_same_peaks() -> None:
    generator = random.Random(4)
    values = [generator.gauss(0, 1) for _ in range(40 * BLOCK + 77)]
    spikes = {3: 50.0, 9000: -60.0, 17000: 70.0, len(values) - 1: 80.0}
    for position, value in spikes.items():
        values[position] = value
    values[11111] = math.nan
    peaks = Peaks()
    peaks.extend(values[: 10 * BLOCK + 5])
    peaks.extend(values)
    positions = peaks.pick(values, 0, len(values), 40)
    assert set(spikes) | {0, 11111} <= set(positions)
    assert len(positions) <= 3 * 20 + 2 + 3
    again = Peaks(peaks.to_bytes())
    assert again.pick(values, 700, 30_000, 20) == peaks.pick(values, 700, 30_000, 20)
    assert {9000, 17000} <= set(again.pick(values, 700, 30_000, 20))
