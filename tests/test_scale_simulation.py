"""The simulation of many ranks against closed forms, and that its inputs are what the result files say."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("scale_simulation")


@pytest.mark.parametrize(("interval", "checkpoint", "restart"), [(800.0, 30.0, 300.0), (100.0, 30.0, 10.0)])
def test_checkpoint_and_restart_is_what_daly_says(
    simulation: ModuleType, interval: float, checkpoint: float, restart: float
) -> None:
    draw, mtbf = random.Random(1), 10_000.0
    found = simulation.checkpoint_restart(interval, checkpoint, restart, mtbf, 20_000, draw)
    assert found == pytest.approx(simulation.expected_share(interval, checkpoint, restart, mtbf), rel=0.01)


def test_youngs_interval_is_the_best(simulation: ModuleType) -> None:
    """To first order: no interval from a third of it to three times it is better by more than 0.1 %."""
    mtbf, checkpoint = 10_000.0, 5.0
    best = simulation.best_interval(checkpoint, mtbf)
    shares = {
        factor: simulation.expected_share(factor * best, checkpoint, 60.0, mtbf)
        for factor in (0.33, 0.5, 0.8, 1.0, 1.2, 2.0, 3.0)
    }
    assert shares[1.0] > max(shares[0.5], shares[2.0]) and shares[1.0] > max(shares.values()) - 1e-3


def test_ranks_that_are_away_count_as_much_as_they_are(simulation: ModuleType) -> None:
    """One of ten ranks away for a tenth of the mean time between failures: about one in a hundred of all rank time."""
    loss = simulation.Loss(pause=0.0, away_ranks=1, away=100.0, pause_again=0.0)
    found = simulation.others_go_on(10, 1000.0, 20_000, random.Random(2), lambda _: loss, 1.0)
    assert found == pytest.approx(0.99, abs=5e-4)


def test_pauses_are_lost(simulation: ModuleType) -> None:
    """A pause of 100 s for every 1000 s of training, begun anew by failures in it: 1000 / (1000 e^0.1)."""
    loss = simulation.Loss(pause=100.0, away_ranks=0, away=0.0, pause_again=0.0)
    found = simulation.others_go_on(10, 1000.0, 40_000, random.Random(3), lambda _: loss, 1.0)
    assert found == pytest.approx(2.718281828**-0.1, rel=0.01)


def test_the_kept_result_is_what_the_simulation_says(simulation: ModuleType) -> None:
    kept = json.loads((BENCHMARKS / "results" / "scale-simulation.json").read_text())
    assert kept["measured"] == simulation.measured(), "the measured costs have changed: run it again"
    again = simulation.simulate(failures=400)
    for before, now in zip(kept["rows"], again["rows"], strict=True):
        assert now["checkpoint_restart_closed_form"] == before["checkpoint_restart_closed_form"]
        assert now["holdfast"] == pytest.approx(before["holdfast"], abs=0.01)
