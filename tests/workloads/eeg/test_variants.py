"""Other ways to train, each in a real run: a model of braindecode, cross-validation, releases drawn together."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.workloads.eeg import cache, challenge1, challenge2, heads, models, scores, serving, submission
from holdfast.workloads.eeg.splits import folds, split
from holdfast.workloads.eeg.training import predict
from tests.worker.local_runs import run

from . import small

RELEASES = ("R1", "R2", "R3", "R4", "R5")
CPU = torch.device("cpu")
pytestmark = pytest.mark.timeout(900)


@pytest.mark.long
def test_a_model_of_braindecode_cross_validated_over_releases(tmp_path: Path) -> None:
    """EEGNeX by its name, a member for each fold, CORAL on: supervised to its end, and out of fold is out of fold."""
    pytest.importorskip("braindecode")
    windows = cache.open(small.challenge1(tmp_path / "cache", subjects=15, trials=4, releases=RELEASES))
    words = ["model=EEGNeX", "members=2", "folds=true", "align=1.0", "epochs=1", "batch=36", "width=8", "tune=false"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "train", "eeg-challenge1", f"data={windows.folder}", *words,
         "run.threads=1", "run.device=cpu", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    folder = tmp_path / json.loads(done.stdout)["folder"]
    said = (folder / "output.log").read_text()
    assert "split test R5, validation R4: 9 training, 3 validation, 3 test subjects" in said
    assert "EEGNeX with time head: " in said and "  out of fold (2 folds): nrmse " in said
    told = json.loads((folder / "scores.json").read_text())
    assert (told["model"], told["out_of_fold"]["folds"], told["out_of_fold"]["windows"]) == ("EEGNeX", 2, 36)
    assert told["out_of_fold"]["nrmse"] == pytest.approx(_out_of_fold(folder, windows), abs=1e-3)


def _out_of_fold(folder: Path, windows: Any) -> float:
    """The same number from the weights that were kept: each release answered by the member that never saw it."""
    from safetensors.torch import load_file

    net = serving.build(submission.described(folder), models, heads)
    net.load_state_dict(load_file(folder / "final.safetensors"))
    rows = split(windows.table).train
    fold = folds(windows.table, rows, 2)
    assert {str(each) for each in windows.table["release"][rows[fold == 1]]} == {"R2"}
    truth, guess = windows.table["response_time"][rows], np.empty(len(rows))
    for number, member in enumerate(net.members):
        guess[fold == number] = predict(member, windows, rows[fold == number], CPU)[:, 0]
    return scores.nrmse(truth, guess)


@pytest.mark.long
def test_coral_draws_the_releases_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One release is restless in channels that say nothing: with `align` the features of both become alike."""
    place = small.challenge1(tmp_path / "cache", subjects=16, restless=["R2"], releases=("R1", "R2", "R3", "R5"))
    windows, nets, build = cache.open(place), [], challenge1.build_net
    monkeypatch.setattr(challenge1, "build_net", lambda *a, **k: nets.append(build(*a, **k)) or nets[-1])
    rows = split(windows.table).train
    x = torch.from_numpy(windows.batch(rows))
    release = torch.from_numpy((windows.table["release"][rows] == "R2").astype(np.int64))
    apart = []
    for align in (0.0, 5.0):
        torch.manual_seed(0)
        given = {"data": str(place), "align": align, "epochs": 10, "patience": 10, "batch": 32, "width": 8}
        train = functools.partial(challenge1.train, **given, tune=False, augment=0.0)
        run(tmp_path, train, checkpoint__every=3600)
        with torch.inference_mode():
            apart.append(float(heads.coral(nets[-1].members[0].eval().backbone.summary(x), release)))
    assert apart[1] < 0.6 * apart[0]


@pytest.mark.all
def test_challenge2_is_cross_validated_too(tmp_path: Path) -> None:
    place = small.challenge2(tmp_path / "cache", subjects=15, windows=4, releases=RELEASES)
    given = {"data": str(place), "members": 3, "folds": True, "align": 1.0, "epochs": 2, "batch": 16, "width": 8}
    outcome = run(tmp_path, functools.partial(challenge2.train, **given, tune=False), checkpoint__every=3600)
    told = json.loads((outcome.folder.path / "scores.json").read_text())
    assert (told["out_of_fold"]["folds"], told["out_of_fold"]["windows"]) == (3, 36)
    assert np.isfinite(told["out_of_fold"]["nrmse"])


