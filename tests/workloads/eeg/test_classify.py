"""Any column of a set that is not ours: found, learned, tested on people held out, and honest about what is known."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from holdfast.base.errors import UserError
from holdfast.cli.main import main
from holdfast.workloads.eeg import (
    bids,
    class_scores,
    classify,
    classify_data,
    folds,
    labels,
    linear,
    models,
    pretrain,
    scores,
)
from tests.worker.local_runs import run
from tests.workloads.eeg.sets import stem, write_channels, write_recording

SUBJECTS, TRIALS, RATE = 6, 24, 100
NAMES = ("C3", "Cz", "C4", "Pz")


def imagery(root: Path, *, strength: float = 2.0, seed: int = 0) -> Path:
    """Left and right, as in motor imagery: a 10 Hz rhythm is weaker on the other side. Age is in nothing."""
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True)
    (root / "dataset_description.json").write_text('{"Name": "imagery", "BIDSVersion": "1.9.0"}')
    lines = ["participant_id\tage\thand"]
    for number in range(1, SUBJECTS + 1):
        name = f"sub-{number:02d}"
        lines.append(f"{name}\t{20 + 1.5 * number}\t{'R' if number % 3 else 'L'}")
        signals = rng.standard_normal((4, TRIALS * 3 * RATE)) * 1e-5
        rows = ["onset\tduration\ttrial_type\tdifficulty"]
        for trial in range(TRIALS):
            side = "left" if rng.random() < 0.5 else "right"
            start = trial * 3 * RATE + RATE
            wave = np.sin(2 * np.pi * (10 * np.arange(RATE) / RATE + rng.random())) * 1e-5
            signals[0 if side == "left" else 2, start : start + RATE] += strength * wave
            rows.append(f"{start / RATE:.2f}\t1.0\t{side}\t{rng.integers(1, 4)}")
            rows.append(f"{start / RATE + 1.5:.2f}\t0.1\tn/a\tn/a")
        write_recording(root, name, signals.astype(np.float32), task="imagery", rate=RATE, channels=NAMES)
        write_channels(root, name, NAMES, task="imagery")
        Path(f"{stem(root, name, 'imagery')}_events.tsv").write_text("\n".join(rows) + "\n")
    (root / "participants.tsv").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return imagery(tmp_path_factory.mktemp("imagery") / "set")


# Columns ----------------------------------------------------------------------------------------------------


def test_a_column_is_found_in_events_or_in_the_table_of_subjects(data: Path) -> None:
    dataset = bids.look(data)
    events = labels.find(dataset, "trial_type")
    assert (events.of, set(events.values), events.seconds, events.is_number) == (
        "events",
        {"left", "right"},
        1.0,
        False,
    )
    assert sum(events.values.values()) == SUBJECTS * TRIALS  # n/a is no label
    people = labels.find(dataset, "hand")
    assert (people.of, dict(people.values), people.seconds) == ("participants", {"R": 4, "L": 2}, 4.0)
    with pytest.raises(UserError) as caught:
        labels.find(dataset, "trialtype")
    assert "columns of events: trial_type, difficulty; of subjects: age, hand" in str(caught.value.cause)
    assert caught.value.hints == ("`target=trial_type` exists",) or caught.value.hints == ["`target=trial_type` exists"]


def test_what_cannot_be_trained_on_is_said_before_there_is_a_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [f"data={data}", f"run.folder={tmp_path / 'runs'}"]
    for words, message in (
        (["target=sex"], "has a value for `sex`"),
        (["target=trial_type", "classes=left"], "has fewer than two classes"),
        (["target=trial_type", "tasks=rest"], "has no task rest"),
        (["target=trial_type", "model=EEGNEX9"], "EEGNEX9"),
    ):
        assert main(["train", "eeg-classify", *here, *words]) == 2
        assert message in capsys.readouterr().err
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "braindecode" else found(name))
    assert main(["train", "eeg-classify", *here, "target=trial_type", "model=EEGNeX"]) == 2
    said = capsys.readouterr().err
    assert "braindecode is not installed" in said and "pip install 'holdfast[eeg]'" in said
    assert not (tmp_path / "runs").exists()


def test_windows_hold_the_label_and_the_signal_of_their_event(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(classify_data.KEPT, str(tmp_path))
    asked = classify_data.Asked(str(data), "trial_type", band="none")
    windows, wanted = classify_data.windows(asked)
    assert len(windows) == SUBJECTS * TRIALS and windows.samples == 100
    power = np.log(linear.band_power(np.asarray(windows.signals), 100.0)[:, 8:12].clip(-40, None) + 50)
    left = windows.table["event"] == "left"
    assert power[left, 0].mean() > power[~left, 0].mean() and power[left, 2].mean() < power[~left, 2].mean()
    people = classify_data.Asked(str(data), "age", predicts="amount")
    windows, wanted = classify_data.windows(people)
    task = classify_data.task(windows, wanted, people)
    truth, _, groups = task.judged(task.targets)
    assert sorted(truth[:, 0].tolist()) == [21.5, 23.0, 24.5, 26.0, 27.5, 29.0] and len(groups) == SUBJECTS


# Folds ------------------------------------------------------------------------------------------------------


def table(subjects: list[str], recordings: list[str] | None = None) -> dict[str, Any]:
    return {"subject": np.array(subjects), "recording": np.array(recordings or subjects)}


@pytest.mark.parametrize(
    ("people", "asked", "count"), [(6, "auto", 6), (12, "auto", 5), (12, "subject", 12), (6, "2", 2)]
)
def test_no_subject_is_in_two_folds(people: int, asked: str, count: int) -> None:
    subjects = [f"S{number % people}" for number in range(people * 7)]
    plan = folds.plan(table(subjects), np.arange(len(subjects)), asked)
    assert plan.count == count == len(set(plan.fold.tolist()))
    of = {(name, int(fold)) for name, fold in zip(subjects, plan.fold, strict=True)}
    assert len(of) == people


def test_one_subject_is_tested_by_recording_and_that_is_said() -> None:
    plan = folds.plan(table(["S"] * 8, ["a", "a", "b", "b", "c", "c", "d", "d"]), np.arange(8), "auto")
    assert plan.count == 4 and not plan.by_subject and "nothing is said about other people" in plan.how
    with pytest.raises(UserError, match="nothing to hold out"):
        folds.plan(table(["S"] * 8, ["a"] * 8), np.arange(8), "auto")


def test_a_label_of_the_subject_is_in_every_fold() -> None:
    people = [f"S{number:02d}" for number in range(20)]
    hand = np.array([float(number < 10) for number in range(20)])
    plan = folds.plan(table(people), np.arange(20), "5", labels=hand)
    assert all({0.0, 1.0} == set(hand[plan.fold == each].tolist()) for each in range(5))


# Scores -----------------------------------------------------------------------------------------------------


def answers(subjects: int, right: float, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, subjects * 40)
    said = np.where(rng.random(len(truth)) < right, truth, 1 - truth)
    return truth, np.eye(2)[said], np.repeat([f"S{number}" for number in range(subjects)], 40)


def test_two_subjects_get_no_interval_and_the_reason() -> None:
    found = class_scores.measured(*answers(2, 0.9), ["a", "b"])
    assert found["low"] is None and found["why"] == "no interval: 2 subjects say too little about others"
    assert found["why"] in class_scores.lines(found)[0]
    assert class_scores.measured(*answers(5, 0.9), ["a", "b"])["low"] is not None


def test_each_subject_has_an_auroc_where_it_has_both_classes() -> None:
    truth, said, groups = answers(3, 0.9)
    found = class_scores.measured(truth, said, groups, ["a", "b"])
    assert set(found["auroc_per_group"]) == {"S0", "S1", "S2"}
    mine = groups == "S1"
    assert found["auroc_per_group"]["S1"] == pytest.approx(scores.auroc(truth[mine] == 1, said[mine, 1]), abs=1e-4)
    truth[mine] = 0
    assert "auroc_per_group" not in class_scores.measured(truth, said, groups, ["a", "b"])


def test_an_amount_of_two_subjects_gets_no_interval_either() -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(40)
    found = classify_data.amounts(truth, truth + 0.1, np.repeat(["a", "b"], 20))
    assert found["r_low"] is None and found["inside_noise"]
    assert "(no interval: 2 subjects)" in classify_data.amount_lines(found)[0]


def test_the_interval_holds_what_it_promises() -> None:
    """Of people whose true accuracies differ, in 19 of 20 sets: not of these subjects, of all."""
    rng, inside = np.random.default_rng(1), 0
    for _ in range(400):
        low, high = class_scores.interval(rng.normal(0.7, 0.08, 6).tolist()) or (0.0, 0.0)
        inside += low <= 0.7 <= high
    assert 0.92 < inside / 400 < 0.98


@pytest.mark.all
def test_the_permutation_test_sees_what_is_there_and_not_what_is_not() -> None:
    assert class_scores.measured(*answers(6, 0.65), ["a", "b"])["p"] < 0.01
    values = [
        class_scores.permutation_p(t, p.argmax(1), g, times=99) for t, p, g in (answers(4, 0.5, s) for s in range(60))
    ]
    assert np.mean(np.array(values) <= 0.1) < 0.25 and 0.35 < np.mean(values) < 0.65


def test_labels_of_subjects_are_shuffled_over_subjects() -> None:
    """Forty windows of a person are one answer about that person: three of three is luck."""
    truth, groups = np.repeat([0, 1, 1], 40), np.repeat(["a", "b", "c"], 40)
    assert class_scores.permutation_p(truth, truth, groups) > 0.2


@pytest.mark.all
def test_the_ridge_is_that_of_scikit_learn() -> None:
    ridge = pytest.importorskip("sklearn.linear_model").Ridge
    rng = np.random.default_rng(0)
    x, ask = rng.standard_normal((60, 12)), rng.standard_normal((9, 12))
    y = x @ rng.standard_normal((12, 2)) + rng.standard_normal((60, 2))
    centre, spread = x.mean(0), x.std(0)
    theirs = ridge(alpha=3.0).fit((x - centre) / spread, y).predict((ask - centre) / spread)
    np.testing.assert_allclose(linear._answers(x, y, ask, np.array([3.0 * 100 / 12]))[0], theirs, atol=1e-10)


# From the weights of another run -----------------------------------------------------------------------------


def pretrained(folder: Path, width: int = 8) -> dict[str, torch.Tensor]:
    """What a run of eeg-pretrain leaves behind: the weights of its net, with those of the layer that fills in."""
    torch.manual_seed(7)
    backbone = models.build("tempo", channels=4, samples=200, rate=100.0, width=width)
    weights = pretrain.Filling(backbone).state_dict()
    folder.mkdir(parents=True)
    save_file({name: each.contiguous() for name, each in weights.items()}, folder / "final.safetensors")
    return weights


@pytest.mark.all
@pytest.mark.timeout(600)
def test_every_fold_starts_from_the_weights_of_the_parent(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a learning rate of 0 the run ends with the weights it began with."""
    monkeypatch.setenv(classify_data.KEPT, str(tmp_path / "windows"))
    wanted, build = pretrained(tmp_path / "job-calm-heron"), classify.build_net
    nets, fresh = [], []

    def built(*args: Any, **more: Any) -> Any:
        nets.append(build(*args, **more))
        fresh.extend({k: v.detach().clone() for k, v in each.backbone.named_parameters()} for each in nets[0].members)
        return nets[0]

    monkeypatch.setattr(classify, "build_net", built)
    given = {"data": str(data), "target": "trial_type", "folds": "3", "width": 8, "tune": False}
    still = {"epochs": 1, "lr": 0.0, "weight_decay": 0.0, "parent": str(tmp_path / "job-calm-heron")}
    run(tmp_path, functools.partial(classify.train, **given, **still), checkpoint__every=3600)
    assert len(nets[0].members) == 3
    for member, before in zip(nets[0].members, fresh, strict=True):
        mine = dict(member.backbone.named_parameters())
        assert mine and all(torch.equal(each, wanted[f"backbone.{name}"]) for name, each in mine.items())
        assert any(not torch.equal(each, wanted[f"backbone.{name}"]) for name, each in before.items())
    assert capfd.readouterr().out.count("backbone from job-calm-heron (") == 1  # once, and not for each fold


