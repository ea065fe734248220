"""A run of the workload that is killed, again and again, ends with the weights of one that was not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.planning.choice import Choice
from holdfast.planning.measure import SHARE
from holdfast.planning.step_comparison import NEEDED
from holdfast.supervisor.process_start import NurseryLauncher
from holdfast.workloads.detection import generate, training
from tests.real_faults.driving import Run, drive

pytestmark = pytest.mark.timeout(600)  # the first of them also drives the undisturbed run
SCRIPT = Path(training.__file__)
SMALL = {"imgsz": 64, "size": "nano", "batch": 4, "epochs": 3, "multiscale": 0.5, "tune": "false", "evaluate_every": 2}
PATIENT = {"watchdog.first_step": "2m", "watchdog.floor": "1m"}
"""No test here is about hangs: a machine that is busy with other things must not be taken for one that hangs."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[NurseryLauncher]:
    if processes.portable():
        pytest.skip("no fork here")
    launcher = NurseryLauncher({}, ["torchvision.ops"])
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate.write(tmp_path_factory.mktemp("set"), train=16, val=4, width=64, height=48)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, nursery: NurseryLauncher, data: Path) -> Run:
    run = drive(tmp_path_factory.mktemp("undisturbed"), SCRIPT, nursery=nursery, settings=PATIENT, data=data, **SMALL)
    assert run.outcome.state == "FINISHED", run.story()
    return run


@pytest.mark.all
def test_the_run_leaves_what_it_says(undisturbed: Run) -> None:
    for name in ("detector.json", "dataset.json", "scores.json", "worst.png", "curves.png", "confusion.png"):
        assert (undisturbed.folder / name).stat().st_size > 100, name
    assert (undisturbed.folder / "final.safetensors").is_file()


@pytest.mark.all
def test_kills_in_both_phases_of_the_training_change_no_bit(
    tmp_path: Path, nursery: NurseryLauncher, data: Path, undisturbed: Run
) -> None:
    """With mosaics, without them, in the middle of an update, and where one loader takes over from the other."""
    faults = "sigkill@2:backward,oom_in_step@4:optimizer,sigkill@8:forward,segfault@10:optimizer"
    run = drive(tmp_path, SCRIPT, nursery=nursery, settings=PATIENT, faults=faults, data=data, **SMALL)
    receipt, wanted = run.receipt, undisturbed.receipt
    assert run.outcome.state == "FINISHED", run.story()
    assert sum(receipt["faults"].values()) == 4, run.story()
    assert receipt["weights_sha256"] == wanted["weights_sha256"], run.story()
    assert run.state() == undisturbed.state(), "weights are equal, but something else is not"
    assert receipt["steps"] == wanted["steps"] and receipt["steps_repeated"] <= 2 * 4
    assert receipt["steps_lost"] == receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    assert (run.folder / "scores.json").read_bytes() == (undisturbed.folder / "scores.json").read_bytes()
    assert len(_train_losses(run)) == 3, run.story()
    assert _train_losses(run) == _train_losses(undisturbed), "the mean of an epoch has its first half in it, too"


def _train_losses(run: Run) -> list[float]:
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [row["train_loss"] for row in map(json.loads, lines) if "train_loss" in row]


@pytest.mark.all
def test_an_image_that_breaks_after_the_check_does_not_stop_the_training(
    tmp_path: Path, nursery: NurseryLauncher
) -> None:
    data = generate.write(tmp_path / "set", train=8, val=2, width=64, height=48)
    broken = sorted((tmp_path / "set/images/train").iterdir())[3]
    whole = bytearray(broken.read_bytes())
    whole[60:-20] = bytes(len(whole) - 80)  # header and end are there: only decoding shows it
    broken.write_bytes(whole)
    (tmp_path / "runs").mkdir()
    words = {**SMALL, "epochs": 1, "data": data, "batch": 64, "imgsz": 70}  # more than there are; no multiple of 32
    run = drive(tmp_path / "runs", SCRIPT, nursery=nursery, settings=PATIENT, **words)
    assert run.outcome.state == "FINISHED", run.story()
    assert run.receipt["steps"] == 1 and run.receipt["samples_quarantined"] == 0
    assert json.loads((run.folder / "detector.json").read_text())["imgsz"] == 64


@pytest.mark.long
@pytest.mark.timeout(1800)  # twice 720 steps, on a machine that may be busy
def test_what_was_tuned_once_is_kept_to_whatever_happens(tmp_path: Path, nursery: NurseryLauncher, data: Path) -> None:
    """The first run measures; the second remembers, is killed twice, and computes the same bits.

    The tuner takes a twentieth of a run at most, so the run is long enough for several comparisons in that time.
    """
    epochs = math.ceil(3 * NEEDED / SHARE / 16)  # of 16 images, one in a batch
    words = {**SMALL, "data": data, "tune": "true", "epochs": epochs, "batch": 1, "evaluate_every": epochs}
    words["multiscale"] = 0  # half of 64 pixels would leave batch norm one value of a single image
    runs = []
    for name, faults in (("measured", ""), ("remembered", "sigkill@2:backward,sigkill@6:forward")):
        (tmp_path / name).mkdir()
        runs.append(drive(tmp_path / name, SCRIPT, nursery=nursery, settings=PATIENT, faults=faults, **words))
        assert runs[-1].outcome.state == "FINISHED", runs[-1].story()
    first, second = (json.loads((run.folder / "tuning.json").read_text())["cpu"] for run in runs)
    tried = {name for row in first["rows"] for name, value in row["choice"].items() if value != getattr(Choice(), name)}
    # how many, depends on the time there is: on a very busy machine none is compared to its end
    assert first["basis"] == "measured" and "compile" not in tried
    assert second["basis"] == "remembered from an earlier run" and second["choice"] == first["choice"]
    said = [(run.folder / "output.log").read_text() for run in runs]
    assert [text.count("tuned: ") for text in said] == [1, 1], said
    assert sum(runs[1].receipt["faults"].values()) == 2, runs[1].story()
    assert runs[1].receipt["weights_sha256"] == runs[0].receipt["weights_sha256"]
