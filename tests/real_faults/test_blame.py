"""Whose fault it was, in real runs: device, data, code or precision, told in the journal and kept with the fault."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment
from tests.real_faults.driving import JOBS, SOON, Command, Run
from tests.waiting import wait_until

JOB = JOBS / "doubt.py"
Drive = Callable[..., Run]


@pytest.fixture
def suffering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the pretended device ailments, for workers and probes."""

    def give(*listed: Ailment) -> None:
        monkeypatch.setenv(ailments.VARIABLE, str(ailments.write(tmp_path / "ailments" / "pretend.json", listed)))

    return give


def verdicts(run: Run) -> list[tuple[str, bool | None]]:
    return [(event.data["blame"], event.data["repeatable"]) for event in run.of("verdict")]


def sentence(run: Run) -> str:
    return str(run.of("verdict")[-1].data["sentence"])


def kept(run: Run, number: int = 1) -> Any:
    return json.loads((run.evidence(number) / "fault.json").read_text())["verdict"]


# Data ------------------------------------------------------------------------------------------------------


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.parametrize("shows_as", ["error", "hang"])
def test_a_label_out_of_range_is_the_datas_although_the_device_failed(drive: Drive, shows_as: str) -> None:
    run = drive(JOB, device="pretend:0", settings=SOON, bad="label", shows_as=shows_as)
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    assert verdicts(run) == [("data", True)], run.story()
    assert sentence(run).startswith("the data are at fault: sample 37 (sub-37_eeg.set): the CPU raises IndexError")
    assert kept(run)["samples"] == [{"index": 37, "source": "sub-37_eeg.set"}]
    error = run.outcome.error
    assert error is not None and "sample 37 (sub-37_eeg.set)" in error.message, error
    assert run.of("moved") == [], "a data fault must not cost the device"


def test_a_label_out_of_range_on_the_cpu_is_the_datas(drive: Drive) -> None:
    run = drive(JOB, bad="label")
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    assert run.outcome.error is not None
    assert "sample 37 (sub-37_eeg.set)" in run.outcome.error.message, run.outcome.error


@pytest.mark.sample(4)
@pytest.mark.parametrize("device", ["cpu", "pretend:0"])
@pytest.mark.parametrize("bad", ["nan", "huge"])
def test_a_sample_that_is_not_finite_is_named(drive: Drive, device: str, bad: str) -> None:
    run = drive(JOB, device=device, bad=bad)
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    assert set(run.faults()) == {"non_finite"}
    assert verdicts(run)[-1] == ("data", True), run.story()
    assert "sample 37 (sub-37_eeg.set)" in sentence(run)


# Code ------------------------------------------------------------------------------------------------------


def test_a_bug_in_the_script_is_never_retried(drive: Drive) -> None:
    run = drive(JOB, device="pretend:0", code="raises")
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1)
    assert run.faults() == [] and run.of("moved") == []
    assert run.outcome.error is not None and "ValueError: a bug in the script" in run.outcome.error.message


@pytest.mark.all
def test_code_that_crashes_the_cpu_as_well_is_not_the_devices(drive: Drive) -> None:
    run = drive(JOB, device="pretend:0", code="crashes")
    assert run.outcome.state == "FAILED", run.story()
    assert verdicts(run)[0] == ("code", True), run.story()
    assert run.of("moved") == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", ["cpu", "pretend:0"])
def test_a_logarithm_of_zero_is_the_codes_and_the_tensor_is_named(drive: Drive, device: str) -> None:
    run = drive(JOB, device=device, code="log")
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    assert verdicts(run)[-1] == ("code", True), run.story()
    assert "the loss is not finite" in sentence(run)
    assert run.checkpoint().step == 4, "the last step that was finite is kept"


# Precision ---------------------------------------------------------------------------------------------------


def test_half_precision_that_overflows_goes_on_in_fp32(drive: Drive) -> None:
    run = drive(JOB, device="pretend:0", half=True)
    assert run.outcome.state == "FINISHED", run.story()
    assert ("precision", True) in verdicts(run), run.story()
    assert [event.data["after"] for event in run.of("moved")] == ["pretend:0 fp32"]