@pytest.mark.all
@pytest.mark.timeout(600)
def test_a_parent_that_does_not_fit_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(classify_data.KEPT, str(tmp_path / "windows"))
    pretrained(tmp_path / "wider", width=16)
    (tmp_path / "unfinished").mkdir()
    given = {"data": str(data), "target": "trial_type", "folds": "3", "width": 8, "tune": False, "epochs": 1}
    for name, message in (("wider", "do not fit this model"), ("unfinished", "has no weights to start from")):
        train = functools.partial(classify.train, **given, parent=str(tmp_path / name))
        with pytest.raises(UserError, match=message):
            run(tmp_path / f"run-{name}", train, checkpoint__every=3600)


# A run ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_learns_what_csp_learns_and_says_it(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(classify_data.KEPT, str(tmp_path / "windows"))
    words = [f"data={data}", "target=trial_type", "epochs=12", "batch=32", "width=8", "folds=3", "tune=false"]
    command = [sys.executable, "-m", "holdfast", "train", "eeg-classify", *words, "run.threads=1", "run.device=cpu"]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / json.loads(done.stdout)["folder"]
    found, said = json.loads((folder / "scores.json").read_text()), (folder / "output.log").read_text()
    assert np.sum(found["confusion"]) == SUBJECTS * TRIALS and found["groups"] == SUBJECTS
    assert found["p"] < 0.01 and found["low"] <= found["balanced_accuracy"] <= found["high"]
    assert "`trial_type` from EEG, tempo, 3 folds by subject: 6 subjects, 144 answers" in said
    assert "permutation test" in said and "confusion" in said
    assert found["balanced_accuracy"] > min(0.8, csp(data) - 0.1)


def csp(data: Path) -> float:
    """What MNE's CSP and scikit-learn's LDA get on the same windows and folds."""
    decoding = pytest.importorskip("mne.decoding")
    lda = pytest.importorskip("sklearn.discriminant_analysis").LinearDiscriminantAnalysis
    pipeline = pytest.importorskip("sklearn.pipeline").make_pipeline
    asked = classify_data.Asked(str(data), "trial_type", folds="3")
    windows, wanted = classify_data.windows(asked)
    task = classify_data.task(windows, wanted, asked)
    x, y = windows.batch(task.rows).astype(np.float64) * 1e6, task.targets[:, 0].astype(int)
    said = np.zeros(len(y), np.int64)
    for number in range(task.folds.count):
        out = task.folds.fold == number
        said[out] = pipeline(decoding.CSP(4, reg="oas", log=True), lda()).fit(x[~out], y[~out]).predict(x[out])
    return class_scores.balanced_accuracy(y, said)
