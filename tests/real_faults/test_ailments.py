"""A pretend device with an ailment, in a run: it shows where it should, as often as it should, and not on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment, Patient

from .conftest import Drive
from .driving import SOON

DEVICE = "pretend:0"


@pytest.fixture
def sick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and probes of this test look here for what their device suffers from."""
    monkeypatch.setenv(ailments.VARIABLE, str(tmp_path / "pretend.json"))


def give(tmp_path: Path, ailment: Ailment) -> Patient:
    return Patient(ailments.write(tmp_path / "pretend.json", [ailment]), DEVICE)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("kind", "seen"), [("error", "device_lost"), ("crash", "crash"), ("hang", "hang")])
def test_once_at_a_step_and_then_well(drive: Drive, sick: None, tmp_path: Path, kind: str, seen: str) -> None:
    patient = give(tmp_path, Ailment(kind, step=6, phase="forward"))
    run = drive(device=DEVICE, settings=SOON)
    assert (run.outcome.state, run.faults()) == ("FINISHED", [seen]), run.story()
    assert (run.fault()["step"], run.fault()["phase"]) == (6, "forward")
    assert patient.suffered() == 1


@pytest.mark.all
def test_for_ever_and_not_on_the_cpu(drive: Drive, sick: None, tmp_path: Path) -> None:
    patient = give(tmp_path, Ailment("error", step=6, times=None))
    run = drive(device=DEVICE)
    assert (run.outcome.state, run.faults()) == ("FINISHED", ["device_lost", "device_lost"]), run.story()
    assert run.of("moved")[0].data["device"] == "cpu"
    assert patient.suffered() >= 2


@pytest.mark.all
def test_after_some_steps_of_each_worker(drive: Drive, sick: None, tmp_path: Path) -> None:
    """Two failures, each in the fourth step of its worker."""
    give(tmp_path, Ailment("error", step=1, after=3, times=2))
    run = drive(device=DEVICE)
    assert run.outcome.state == "FINISHED", run.story()
    assert [event.data["step"] for event in run.of("fault")] == [4, 7]


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", ailments.WRONG)
def test_wrong_numbers_are_the_devices_and_the_cpu_is_right(drive: Drive, sick: None, tmp_path: Path, how: str) -> None:
    give(tmp_path, Ailment("wrong", how=how, times=None))
    run = drive(device=DEVICE, settings={"sentinel.cost": "1000000"})  # every step, and the step waits
    assert (run.outcome.state, run.faults()[0]) == ("FINISHED", "wrong_numbers")


def test_a_device_without_an_ailment_is_well(drive: Drive, sick: None, tmp_path: Path) -> None:
    give(tmp_path, Ailment("error", device="pretend:7"))
    run = drive(device=DEVICE)
    assert (run.outcome.state, run.faults()) == ("FINISHED", []), run.story()
