"""Numbers that are not finite in a run of ranks: real processes, gloo, and samples that are really bad."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.data.sample_order import permutation
from tests.distributed.launched import Launched, alone
from tests.distributed.several import Several

SKIP = {"data.skip_bad": "true"}
ORDER = permutation(3, 0, 60).tolist()
"""Of the first epoch, with the seed of the job; twelve samples are a batch."""


def of(launch: Launched | Several, kind: str) -> list[dict[str, Any]]:
    return [event.data for event in launch.run.events() if event.kind == kind]


def check(launch: Launched | Several, receipt: dict[str, Any], bad: list[int], faults: int) -> None:
    """Every other sample was used once in each epoch; nothing was lost, and the record says what happened."""
    assert receipt["steps"] == 30 and receipt["samples_quarantined"] == len(bad), receipt
    assert receipt["faults"] == ({"non_finite": faults} if faults else {}), receipt
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == receipt["steps_lost"] == 0
    left = Counter(index for index in range(60) if index not in bad)
    assert launch.samples() == dict.fromkeys(range(6), left)
    assert sorted(each["index"] for each in of(launch, "quarantined")) == sorted(bad), "each is told once"


def left_out_from_the_start(folder: Path, ranks: int, bad: list[int], **job: Any) -> dict[str, torch.Tensor]:
    """The weights of as many ranks that could not read these samples."""
    folder.mkdir()
    with Launched(folder, ranks, bad=" ".join(map(str, bad)), **SKIP, **job) as launch:
        launch.finish()
    return launch.weights()


@pytest.mark.all
@pytest.mark.parametrize(
    ("ranks", "ddp"),
    [
        (2, False),
        pytest.param(2, True, marks=pytest.mark.long),
        pytest.param(4, False, marks=pytest.mark.long),
        pytest.param(4, True, marks=pytest.mark.long),
    ],
    ids=["two", "two-wrapped", "four", "four-wrapped"],
)
def test_samples_whose_numbers_are_not_finite_are_left_out_by_all_ranks(tmp_path: Path, ranks: int, ddp: bool) -> None:
    """Two in one batch and in the parts of different ranks; one whose loss is infinite; one with bad gradients."""
    bad = [ORDER[0], ORDER[11], ORDER[25], ORDER[40]]
    job = {"nan": f"{bad[0]} {bad[1]}", "huge": str(bad[2]), "steep": str(bad[3])}
    with Launched(tmp_path, ranks, wait="30", ddp=ddp, snapshot="5", **job, **SKIP) as launch:
        launch.until(lambda: launch.waits_for(30, ranks))
        assert len({each.pid for each in launch.ranks()}) == ranks
        launch.go(30)
        check(launch, launch.finish()["receipt"], bad, faults=4)
    wanted = left_out_from_the_start(tmp_path / "again", ranks, bad, ddp=ddp)
    assert all(torch.equal(launch.weights()[name], value) for name, value in wanted.items())
    for name, values in alone(tmp_path / "alone", SKIP, bad=" ".join(map(str, bad))).items():
        assert (launch.weights()[name] - values).abs().max() < 1e-6, name
    verdicts = of(launch, "verdict")
    assert [each["blame"] for each in verdicts] == ["data"] * 3
    first, last = f"ranks 0 and {ranks - 1}", verdicts[2]["sentence"]
    assert f"samples {bad[0]}, {bad[1]}: {first}: tensor 0 of the batch is not finite" in verdicts[0]["sentence"]
    assert f"sample {bad[3]}: rank " in last and "the gradient of " in last, last
    # Weights that are not finite after step 4 show in the loss of step 5; with a commit after each step it is step 4.
    assert [each["step"] for each in of(launch, "fault")] == [1, 3, 5, 4]
    assert of(launch, "fault")[1]["sentence"].startswith("the loss of rank 0 is not finite at step 3")


def test_a_sample_that_may_not_be_left_out_ends_the_run(tmp_path: Path) -> None:
    with Launched(tmp_path, 2, nan=str(ORDER[23])) as launch:
        printed = launch.end()
    error = printed["error"]
    assert launch.process.returncode == 1 and printed["state"] == "FAILED", printed
    said = f"the data are at fault: sample {ORDER[23]}: rank 1: tensor 0 of the batch is not finite on the CPU too"
    assert error["message"] == said and "the loss of rank 1 is not finite at step 2" in error["cause"], error
    assert "`data.skip_bad=true`" in error["hints"][0]
    assert error["blame"]["samples"] == [{"index": ORDER[23], "source": None}]
    assert printed["receipt"]["steps"] == 1, "what came before is saved"


@pytest.mark.all
@pytest.mark.parametrize("ddp", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "wrapped"])
def test_numbers_that_are_finite_the_second_time_are_a_fault_of_that_rank(tmp_path: Path, ddp: bool) -> None:
    """No sample is left out, and the weights are those of a run without the fault."""
    with Launched(tmp_path, 2, glitch="1:8", ddp=ddp, wait="30", **SKIP) as launch:
        launch.until(lambda: launch.waits_for(30, 2))
        launch.go(30)
        check(launch, launch.finish()["receipt"], [], faults=1)
    wanted = left_out_from_the_start(tmp_path / "again", 2, [], ddp=ddp)
    assert all(torch.equal(launch.weights()[name], value) for name, value in wanted.items())
    (fault,), (verdict,) = of(launch, "fault"), of(launch, "verdict")
    assert (fault["device"], fault["step"]) == ("rank 1", 8)
    assert "rank 1: the same step gave finite numbers the second time" in verdict["sentence"]
    assert [each["step"] for each in of(launch, "recovered")] == [8]


@pytest.mark.long
def test_numbers_that_are_not_finite_each_time_end_the_run(tmp_path: Path) -> None:
    """No sample is to blame: the look finds nothing, and the step fails again."""
    with Launched(tmp_path, 2, glitch="1:8:9", **SKIP) as launch:
        printed = launch.end()
    assert launch.process.returncode == 1, printed
    assert printed["error"]["message"] == "the loss of rank 1 is not finite at step 8 in backward"
    assert len(list(launch.seen.glob("slip-*"))) == 2, "it is tried twice"
    assert printed["receipt"]["steps"] == 7
