"""The search: goes on where it was, bears failed runs, and judges by validation alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UserError
from holdfast.workloads.eeg import search as module
from holdfast.workloads.eeg.search import best_of, search

optuna = pytest.importorskip("optuna")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were asked for; a run is as good as its learning rate is near to 0.003."""
    asked: list[list[str]] = []

    def run(challenge: int, words: list[str], folder: Path) -> dict[str, Any]:
        asked.append(words)
        values = dict(word.split("=") for word in words)
        if len(asked) == 3:
            return {"state": "FAILED", "error": {"message": "its disk was full"}}
        return {
            "state": "FINISHED",
            "run": f"run-{len(asked)}",
            "best": {"value": 0.5 + abs(float(values["lr"]) - 3e-3)},
        }

    monkeypatch.setattr(module, "_run", run)
    return asked


def test_it_finds_the_better_ones_and_bears_a_failure(tmp_path: Path, runs: list[list[str]]) -> None:
    said: list[str] = []
    best = search(1, tmp_path, trials=6, words=["data=cache", "width=32"], say=said.append)
    assert len(runs) == 6 and best.trials == 6 and best.failed == 1
    assert all("data=cache" in words and "width=32" in words for words in runs)
    assert not any(word.startswith("width=") for words in runs for word in words[2:])  # given, so not searched
    assert said[2].startswith("✗ trial 3 of 6: ") and said[2].endswith("its disk was full")
    rates = {f"run-{number}": dict(word.split("=") for word in words)["lr"] for number, words in enumerate(runs, 1)}
    assert f"lr={rates[best.run]}" in best.words
    assert best.value == pytest.approx(0.5 + abs(float(rates[best.run]) - 3e-3), abs=1e-4)


def test_the_same_folder_goes_on(tmp_path: Path, runs: list[list[str]]) -> None:
    search(1, tmp_path, trials=2, say=lambda _: None)
    lines = (tmp_path / "study.jsonl").read_text().splitlines()
    study = optuna.load_study(
        study_name="eeg-challenge1",
        storage=optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.jsonl"))
        ),
    )
    study.ask()  # a search that was killed in its run
    assert search(1, tmp_path, trials=2, say=lambda _: None).trials == 5
    assert len((tmp_path / "study.jsonl").read_text().splitlines()) > len(lines)


def test_nothing_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_run", lambda *_: {"state": "FAILED"})
    with pytest.raises(UserError, match="no trial of the search finished"):
        search(2, tmp_path, trials=1, say=lambda _: None)


def test_only_a_finished_run_counts() -> None:
    assert best_of({"state": "FINISHED", "best": {"value": 0.7}}) == 0.7
    assert best_of({"state": "STOPPED", "best": {"value": 0.7}}) is None
    assert best_of({"state": "FINISHED", "best": None}) is None
    assert best_of({}) is None
