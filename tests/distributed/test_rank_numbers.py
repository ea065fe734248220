"""Numbers that are not finite in a run of ranks: real processes, gloo, and samples that are really bad."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.base import dataclass_json, processes
from holdfast.data.sample_order import permutation
from holdfast.distributed.rank_numbers import Case, Part, blame, failure, finite_again, to_look_into, verdict_of
from holdfast.faults.classification import Fault, Kind
from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment
from tests.distributed import machines as made
from tests.distributed import sharded_job
from tests.distributed.launched import Launched, alone
from tests.distributed.machines import Machines
from tests.distributed.several import Several

pytestmark = [
    pytest.mark.skipif(processes.portable() or not Path("/dev/shm").is_dir(), reason="needs fork and /dev/shm"),
    pytest.mark.timeout(600),
]
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


@pytest.mark.all
def test_a_loss_that_gathers_accuses_no_sample_of_another_rank(tmp_path: Path) -> None:
    """Inside of the look the ranks do not exchange, so such a loss cannot be computed there: nothing is left out."""
    with Launched(tmp_path, 2, huge=str(ORDER[1]), gathers=True, ddp=True, **SKIP) as launch:
        printed = launch.end()
    assert launch.process.returncode != 0, printed
    assert printed["receipt"]["samples_quarantined"] == 0 and "not finite" in printed["error"]["message"], printed


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
@pytest.mark.parametrize(
    "job",
    [
        {},
        pytest.param({"ddp": True, "plain": False}, marks=pytest.mark.long),
        pytest.param({"ddp": True, "static": True, "snapshot": "1"}, marks=pytest.mark.long),
    ],
    ids=["plain", "wrapped", "static"],
)
def test_numbers_that_are_finite_the_second_time_are_a_fault_of_that_rank(tmp_path: Path, job: dict[str, Any]) -> None:
    """No sample is left out, and the weights are those of a run without the fault: with dropout and running means too.

    A static graph that is looked into before the first step of its wrapper has counted gradients by then.
    """
    with Launched(tmp_path, 2, glitch="1:8", wait="30", **job, **SKIP) as launch:
        launch.until(lambda: launch.waits_for(30, 2))
        launch.go(30)
        check(launch, launch.finish()["receipt"], [], faults=1)
    wanted = left_out_from_the_start(tmp_path / "again", 2, [], **job)
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


@pytest.mark.long
def test_a_rank_is_killed_while_it_looks(tmp_path: Path) -> None:
    """The next group looks again: what was noticed outlives the process."""
    with Launched(tmp_path, 2, nan=str(ORDER[35]), die="1:0:replay", wait="30", **SKIP) as launch:
        launch.until(lambda: launch.waits_for(30, 2))
        launch.go(30)
        receipt = launch.finish()["receipt"]
    assert receipt["faults"] == {"non_finite": 1, "killed": 1}, receipt
    check(launch, {**receipt, "faults": {}}, [ORDER[35]], faults=0)
    assert [each["blame"] for each in of(launch, "verdict")][:1] == ["data"]


@pytest.mark.long
def test_the_others_wait_for_a_rank_that_looks_longer(tmp_path: Path) -> None:
    """Longer than any rank may be silent: those that wait are not taken to hang, nor is the one that looks."""
    patience = {"watchdog.floor": "3s", "watchdog.first_step": "10s"}
    job = {"huge": str(ORDER[35]), "ponder": "1:0.7", "wait": "30", "snapshot": "1"}
    with Launched(tmp_path, 2, **job, **patience, **SKIP) as launch:
        launch.until(lambda: launch.waits_for(30, 2))
        assert sorted(each.pid for each in launch.ranks()) == sorted(launch.roster().pids.values())  # type: ignore[union-attr]
        launch.go(30)
        check(launch, launch.finish()["receipt"], [ORDER[35]], faults=1)
    (recovered,) = of(launch, "recovered")
    assert recovered["seconds"] > 3.0, "the look took longer than the watchdog's floor"


@pytest.mark.long
@pytest.mark.parametrize("words", [{}, {"mesh": 2}], ids=["shards", "replicas"])
def test_ranks_with_parts_of_the_model_look_too(tmp_path: Path, words: dict[str, Any]) -> None:
    """FSDP2, and HSDP: each rank holds the whole model for the look. One sample holds no numbers, one overflows."""
    ranks = 4 if words else 2
    bad = [ORDER[0], ORDER[47]]
    job = {"path": sharded_job.__file__, "huge": str(bad[0]), "nan": str(bad[1]), **words}
    with Launched(tmp_path, ranks, **job, **SKIP) as launch:
        receipt = launch.finish()["receipt"]
    assert receipt["steps"] == 10 and receipt["faults"] == {"non_finite": 2}, receipt
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == receipt["steps_lost"] == 0
    assert sorted(each["index"] for each in of(launch, "quarantined")) == sorted(bad)
    assert [(each["blame"], each["step"]) for each in of(launch, "verdict")] == [("data", 1), ("data", 4)]
    assert f"sample {bad[0]}: rank 0: the loss is not finite" in of(launch, "verdict")[0]["sentence"]
    again = tmp_path / "again"
    again.mkdir()
    with Launched(again, ranks, path=sharded_job.__file__, leave=" ".join(map(str, bad)), **words) as undisturbed:
        undisturbed.finish()
    assert all(torch.equal(launch.weights()[name], value) for name, value in undisturbed.weights().items())


@pytest.mark.long
def test_ranks_with_parts_of_the_model_take_a_step_again(tmp_path: Path) -> None:
    """Nothing is found. The step is taken in the next group, by the same processes, and passes."""
    with Launched(tmp_path, 2, path=sharded_job.__file__, glitch="1:4") as launch:
        receipt = launch.finish()["receipt"]
    again = tmp_path / "again"
    again.mkdir()
    with Launched(again, 2, path=sharded_job.__file__) as undisturbed:
        wanted = undisturbed.finish()["receipt"]
    assert receipt["faults"] == {"non_finite": 1} and receipt["samples_quarantined"] == 0
    assert receipt["weights_sha256"] == wanted["weights_sha256"]
    assert [each["device"] for each in of(launch, "fault")] == ["rank 1"]


@pytest.mark.long
def test_a_device_whose_gradients_are_not_finite_is_left_by_its_rank(tmp_path: Path) -> None:
    """The CPU computes finite gradients from the same part: no sample is accused, and only that rank moves."""
    listed = [Ailment("wrong", step=8, times=None, how="nan", device="pretend:1")]
    path = ailments.write(tmp_path / "ailments" / "pretend.json", listed)
    env = {ailments.VARIABLE: str(path)}
    job = {"snapshot": "1", "sentinel.enabled": "never", "env": env, "wait": "30"}
    with Launched(tmp_path, 2, "--device", "pretend", **job, **SKIP) as launch:
        launch.until(lambda: launch.waits_for(30, 2))
        launch.go(30)
        receipt = launch.finish()["receipt"]
    assert receipt["steps"] == 30 and receipt["samples_quarantined"] == 0, receipt
    first = of(launch, "verdict")[0]
    assert "rank 1: the gradient of model" in first["sentence"] and "on the CPU it is" in first["sentence"]
    notes = [each["text"] for each in of(launch, "note")]
    assert any("rank 1 moved from pretend:1 to the CPU" in each for each in notes), notes
    assert launch.samples() == {epoch: Counter(range(60)) for epoch in range(6)}


@pytest.mark.long
@pytest.mark.skipif(bool(made.missing()), reason=made.missing())
def test_samples_are_left_out_by_the_ranks_of_all_machines(tmp_path: Path) -> None:
    """Of samples that cannot be read, that end their rank, and that are not finite, some on each machine."""
    bad = {"bad": [ORDER[2], ORDER[35]], "nan": [ORDER[10], ORDER[37]], "deadly": [ORDER[46]]}
    every = [each for found in bad.values() for each in found]
    words: dict[str, Any] = {name: " ".join(map(str, found)) for name, found in bad.items()}
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, nproc=2, wait="30", **words, **SKIP) as launch,
    ):
        launch.until(lambda: launch.waits_for(30, 4))
        launch.go(30)
        receipt = launch.finish()["receipt"]
        assert receipt["faults"] == {"non_finite": 2, "crash": 1}, receipt
        check(launch, {**receipt, "faults": {}}, every, faults=0)
        verdicts = of(launch, "verdict")
        assert [each["blame"] for each in verdicts] == ["data"] * 2
        assert f"sample {ORDER[10]}: rank 3: " in verdicts[0]["sentence"]
        assert f"sample {ORDER[37]}: rank 0: " in verdicts[1]["sentence"]
        found = launch.weights()
    for name, values in alone(tmp_path / "alone", SKIP, bad=" ".join(map(str, every))).items():
        assert (found[name] - values).abs().max() < 1e-6, name


@pytest.mark.long
@pytest.mark.skipif(bool(made.missing()), reason=made.missing())
def test_a_sample_that_may_not_be_left_out_ends_the_run_on_all_machines(tmp_path: Path) -> None:
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, nan=str(ORDER[11])) as launch,
    ):
        ended = [launch.end(number) for number in range(2)]
        assert [each.returncode for each in launch.processes.values()] == [1, 1]
    said = f"the data are at fault: sample {ORDER[11]}: rank 1: tensor 0 of the batch is not finite on the CPU too"
    assert ended[0]["error"]["message"] == said, ended


# -- the rule ----------------------------------------------------------------------------------------------------

SEEN = Fault(Kind.NON_FINITE, "cpu", 7, "backward", "loss nan", {"what": "the loss"})


def named(*samples: int) -> list[dict[str, Any]]:
    return [{"index": index, "source": None} for index in samples]


def part(rank: int, blamed: str = "", *samples: int, every: bool = False, counts: bool = True) -> Part:
    """What a rank has found; with `every`, in each sample of its part."""
    why = f"found by {rank}{', whatever the sample' if every else ''}"
    verdict = {"blame": blamed, "why": why, "repeatable": True, "samples": named(*(() if every else samples))}
    fault = SEEN.at(verdict=verdict) if blamed else None
    return Part(rank, rank, counts, fault, tuple(named(*samples)) if every else ())


def found_in(fault: Fault | None) -> tuple[str | None, list[int]]:
    assert fault is not None
    verdict = verdict_of(fault)
    return fault.blame, [each["index"] for each in verdict.samples]


def test_the_verdict_of_all_ranks() -> None:
    assert blame([part(0), part(1)], 7) is None
    fault = blame([part(0), part(1, "data", 5), part(2, "data", 9, 5)], 7)
    assert found_in(fault) == ("data", [5, 9])
    assert fault is not None and fault.evidence["rank"] == 1
    assert verdict_of(fault).sentence() == "the data are at fault: samples 5, 9: ranks 1 and 2: found by 1"
    assert "ranks 1 and 2" in failure(fault).message and failure(fault).cause == f"it appeared as: {fault.sentence()}"
    # Each sample of one part is bad: these samples if the other parts are fine, the code if no part is.
    whole = part(1, "code", 3, 4, every=True)
    assert found_in(blame([part(0), whole], 7)) == ("data", [3, 4])
    assert found_in(blame([part(0, "code", 1, every=True), whole], 7)) == ("code", [])
    assert found_in(blame([part(0, counts=False), whole], 7)) == ("code", [])
    # A batch of one sample, whose other ranks have no part: after other steps have passed it is the sample.
    one = [part(0, "code", 1, every=True), part(1, "code", 1, every=True, counts=False)]
    assert found_in(blame(one, 7)) == ("data", [1]) and found_in(blame(one, 1)) == ("code", [])
    # A sample explains what a device or a precision would explain too.
    assert found_in(blame([part(0, "device"), part(1, "data", 5)], 7)) == ("data", [5])
    assert found_in(blame([part(0, "precision"), part(1)], 7)) == ("precision", [])


def test_which_step_the_ranks_look_into() -> None:
    def known(*cases: Case) -> list[dict[str, Any]]:
        return [json.loads(json.dumps(dataclass_json.write(each))) for each in cases]

    later = SEEN.at(step=9)
    mine, other = Case(0, 3, SEEN), Case(1, 3, SEEN, own=True)
    found = to_look_into(known(mine, other, Case(2, 3, later, own=True)), 5)
    assert found == other and found.named().sentence() == "the loss of rank 1 is not finite at step 7 in backward"
    assert to_look_into(known(mine, other), 7) is None, "the run is past it"
    both = to_look_into(known(replace(mine, own=True), other), 5)
    assert both is not None and not both.own and both.named().device == "ranks", "the weights may be bad"
    after = to_look_into(known(other.noted_by(0, looked=True), other), 5)
    assert after is not None and after.looked and after.seat == 1 and not other.looked
    assert "rank 1: " in finite_again(other).sentence() and finite_again(other).repeatable is False
