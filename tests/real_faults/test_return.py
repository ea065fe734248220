"""A device that failed comes back: after a delay, a probe, and steps the CPU agrees with. Or it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.data.sample_order import permutation
from holdfast.devices.ledger import Ledger
from holdfast.faults.ladder import Rung
from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment
from tests.real_faults.driving import JOBS, Run

JOB = JOBS / "doubt.py"
Drive = Callable[..., Run]
PATIENT = {"probation.first_delay": "0.2s", "probation.factor": "1.5", "probation.steps": "3", "probation.steady": "6"}
"""Delays that a test can wait for; a probe still has to import torch, which takes its time."""


@pytest.fixture
def suffering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the pretended device ailments, for workers and probes."""

    def give(*listed: Ailment) -> None:
        monkeypatch.setenv(ailments.VARIABLE, str(ailments.write(tmp_path / "ailments" / "pretend.json", listed)))

    return give


def devices(run: Run) -> list[str]:
    info = json.loads((run.folder / "run.json").read_text())
    return [row["device"] for row in info["accounts"]["timeline"]]


def said(run: Run) -> list[str]:
    return [str(event.data["text"]) for event in run.of("trust")]


@pytest.mark.long
def test_a_device_that_heals_is_trusted_again(drive: Drive, suffering: Any) -> None:
    """It fails in training twice and in one probe; then it is well: the run ends where it began, with the same bits."""
    reference = drive(JOB, epochs=4)
    suffering(Ailment("error", step=5, times=3))
    run = drive(JOB, device="pretend:0", settings=PATIENT, epochs=4, waits="9:probe passed")
    assert run.outcome.state == "FINISHED", run.story()
    assert devices(run) == ["pretend:0", "cpu", "pretend:0"], run.story()
    story = said(run)
    assert [line.split(";")[0] for line in story if "probe" in line] == [
        "pretend:0: a probe tries it",
        "pretend:0: probe failed (it ended with code 1: RuntimeError: CUDA error: an illegal memory access was "
        "encountered (a pretend device, holdfast.testing))",
        "pretend:0: a probe tries it",
        "pretend:0: probe passed",
    ], story
    assert story[-1] == "pretend:0: trusted again; 3 steps agreed with the CPU", story
    assert run.receipt["weights_sha256"] == reference.receipt["weights_sha256"]
    assert (run.receipt["steps_lost"], run.receipt["samples_repeated"]) == (0, 0)
    assert Ledger().trust("pretend:0", "pretend:0").state == "trusted"


@pytest.mark.long
def test_a_device_that_never_heals_is_left_alone_longer_each_time(drive: Drive, suffering: Any) -> None:
    suffering(Ailment("crash", step=5, times=None))
    run = drive(JOB, device="pretend:0", settings=PATIENT, epochs=4, waits="9:probe failed,20:probe failed")
    assert run.outcome.state == "FINISHED", run.story()
    assert devices(run) == ["pretend:0", "cpu"]
    failed = [line for line in said(run) if "probe failed" in line]
    assert failed and "tried again in" in failed[0], said(run)
    assert Ledger().trust("pretend:0", "pretend:0").state == "probation"


@pytest.mark.long
def test_a_device_that_flaps_is_left_for_good(drive: Drive, suffering: Any) -> None:
    """It passes every probe and fails soon after, each time a step further."""
    suffering(Ailment("error", step=5, after=1, times=None, probes=False))
    settings = {**PATIENT, "probation.returns": "2", "probation.first_delay": "0.1s"}
    run = drive(JOB, device="pretend:0", settings=settings, epochs=6, waits="9:probe passed,20:probe passed")
    assert run.outcome.state == "FINISHED", run.story()
    assert devices(run)[:3] == ["pretend:0", "cpu", "pretend:0"] and devices(run)[-1] == "cpu", run.story()
    assert "it is not used again in this run" in said(run)[-1], said(run)
    on_probation = [event.data for event in run.of("fault")][3:]
    assert all(fault["action"] == "next_rung" for fault in on_probation), "on probation there is no second try"


@pytest.mark.long
def test_wrong_numbers_on_probation_end_it(drive: Drive, suffering: Any) -> None:
    """The probe is passed, the first step that is compared is not: nothing the device computed is kept."""
    reference = drive(JOB, epochs=4)
    suffering(
        Ailment("error", step=5, times=2, probes=False),
        Ailment("wrong", how="scale", step=9, times=None, probes=False),
    )
    settings = {**PATIENT, "probation.returns": "1"}
    run = drive(JOB, device="pretend:0", settings=settings, epochs=4, waits="9:probe passed")
    assert run.outcome.state == "FINISHED", run.story()
    assert "wrong_numbers" in run.faults(), run.story()
    assert run.receipt["weights_sha256"] == reference.receipt["weights_sha256"], run.story()
    assert devices(run)[-1] == "cpu"
    undone = run.of("undone")
    assert all(event.data["from_step"] - event.data["to_step"] <= 3 for event in undone), run.story()


@pytest.mark.long
@pytest.mark.parametrize("skip", [False, True])
def test_bad_data_on_probation_are_not_the_devices_fault(drive: Drive, suffering: Any, skip: bool) -> None:
    """There is no second try on probation: the step is computed again where the run goes, and that tells."""
    sample = int(permutation(3, 0, 64)[60])  # of the job's own seed; in the last batch of the first epoch
    suffering(Ailment("error", step=2, times=2, probes=False))
    once = {"probation.steps": "50", "probation.returns": "1"}  # a fault of its own would have been its last
    settings = {**PATIENT, **once, "data.skip_bad": str(skip).lower()}
    waits = "3:probe passed,9:probe passed" if skip else "3:probe passed"
    job = {"bad": "label", "sample": sample, "waits": waits, "epochs": 2}
    run = drive(JOB, device="pretend:0", settings=settings, **job)
    verdicts = [(event.data["step"], event.data["blame"]) for event in run.of("verdict")]
    assert verdicts == [(2, "device"), (8, "data")], run.story()
    assert run.outcome.state == ("FINISHED" if skip else "FAILED"), run.story()
    assert "pretend:0: it was the fault of the data; it may be tried again now" in said(run), said(run)
    if skip:  # with the sample left out it goes back, and nothing is held against the device
        assert devices(run) == ["pretend:0", "cpu", "pretend:0", "cpu", "pretend:0"], run.story()


@pytest.mark.sample(3)
@pytest.mark.parametrize(("held", "used"), [("", "pretend:0 A=1"), ("A=1", "pretend:0"), ("fp32 A=1", "pretend:0")])
def test_a_remedy_in_quarantine_does_not_cost_the_others_of_its_device(drive: Drive, held: str, used: str) -> None:
    """What took the machine down is not tried again, in no precision; the device is used without it."""
    remedy = (("A", "1"),)
    device = "pretend:0"
    rungs = [Rung(device), Rung(device, "fp32"), Rung(device, "", remedy), Rung(device, "fp32", remedy), Rung("cpu")]
    Ledger().note(device, f"{device} {held}".strip(), "trust", state="quarantined", why="it froze the machine")
    run = drive(JOB, rungs=rungs, faults="abort@5:backward,abort@5:backward")
    assert run.outcome.state == "FINISHED", run.story()
    assert [(event.data["before"], event.data["after"]) for event in run.of("moved")] == [(used, "cpu")], run.story()
