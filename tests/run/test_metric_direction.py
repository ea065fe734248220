"""Which way a metric is better."""

from __future__ import annotations

import pytest

from holdfast.run.metric_direction import smaller_is_better


@pytest.mark.parametrize("name", ["loss", "valid_loss", "RMSE", "valid_nll", "error_rate", "perplexity"])
def test_less_is_better(name: str) -> None:
    assert smaller_is_better(name)


@pytest.mark.parametrize("name", ["accuracy", "r", "map50", "catches"])
def test_more_is_better(name: str) -> None:
    assert not smaller_is_better(name)