@pytest.mark.long
def test_a_resumed_run_goes_on_in_the_precision_it_had_come_to(tmp_path: Path) -> None:
    words = (JOB, "half=true", "epochs=200", "waits=20:never", "--device", "pretend:0", "--plain")
    with Command(tmp_path, "train", *words) as command:
        assert wait_until(lambda: any("moved" in path.read_text() for path in tmp_path.glob("*/journal.jsonl")), 60.0)
        command.signal(signal.SIGTERM)
        command.end()
    first = len(command.run().of("moved"))
    with Command(tmp_path, "resume", command.folder, "--plain") as again:
        assert wait_until(lambda: len(again.run().of("start")) > 1 or again.process.poll() is not None, 60.0)
        again.signal(signal.SIGTERM)
        again.end()
    assert [event.data["device"] for event in again.run().of("start")] == ["pretend:0", "pretend:0 fp32"]
    assert len(again.run().of("moved")) == first == 1, again.run().story()


def test_a_step_that_a_scaler_skips_is_no_fault(drive: Drive) -> None:
    """A scale that is far too large: gradients overflow, the scaler skips and halves, until they fit."""
    run = drive(JOB, device="pretend:0", half=True, scaler=2.0**24)
    assert run.outcome.state == "FINISHED" and run.faults() == [], run.story()
    scales = [event.data["values"]["scale"] for event in run.of("log")]
    assert scales[0] == 2.0**23 and scales[-1] < scales[0], "it did skip, from the first step on"
    assert scales[-1] == scales[-2], "and in the end it did not"


def test_numbers_that_are_not_finite_can_be_allowed(drive: Drive) -> None:
    run = drive(JOB, settings={"blame.non_finite": "ignore"}, code="log")
    assert run.outcome.state == "FINISHED" and run.faults() == [], run.story()


# Device ------------------------------------------------------------------------------------------------------


@pytest.mark.all
@pytest.mark.sample(3)
@pytest.mark.parametrize(("kind", "fault"), [("crash", "crash"), ("hang", "hang"), ("error", "device_lost")])
def test_once_is_the_devices_once(drive: Drive, suffering: Any, kind: str, fault: str) -> None:
    suffering(Ailment(kind, step=5, times=1))
    run = drive(JOB, device="pretend:0", settings=SOON)
    assert run.outcome.state == "FINISHED", run.story()
    assert (run.faults(), verdicts(run)) == ([fault], [("device", False)]), run.story()
    assert sentence(run) == (
        "the device is at fault, once: the same step passed in a new worker, and the CPU computes it"
    )
    assert run.of("moved") == []
    readme = (run.evidence() / "README.txt").read_text()
    assert "the device is at fault, once" in readme, readme


def test_each_time_is_the_devices_and_the_run_goes_on_elsewhere(drive: Drive, suffering: Any) -> None:
    suffering(Ailment("crash", step=5, times=None))
    run = drive(JOB, device="pretend:0", settings={"probation.enabled": "false"})
    assert run.outcome.state == "FINISHED", run.story()
    assert verdicts(run)[0] == ("device", True), run.story()
    assert [event.data["after"] for event in run.of("moved")] == ["cpu"]


def test_a_device_that_makes_nan_is_left(drive: Drive, suffering: Any) -> None:
    suffering(Ailment("wrong", how="nan", step=5, times=None))
    run = drive(JOB, device="pretend:0", settings={"sentinel.enabled": "never", "probation.enabled": "false"})
    assert run.outcome.state == "FINISHED", run.story()
    assert ("device", True) in verdicts(run), run.story()
    assert [event.data["after"] for event in run.of("moved")] == ["cpu"]


def test_what_is_plain_is_not_replayed(drive: Drive) -> None:
    run = drive(JOB, device="pretend:0", faults="sigkill@4,oom@7")
    assert run.outcome.state == "FINISHED"
    assert verdicts(run) == [("outside", None), ("memory", None)], run.story()
    assert run.of("replayed") == []


