"""Candidates that are fast and wrong are refused, with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.optimize.parity import judge, unfit

RNG = np.random.default_rng(0)
TRUE = RNG.standard_normal((64, 3)).astype(np.float32)


def test_the_same_answers_pass() -> None:
    found = judge([TRUE], [TRUE + 1e-4], {"r": 0.6}, {"r": 0.6})
    assert found.ok and found.agreement is not None and found.agreement > 0.999


def test_nan_is_refused() -> None:
    bad = TRUE.copy()
    bad[3, 1] = np.nan
    assert judge([TRUE], [bad], {}, {}).reason == "the answers hold NaN or infinity for 1 of 64 inputs"


def test_a_constant_is_refused() -> None:
    assert judge([TRUE], [np.ones_like(TRUE)], {}, {}).reason == "the answer is the same for all 64 inputs"
    assert unfit([np.full((5, 1), 3.0)])
    assert not unfit([np.full((1, 1), 3.0)]), "one input says nothing about constancy"


def test_shuffled_answers_are_refused_as_such() -> None:
    assert "shuffled" in judge([TRUE], [TRUE[RNG.permutation(64)]], {}, {}).reason
    assert "shuffled" in judge([TRUE], [np.roll(TRUE, 1, axis=0)], {"r": 0.01}, {"r": 0.01}).reason


def test_rough_answers_are_not_called_shuffled() -> None:
    rough = TRUE + RNG.normal(size=TRUE.shape).astype(TRUE.dtype) * 0.3 * TRUE.std(axis=0)
    assert "shuffled" not in judge([TRUE], [rough], {"r": 0.75}, {"r": 0.69}).reason


@pytest.mark.parametrize(
    ("before", "after", "ok"),
    [({"r": 0.6}, {"r": 0.5969}, False), ({"r": 0.6}, {"r": 0.5975}, True), ({"r": 0.6}, {"r": 0.7}, True)],
)
def test_half_a_percent_of_the_score_is_the_limit(before: dict[str, float], after: dict[str, float], ok: bool) -> None:
    assert judge([TRUE], [TRUE], before, after).ok is ok


def test_less_is_better_for_an_error() -> None:
    refused = judge([TRUE], [TRUE], {"nrmse": 0.80}, {"nrmse": 0.81}, higher_is_worse={"nrmse": -1})
    assert refused.reason == "nrmse goes from 0.8000 to 0.8100: a loss of 1.3 %, allowed are 0.5 %"
    assert judge([TRUE], [TRUE], {"nrmse": 0.80}, {"nrmse": 0.81}, max_loss=0.02, higher_is_worse={"nrmse": -1}).ok


def test_what_the_noise_of_a_score_explains_is_no_loss() -> None:
    before, after = {"catches": 5.0, "catches_spread": 0.3}, {"catches": 4.6, "catches_spread": 0.3}
    assert judge([TRUE], [TRUE], before, after).ok
    assert not judge([TRUE], [TRUE], before, {**after, "catches": 3.0}).ok


def test_an_equal_score_by_luck_does_not_help_other_answers() -> None:
    other = RNG.standard_normal(TRUE.shape).astype(np.float32) * 3
    assert "agree" in judge([TRUE], [other], {"r": 0.1}, {"r": 0.1}).reason


def test_other_shapes_and_missing_scores_are_refused() -> None:
    assert "shapes" in judge([TRUE], [TRUE[:, :2]], {}, {}).reason
    assert "scored" in judge([TRUE], [TRUE], {"r": 0.5}, {}).reason


def test_without_a_score_the_outputs_decide() -> None:
    assert judge([TRUE], [TRUE * 1.02], {}, {}).ok
    assert not judge([TRUE], [TRUE * 1.2], {}, {}).ok
