"""Real recordings, from their files to scores: what is not in the house is skipped.

They are looked for in ../shared/data beside the checkout, or where HOLDFAST_TEST_DATA says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.workloads.eeg import cache
from holdfast.workloads.eeg.adopt import adopt

HOUSE = Path(os.environ.get("HOLDFAST_TEST_DATA") or Path(__file__).parents[4] / "shared" / "data") / "eeg"
pytestmark = pytest.mark.timeout(900)


def found(name: str) -> Path:
    if not (HOUSE / name).exists():
        pytest.skip(f"no real recordings: {name} is neither in ../shared/data/eeg nor below HOLDFAST_TEST_DATA")
    return HOUSE / name


def holdfast(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=800, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_an_eeglab_recording_from_its_file_to_a_score(tmp_path: Path) -> None:
    """One subject at 128 Hz, 80 stimuli, 74 presses. They are quick ones: the windows begin at the stimulus."""
    pytest.importorskip("scipy")
    adopt(found("eeglab_sample") / "eeglab_data.set", tmp_path / "data", subject="01", task="square")
    checked = holdfast("eeg", "check", "data", cwd=tmp_path)
    assert checked.returncode == 1 and "arange: cannot compute" in checked.stdout
    words = ["--kind", "challenge1", "--trial", "", "--stimulus", "square", "--response", "rt", "--tasks", "square"]
    made = holdfast("eeg", "prepare", "data", "cache", *words, "--shift", "0", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[0] == (
        "✓ challenge1 · 74 windows of 2 s x 32 channels at 100 Hz · 1 of 1 recording"
    )
    assert "6  no response" in made.stdout
    times = cache.open(tmp_path / "cache" / "challenge1-100hz").table["response_time"]
    assert times.min() > 0.2 and times.max() < 2.0
    words = ["data=cache", "epochs=3", "batch=16", "width=8", "tune=false", "run.threads=1", "run.device=cpu"]
    done = holdfast("train", "eeg-challenge1", *words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / json.loads(done.stdout)["folder"]
    scores = json.loads((folder / "scores.json").read_text())
    assert (scores["simulated"], scores["subjects"], scores["windows"]) == (False, 1, 19)
    assert scores["nrmse"] < 2.0 and scores["baselines"]["constant"] > 0.5
    assert scores["nrmse_low"] is None and scores["inside_noise"]  # nobody can say so of one subject
    assert (
        json.loads((folder / "net.json").read_text())["start"] == 0.0
    )  # the axis of the time head is that of the windows
    said = (folder / "output.log").read_text()
    assert "split within 1 subject, by time: 41 training, 14 validation, 19 test windows" in said
    assert "Challenge 1 on EEG, 1 held-out subject, 19 windows" in said and "SIMULATED" not in said


@pytest.mark.sample(2)
@pytest.mark.parametrize("task", ["P300", "N170"])
def test_two_kinds_of_events_are_told_apart_within_a_subject(tmp_path: Path, task: str) -> None:
    """A rare picture from a frequent one, a face from a house: with its interval, above chance."""
    shutil.copytree(found("muse_bids") / "sub-N001", tmp_path / "muse" / "sub-N001")
    words = ["--kind", "events", "--tasks", task, "--events", "stim_1,stim_2", "--shift", "-0.1", "--size", "0.9"]
    made = holdfast("eeg", "prepare", "muse", "cache", *words, "--workers", "1", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    done = holdfast("eeg", "score", "--decode", "cache/events-100hz", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["decoding"]
    assert row["auroc_low"] > 0.5 and row["auroc_low"] <= row["auroc"] <= row["auroc_high"]
