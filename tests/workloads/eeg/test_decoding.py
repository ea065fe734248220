"""Within-subject decoding: finds what is there, and nothing where nothing is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import decoding


def windows(strength: float, *, recordings: int = 4, count: int = 200, events: tuple[str, ...] = ("a", "b")) -> Any:
    random = np.random.default_rng(0)
    rare = random.random(count) < 0.3
    signals = random.normal(size=(count, 4, 100)).astype(np.float32)
    signals[rare, 1, 30:60] += strength
    signals[:, 3] = 0.0
    table = {
        "subject": np.full(count, "S1"),
        "task": np.full(count, "P300"),
        "event": np.where(rare, events[-1], events[0]),
        "recording": np.array([f"run-{number * recordings // count}" for number in range(count)]),
        "onset": np.arange(count, dtype=float),
    }
    made = type("Made", (SimpleNamespace,), {"__len__": lambda self: count})
    return made(table=table, rate=100.0, simulated=True, folder=Path("cache"), batch=lambda rows: signals[rows])


def test_a_clear_difference_is_found_and_its_interval_holds_it() -> None:
    (row,) = decoding.within_subject(windows(1.0))
    assert row["auroc"] > 0.9
    assert row["auroc_low"] <= row["auroc"] <= row["auroc_high"]
    assert row["events"] == ["a", "b"] and row["groups"] == 4
    assert decoding.lines([row])[0].startswith("S1: b from a, AUROC 0.9")


@pytest.mark.all
@pytest.mark.parametrize("recordings", [1, 4])
def test_nothing_is_found_where_nothing_is(recordings: int) -> None:
    (row,) = decoding.within_subject(windows(0.0, recordings=recordings))
    assert 0.35 < row["auroc"] < 0.65
    assert row["groups"] == (8 if recordings == 1 else 4)


def test_one_kind_of_event_cannot_be_decoded() -> None:
    with pytest.raises(UserError, match="nothing can be decoded"):
        decoding.within_subject(windows(1.0, events=("a", "a")))


def test_the_discriminant_is_the_known_one_where_there_is_plenty_of_data() -> None:
    """Two round clouds: the direction is that between their means."""
    random = np.random.default_rng(1)
    label = random.random(20_000) < 0.5
    x = random.normal(size=(20_000, 3)) + np.where(label[:, None], [1.0, 0.0, -1.0], 0.0)
    weights, bias = decoding.discriminant(x, label)
    assert weights / np.linalg.norm(weights) == pytest.approx(np.array([1, 0, -1]) / np.sqrt(2), abs=0.03)
    assert bias == pytest.approx(-float(weights @ [0.5, 0.0, -0.5]), abs=0.05)
