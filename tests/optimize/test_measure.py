"""Ratios out of times that are known: stalls must not flatter anybody."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.optimize import measure


class Scripted:
    """Answers as a child does, with times from a script."""

    def __init__(self, times: list[float]) -> None:
        self.times, self.at = times, 0

    def ask(self, command: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        self.at += 1
        return {"times": [self.times[self.at % len(self.times)]] * 3}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SETTLE", 0.0)


def found(baseline: list[float], child: list[float]) -> dict[str, Any]:
    return measure.against(Scripted(baseline), Scripted(child), seconds=100.0)  # type: ignore[arg-type]


def test_a_steady_machine_gives_the_plain_ratio() -> None:
    assert found([0.010], [0.002])["ratio"] == pytest.approx(5.0)
    assert found([0.002], [0.010])["ratio"] == pytest.approx(0.2)


def test_rounds_in_which_the_baseline_stalls_do_not_count_for_the_candidate() -> None:
    steady, stalled = [0.010], [0.010, 0.010, 0.010, 1.0]
    assert found(stalled, [0.002])["ratio"] == pytest.approx(found(steady, [0.002])["ratio"])


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(each) for each in range(1, 101)]
    assert [measure.percentile(values, each) for each in (0.0, 0.5, 0.95, 0.99, 1.0)] == [1, 51, 95, 99, 100]
    assert measure.percentile([7.0], 0.99) == 7.0
