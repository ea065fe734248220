"""Weights & Biases offline: its files are read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.monitor.trackers import wandb_file
from tests.monitor.trackers.tracked_run import TrackedRun

pytest.importorskip("wandb", reason="W&B is not installed: pip install 'holdfast[wandb]'")
pytestmark = pytest.mark.timeout(600)  # three processes import it one after the other


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


def records(folder: Path) -> list[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    return [Record.FromString(data) for path in files(folder) for data in wandb_file.records(path)]


def test_offline_files_have_every_number_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run = TrackedRun(tmp_path, "wandb", {"track.project": "eeg"})
    for step in range(1, 6):
        run.log(step, loss=float(step))
    run.wait_for("wandb", 5)
    run.kill("wandb")
    run.event("fault", code="F005", sentence="cuda:0 stopped answering", step=6)
    run.log(6, loss=6.0)
    run.event("undone", from_step=6, to_step=5)
    run.log(6, loss=60.0)
    run.wait_for("wandb", 9)
    (run.folder.path / "trackers" / "wandb.json").unlink()  # as if killed before it was written
    (run.folder.path / "best.safetensors").write_bytes(b"weights")
    run.kill("wandb")
    run.log(7, loss=7.0)
    run.end("STOPPED")
    run.wait()
    run.resume(7)
    run.log(8, loss=8.0)
    run.end("FINISHED")
    run.wait()

    rows = [row for path in files(tmp_path) for row in wandb_file.history(path)]
    numbers = [(row["step"], row["loss"], row.get("holdfast/corrects", False)) for row in rows if "loss" in row]
    expected = [(step, float(step), False) for step in range(1, 7)]
    assert numbers == [*expected, (6, 60.0, True), (7, 7.0, False), (8, 8.0, False)], run.said()
    assert [row["_step"] for row in rows] == sorted({row["_step"] for row in rows})
    events = [row["holdfast/event"] for row in rows if "holdfast/event" in row]
    assert events[0] == "F005 cuda:0 stopped answering" and "resumed at step 7 on cpu" in events
    undone = next(row for row in rows if "holdfast/undone_from" in row)
    assert (undone["holdfast/undone_from"], undone["holdfast/undone_to"]) == (6, 6)
    runs = {(record.run.run_id, record.run.project, record.run.display_name) for record in records(tmp_path)}
    assert len({each for each in runs if each[0]}) == 1, runs
    sent = [record.request.log_artifact.artifact.name for record in records(tmp_path)]
    sent += [record.artifact.name for record in records(tmp_path)]
    assert {name for name in sent if name} == {f"{run.folder.name}-report", f"{run.folder.name}-model"}
