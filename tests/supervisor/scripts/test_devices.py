"""Devices that fail again and again, and memory that is too small: what a script is told through its environment.

No accelerator is here: the script sees a pretended one, which is visible as long as CUDA_VISIBLE_DEVICES does not hide
it, and raises what torch raises. What is tried, left and returned to is the real thing, and so is each process.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.supervisor.scripts.driving import SCRIPTS, by_itself, same_weights, under_run, weights

STEPS = 300
LEAVE_AT_ONCE = ("retry.in_a_row=1", "probation.first_delay=1s", "probation.steps=2")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_device_that_fails_is_left_for_the_cpu_and_returned_to(tmp_path: Path) -> None:
    plain = SCRIPTS / "plain_script.py"
    assert by_itself(tmp_path / "alone", plain, "--steps", STEPS).code == 0
    faulty = {"FAULT_WHERE": "visible", "FAULT_TIMES": "1"}
    words = (plain, "--steps", STEPS)
    ran = under_run(
        tmp_path / "watched",
        *words,
        settings=("run.device=pretend:0", *LEAVE_AT_ONCE),
        fault="device_error@3",
        patience=280,
        **faulty,
    )
    assert ran.code == 0, ran.story()
    assert ran.faults == ["device_lost"], ran.story()
    moves = [(event.data["before"], event.data["after"]) for event in ran.events if event.kind == "moved"]
    assert moves == [("pretend:0", "cpu"), ("cpu", "pretend:0")], ran.said
    timeline = [(entry["device"], entry["from_step"]) for entry in ran.info["accounts"]["timeline"]]
    assert [device for device, _ in timeline] == ["pretend:0", "cpu", "pretend:0"], timeline
    assert timeline[-1][1] % 5 == 0 and timeline[-1][1] > 0, timeline  # at a checkpoint of the script's own
    assert same_weights(tmp_path / "alone", tmp_path / "watched")
    assert ran.receipt["steps"] == STEPS


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_batch_too_large_for_memory_is_computed_in_pieces(tmp_path: Path) -> None:
    """The Trainer gets half the batch and twice the accumulation: the same steps on the same samples."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    import torch

    words = (SCRIPTS / "trainer_script.py", 2, 6, 0.0)
    assert by_itself(tmp_path / "alone", *words).code == 0
    ran = under_run(tmp_path / "watched", *words, fault="small_memory@2", patience=280)
    assert ran.code == 0, ran.story()
    assert ran.faults == ["out_of_memory", "out_of_memory"], ran.story()
    assert "each batch in 2 pieces" in ran.said and ran.receipt["steps"] == 12
    one, other = weights(tmp_path / "alone"), weights(tmp_path / "watched")
    for name in one:  # sums in another order, and nothing else
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)