@pytest.mark.long
def test_nets_that_share_all_subjects_train_in_a_run_beside_a_net_of_braindecode(tmp_path: Path) -> None:
    """`cross=true`: who would validate trains as well, each subject is left out by one member, and what was kept
    answers like the run. `against=` puts a net of braindecode beside it. Three test subjects: no interval."""
    pytest.importorskip("braindecode")
    windows = cache.open(small.challenge1(tmp_path / "cache", subjects=15, trials=4, releases=RELEASES))
    words = ["model=unet", "members=3", "cross=true", "epochs=2", "batch=16", "width=8", "tune=false",
             "against=ShallowFBCSPNet"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "train", "eeg-challenge1", f"data={windows.folder}", *words,
         "run.threads=1", "run.device=cpu", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    folder = tmp_path / json.loads(done.stdout)["folder"]
    told = json.loads((folder / "scores.json").read_text())
    parts = split(windows.table)
    rows = np.sort(np.concatenate([parts.train, parts.valid]))
    assert told["out_of_fold"]["windows"] == len(rows) == 48, "the subjects of the validation train as well"
    fold = folds(windows.table, rows, 3, mixed=True)
    by_subject = {who: set(fold[windows.table["subject"][rows] == who]) for who in windows.table["subject"][rows]}
    assert set(fold) == {0, 1, 2} and all(len(each) == 1 for each in by_subject.values())

    from safetensors.torch import load_file

    net = serving.build(submission.described(folder), models, heads)
    net.load_state_dict(load_file(folder / "final.safetensors"))
    assert net.pooled and len(net.members) == 3
    guess = predict(net, windows, parts.test, CPU)[:, 0]
    assert told["nrmse"] == pytest.approx(scores.nrmse(windows.table["response_time"][parts.test], guess), abs=1e-3)

    said = (folder / "output.log").read_text()
    assert told["nrmse_low"] is None and "  no interval: 3 subjects say too little about others" in said
    rival = told["baselines"]["rival"]
    assert rival["name"] == "ShallowFBCSPNet" and rival["steps"] >= 1 and rival["cpu_s"] > 0
    assert np.isfinite(rival["nrmse"]) and f"ShallowFBCSPNet in the same {rival['cpu_s']} CPU s " in said


@pytest.mark.all
def test_one_subject_to_validate_and_one_to_test_give_no_score_and_a_trained_net(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each has one label, and an error over the spread of one label is no score. The newest weights are kept."""
    releases = ("R1",) * 8 + ("R4", "R5")
    place = small.challenge2(tmp_path / "cache", subjects=10, windows=4, releases=releases)
    nets, first, build = [], {}, challenge2.build_net

    def built(*args: Any, **more: Any) -> Any:
        nets.append(build(*args, **more))
        first.update({name: each.clone() for name, each in nets[0].state_dict().items()})
        return nets[0]

    monkeypatch.setattr(challenge2, "build_net", built)
    given = {"data": str(place), "epochs": 3, "patience": 1, "batch": 16, "width": 8, "tune": False}
    done = run(tmp_path, functools.partial(challenge2.train, **given), checkpoint__every=3600)
    assert done.receipt["steps"] == 3 * 2  # patience counts epochs that are worse, not unknown ones
    assert any(not torch.equal(each, first[name]) for name, each in nets[0].named_parameters())
    (kept,) = tmp_path.rglob("scores.json")
    found = json.loads(kept.read_text())
    assert found["subjects"] == 1 and found["nrmse"] is None and found["mean_r"] is None
    assert found["no_nrmse"] == "1 test subject with one and the same label"
    for row in found["factors"]:
        assert row["nrmse"] is None and row["r"] is None
        assert set(row["baselines"].values()) == {None}
    said = capfd.readouterr().out
    assert "  externalizing: no nrmse: 1 test subject with one and the same label" in said
    assert "e+" not in said and "mean r" not in said
