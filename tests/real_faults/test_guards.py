"""Guards in real runs: hipBLASLt is off on cards that it is known to reset, and a card that is lost is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.devices import guards
from holdfast.devices.ledger import Ledger
from holdfast.injection import chaos
from holdfast.testing import FaultPlan
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOB, SOON, Command, assert_exact

DEVICE = "pretend:0"
TORCH = {"version": "2.13.0+rocm10.0.0", "hip": "7.15.1", "rocm": "10.0.0"}
R9700 = {"kind": "amd", "name": "AMD Radeon AI PRO R9700", "arch": "gfx1201"}
OFF = "TORCH_BLAS_PREFER_HIPBLASLT=0"


def stand_for(path: Path, card: dict[str, str], torch: dict[str, str] | None = None, **more: object) -> Path:
    """A pretend device that stands for a real card."""
    path.write_text(json.dumps({"ailments": [], "card": card, "torch": torch or TORCH, **more}))
    return path


@pytest.fixture
def r9700(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = stand_for(tmp_path / "pretend.json", R9700)
    monkeypatch.setenv("HOLDFAST_PRETEND", str(path))
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path / "state"))
    return path


@pytest.mark.long
def test_a_page_fault_of_a_guarded_card_recovers_with_equal_weights(
    tmp_path: Path, r9700: Path, reference: Drive
) -> None:
    """The whole command: the guard is announced in one line, the workers have it, the injected fault costs nothing."""
    plan = tmp_path / "chaos" / "plan.json"
    FaultPlan.parse("page_fault@6:backward").write(plan)
    runs = tmp_path / "runs"
    runs.mkdir()
    env = {"HOLDFAST_PRETEND": str(r9700), chaos.VARIABLE: str(plan)}
    with Command(runs, "train", JOB, "--device", DEVICE, "--plain", env=env) as command:
        assert command.end(120.0) == 0
        said = command.words()
        run = command.run()
    assert_exact(run, reference(), faults=1)
    assert run.faults() == ["device_lost"], run.story()
    assert run.fault()["signature"] == "rocm-page-not-present"
    announced = [line for line in said.splitlines() if "hipBLASLt" in line]
    assert len(announced) == 1, said
    assert "reads past the end of its operands" in announced[0] and "TheRock issue 7699" in announced[0]
    assert OFF in str(run.of("start")[0].data["device"])


@pytest.mark.all
def test_a_card_that_ending_a_process_loses_is_not_tried_again(drive: Drive, r9700: Path, tmp_path: Path) -> None:
    run = drive(device=DEVICE, faults="hang@6:backward", settings={**SOON, "probation.first_delay": "0.1s"})
    assert (run.outcome.state, run.faults()) == ("FINISHED", ["hang"]), run.story()
    assert [event.data["after"] for event in run.of("moved")] == ["cpu"]
    said = [event.data["text"] for event in run.of("trust")]
    assert len(said) == 1, said
    assert said[0].startswith(f"{DEVICE}: ending a hung process loses an R9700 until the machine is rebooted")
    assert "issue 6630" in said[0] and said[0].endswith("it is not used again in this run")


def test_the_same_hang_on_another_card_is_tried_again(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = stand_for(tmp_path / "pretend.json", {**R9700, "name": "AMD Radeon RX 9070 XT"})
    monkeypatch.setenv("HOLDFAST_PRETEND", str(other))
    run = drive(device=DEVICE, faults="hang@6:backward", settings=SOON)
    assert (run.outcome.state, run.of("moved")) == ("FINISHED", []), run.story()


def test_a_guard_is_lifted_by_a_probe_of_that_very_card_and_comes_back_with_new_software(
    tmp_path: Path, r9700: Path
) -> None:
    ledger = Ledger(tmp_path / "state")
    (guard,) = guards.guards_of(DEVICE, ledger)
    assert guard.env == (("TORCH_BLAS_PREFER_HIPBLASLT", "0"), ("DISABLE_ADDMM_CUDA_LT", "1"))
    assert guards.note(DEVICE, False, ledger) == ["hipblaslt-off"]
    assert guards.guards_of(DEVICE, ledger), "a probe that failed lifts nothing"
    guards.note(DEVICE, True, ledger)
    assert guards.guards_of(DEVICE, ledger) == []
    assert guards.guards_of("pretend:1", ledger), "another card of the same kind has passed nothing"
    ledger.note(DEVICE, DEVICE, guards.NOTE, guard="hipblaslt-off", ok=True, software={"torch": "2.0", "kernel": "1"})
    assert guards.guards_of(DEVICE, ledger), "what passed was another torch"


@pytest.mark.parametrize(
    ("card", "torch"),
    [
        ({**R9700, "arch": "gfx1100", "name": "AMD Radeon RX 7900 XTX"}, TORCH),
        (R9700, {"version": "2.9.0+rocm7.1", "hip": "7.1.25424"}),
        ({"kind": "nvidia", "name": "NVIDIA H200", "arch": "sm_90"}, {"version": "2.15.0+cu132", "cuda": "13.2"}),
    ],
)
def test_other_cards_and_older_builds_have_no_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: dict[str, str], torch: dict[str, str]
) -> None:
    monkeypatch.setenv("HOLDFAST_PRETEND", str(stand_for(tmp_path / "pretend.json", card, torch)))
    assert guards.guards_of(DEVICE, Ledger(tmp_path / "state")) == []


def test_nothing_is_asked_where_torch_is_not_for_amd() -> None:
    assert guards.bugs_of("cpu") == guards.bugs_of("mps") == guards.bugs_of("cuda:0") == []
