"""The time left: what a person sees must not jump, and must be right before long."""

from __future__ import annotations

import itertools

import pytest

from holdfast.record import reporter
from holdfast.record.reporter import Rate


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(reporter.time, "monotonic", lambda: made.now)
    return made


def train(rate: Rate, clock: Clock, step: int, seconds: float, per_second: float, total: int = 10_000) -> list[float]:
    """Committed steps once a second, and the time left said after each."""
    said = []
    for second in range(int(seconds)):
        clock.now += 1.0
        rate.note(step + int((second + 1) * per_second))
        left = rate.time_left(step + int((second + 1) * per_second), total)
        said += [] if left is None else [left]
    return said


def test_a_steady_run_counts_down(clock: Clock) -> None:
    said = train(Rate(), clock, 0, 120, 10)
    assert said[-1] == pytest.approx(880, rel=0.02)
    falls = [before - after for before, after in itertools.pairwise(said[10:])]
    assert all(0.5 < fall < 1.5 for fall in falls), "a second a second"


def test_an_outage_does_not_make_it_jump(clock: Clock) -> None:
    rate = Rate()
    before = train(rate, clock, 0, 120, 10)[-1]
    clock.now += 20.0  # a hang, and a new worker
    after = train(rate, clock, 1200, 30, 10)
    jumps = [abs(b - a) for a, b in itertools.pairwise(after)]
    assert abs(after[0] - before) < 0.15 * before
    assert max(jumps) < 5
    assert train(rate, clock, 1500, 300, 10)[-1] == pytest.approx((10_000 - 4500) / 10, rel=0.1)


def test_another_speed_is_learned_within_seconds_when_it_is_known_to_be_another(clock: Clock) -> None:
    rate = Rate()
    train(rate, clock, 0, 60, 1)
    clock.now += 30.0  # a pause of a limit
    rate.forget()
    assert rate.time_left(60, 10_000) is None, "better nothing than wrong"
    said = train(rate, clock, 60, 10, 10)
    assert said[0] == pytest.approx(994, rel=0.05)
    assert said[-1] == pytest.approx(984, rel=0.05)
