"""How far a right answer may be off: from what rounding does, and in a recurrence from how often it does it."""

from __future__ import annotations

import pytest

from holdfast.probes import layers
from holdfast.probes.compare import MARGIN, MOST, bound
from holdfast.worker.precision import ROUNDING

FP32 = ROUNDING["fp32"]


def test_a_bound_is_what_was_measured_and_a_margin() -> None:
    assert bound(5 * FP32, "fp32") == MARGIN * 5 * FP32
    assert bound(0.0, "fp32") == MARGIN * FP32, "what came out exact by luck may be off by some roundings"
    assert bound(0.3, "bf16") == MOST, "zeros instead of an answer are off by 1, and must never pass"


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_a_recurrence_in_less_than_fp32_gets_no_more_than_its_roundings(precision: str) -> None:
    assert bound(0.0, precision, 13) <= 1.01 * MARGIN * ROUNDING[precision]


def test_errors_of_a_recurrence_add_up() -> None:
    """cuDNN's LSTM and GRU on an H200 are off by 1.6e-6 and 3.2e-6 after 12 steps, the CPU's by 0.9e-7 and 1.5e-7."""
    lstm, gru = layers.build("lstm"), layers.build("gru")
    assert (lstm.depth, gru.depth, layers.build("conv2d").depth) == (13, 13, 1)
    assert layers.build("lstm", small=True).depth == 6
    assert 1.6e-6 < bound(0.9e-7, "fp32", lstm.depth) < 2e-5
    assert 3.2e-6 < bound(1.5e-7, "fp32", gru.depth) < 2e-5
    assert bound(FP32, "fp32", 1) == MARGIN * FP32, "nothing else gets more than before"