# Wrong numbers ---------------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("how", ["scale", "zero", "bit"])
def test_wrong_gradients_are_found_and_undone(drive: Drive, suffering: Any, how: str) -> None:
    """With the bits of a run that never met the device: what it computed wrongly leaves no trace."""
    reference = drive(JOB)
    suffering(Ailment("wrong", how=how, step=6, times=None))
    settings = {"sentinel.cost": "1000000", "probation.enabled": "false"}  # every step
    run = drive(JOB, device="pretend:0", settings=settings)
    assert run.outcome.state == "FINISHED", run.story()
    assert run.faults() == ["wrong_numbers"], run.story()
    assert verdicts(run) == [("device", True)]
    undone = run.of("undone")
    assert len(undone) == 1 and undone[0].data["from_step"] - undone[0].data["to_step"] <= 2, run.story()
    assert run.receipt["steps_undone"] == undone[0].data["from_step"] - undone[0].data["to_step"]
    assert run.receipt["weights_sha256"] == reference.receipt["weights_sha256"], run.story()
    assert run.receipt["steps_lost"] == 0


@pytest.mark.all
@pytest.mark.timeout(600)
def test_a_suspicion_is_confirmed_in_a_fresh_process_while_the_training_goes_on(drive: Drive, suffering: Any) -> None:
    """As a run is by default: nobody waits for the comparison. The run leaves once a fresh process has seen it too."""
    suffering(Ailment("wrong", how="zero", step=2, times=None))  # after the known answers of the first step
    settings = {"probation.enabled": "false"}
    run = drive(JOB, device="pretend:0", settings=settings, epochs=1000, until="moved")
    assert run.outcome.state == "FINISHED" and run.faults() == ["wrong_numbers"], run.story()
    assert [event.data["after"] for event in run.of("moved")] == ["cpu"]
    (said,) = [event.data for event in run.of("trust") if event.data.get("state") == "suspected"]
    assert "mm in backward" in said["text"] and "; confirmed (by a fresh process (" in said["text"], said
    assert verdicts(run) == [("device", True)]
    there = {path.name for path in run.evidence().iterdir()}
    assert {"again.py", "case.safetensors", "finding.json"} <= there, there
    assert "mm in backward" in (run.evidence() / "README.txt").read_text()


@pytest.mark.all
def test_a_device_that_is_wrong_from_the_start_is_found_out_after_one_step(drive: Drive, suffering: Any) -> None:
    """Known answers are asked after the first step and before its commit: nothing of it is kept."""
    suffering(Ailment("wrong", how="zero", times=None))
    run = drive(JOB, device="pretend:0", settings={"probation.enabled": "false"})
    assert run.outcome.state == "FINISHED" and run.faults() == ["wrong_numbers"], run.story()
    assert [(event.data["step"], event.data["after"]) for event in run.of("moved")] == [(0, "cpu")]
    assert verdicts(run) == [("device", True)] and run.receipt["weights_sha256"] == drive(JOB).receipt["weights_sha256"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_suspicion_that_nobody_confirms_costs_a_line_and_nothing_else(drive: Drive, suffering: Any) -> None:
    suffering(Ailment("wrong", how="zero", step=2, times=None, probes=False))
    run = drive(JOB, device="pretend:0", epochs=1000, until="is suspected")
    assert run.outcome.state == "FINISHED" and run.faults() == [] and run.of("moved") == [], run.story()
    said = [event.data for event in run.of("trust")]
    assert said and "; not confirmed (by a fresh process (" in said[0]["text"], said
    assert verdicts(run) == []


@pytest.mark.all
def test_a_right_device_is_never_distrusted(drive: Drive) -> None:
    reference = drive(JOB)
    run = drive(JOB, device="pretend:0", settings={"sentinel.cost": "1000000"})
    assert run.faults() == [] and run.receipt["weights_sha256"] == reference.receipt["weights_sha256"], run.story()


# Going on without ------------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize("device", ["cpu", "pretend:0"])
@pytest.mark.parametrize("bad", ["label", "nan"])
def test_samples_at_fault_are_left_out_if_the_user_allows_it(drive: Drive, device: str, bad: str) -> None:
    run = drive(JOB, device=device, settings={"data.skip_bad": "true"}, bad=bad)
    assert run.outcome.state == "FINISHED", run.story()
    assert ("data", True) in verdicts(run), run.story()
    assert run.receipt["samples_quarantined"] == 1, run.receipt
    assert run.receipt["quarantined"][0]["index"] == 37 and run.receipt["quarantined"][0]["source"] == "sub-37_eeg.set"
    assert (run.receipt["steps"], run.receipt["samples_skipped"]) == (16, 0), run.receipt
    assert len(run.of("quarantined")) == 1 and run.of("moved") == [], run.story()
