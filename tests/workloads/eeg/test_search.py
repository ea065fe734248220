"""The search, with optuna and real runs: judged by validation alone, killed and gone on with, and it bears failures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UserError
from holdfast.run.folder import list_runs
from holdfast.workloads.eeg.search import SPACES, best_of, search

from . import small

optuna = pytest.importorskip("optuna")
psutil = pytest.importorskip("psutil")
PATIENCE = 400.0
pytestmark = pytest.mark.timeout(900)

GIVEN = ["data=cache", "width=8", "tune=false", "epochs=2", "run.threads=1", "run.device=cpu"]


@dataclass(frozen=True)
class Study:
    """Two searches in one folder: the first was killed in its second trial."""

    cwd: Path
    orphans: list[Any]
    done: subprocess.CompletedProcess[str]

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.done.stdout)
        return found

    def runs(self) -> dict[str, dict[str, Any]]:
        """run.json of each run, by name, in the order of their beginning."""
        return {each.name: each.info for each in list_runs(self.cwd / "study" / "runs")}


def words(trials: int) -> list[str]:
    asked = ["eeg", "search", "1", *GIVEN, "--study", "study", "--trials", str(trials), "--json"]
    return [sys.executable, "-m", "holdfast", *asked]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    cwd = tmp_path_factory.mktemp("search")
    small.challenge1(cwd / "cache" / "challenge1")
    with subprocess.Popen(words(2), cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as going:
        deadline = time.monotonic() + PATIENCE
        while len(list((cwd / "study" / "runs").glob("*/beat.json"))) < 2:
            assert going.poll() is None and time.monotonic() < deadline, "there was no second trial"
            time.sleep(0.02)
        orphans = psutil.Process(going.pid).children(recursive=True)
        going.send_signal(signal.SIGKILL)
    for each in orphans:  # its run is supervised by a process of its own, which would finish it
        each.kill()
    done = subprocess.run(words(1), cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return Study(cwd, orphans, done)


@pytest.mark.long
def test_the_same_folder_goes_on_after_a_kill(study: Study) -> None:
    assert study.done.returncode == 0, study.done.stderr
    assert psutil.wait_procs(study.orphans, timeout=100)[1] == []
    assert (study.told["trials"], study.told["failed"]) == (3, 1)
    states = [info["state"] for info in study.runs().values()]
    assert len(states) == 3 and states[0] == states[2] == "FINISHED" != states[1]
    loaded = optuna.load_study(
        study_name="eeg-challenge1",
        storage=optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(study.cwd / "study" / "study.jsonl"))
        ),
    )
    assert [trial.state.name for trial in loaded.trials] == ["COMPLETE", "FAIL", "COMPLETE"]


@pytest.mark.long
def test_each_trial_is_a_run_with_what_was_chosen_and_what_was_given(study: Study) -> None:
    tried = [info["arguments"] for info in study.runs().values()]
    for arguments in tried:
        assert (arguments["data"], arguments["width"], arguments["epochs"]) == ("cache", "8", "2")
        assert 5e-4 <= float(arguments["lr"]) <= 1e-2 and int(arguments["batch"]) in SPACES[1]["batch"]
    assert len({arguments["lr"] for arguments in tried}) == 3


@pytest.mark.long
def test_the_best_is_that_of_validation_and_its_words_are_those_of_its_run(study: Study) -> None:
    best: dict[str, float] = {}
    for run in list_runs(study.cwd / "study" / "runs"):
        if run.info["state"] == "FINISHED":
            rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
            best[run.name] = min(row["valid_nrmse"] for row in rows if "valid_nrmse" in row)
            assert (run.path / "scores.json").is_file()
    assert study.told["run"] == min(best, key=lambda name: best[name])
    assert study.told["value"] == pytest.approx(min(best.values()), abs=1e-6)
    arguments = study.runs()[study.told["run"]]["arguments"]
    for word in study.told["words"]:
        name, _, value = word.partition("=")
        assert float(arguments[name]) == pytest.approx(float(value), rel=1e-2)
    assert not {word.partition("=")[0] for word in study.told["words"]} & {"width", "data"}  # given, so not searched


@pytest.mark.long
def test_a_trial_that_fails_is_said_and_borne(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.cwd)
    said: list[str] = []
    found = search(1, Path("study"), trials=1, words=["data=nowhere", *GIVEN[1:]], say=said.append)
    assert said[0].startswith("✗ trial 1 of 1: lr=") and said[0].endswith(": there is no cache in nowhere")
    assert (found.trials, found.failed, found.run) == (4, 2, study.told["run"])


def test_nothing_finished(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no trial of the search finished") as refused:
        search(2, tmp_path, trials=1, words=["nothing=1"], say=lambda _: None)
    assert refused.value.hints == ("run one by hand to see why: `holdfast train eeg-challenge2 nothing=1`",)


def test_a_study_that_is_none_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "study.jsonl").write_text("nothing of the kind\n" * 3)
    with pytest.raises(UserError, match="cannot be read"):
        search(1, tmp_path, trials=1, say=lambda _: None)


def test_only_a_finished_run_counts() -> None:
    assert best_of({"state": "FINISHED", "best": {"value": 0.7}}) == 0.7
    assert best_of({"state": "STOPPED", "best": {"value": 0.7}}) is None
    assert best_of({"state": "FINISHED", "best": None}) is None
    assert best_of({}) is None
