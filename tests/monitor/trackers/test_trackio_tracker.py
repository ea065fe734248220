"""Trackio's local database, read back with SQLite and with Trackio."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.monitor.trackers.tracked_run import TrackedRun

pytest.importorskip("trackio", reason="Trackio is not installed: pip install 'holdfast[trackio]'")


def select(root: Path, words: str) -> list[Any]:
    (path,) = root.rglob("eeg.db")
    with sqlite3.connect(path) as base:
        return base.execute(words).fetchall()


def test_the_database_has_every_number_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    run = TrackedRun(tmp_path, "trackio", {"track.project": "eeg"})
    for step in range(1, 6):
        run.log(step, loss=float(step))
    run.wait_for("trackio", 5)
    (run.folder.path / "trackers" / "trackio.json").unlink()  # as if killed before it was written
    run.kill("trackio")
    run.event("fault", code="F005", sentence="cuda:0 stopped answering", step=6)
    run.log(6, loss=6.0)
    run.event("undone", from_step=6, to_step=5)
    run.log(6, loss=60.0)
    (run.folder.path / "best.safetensors").write_bytes(b"weights")
    run.end("STOPPED")
    run.wait()
    run.resume(6)
    run.log(7, loss=7.0)
    run.end("FINISHED")
    run.wait()

    rows = select(tmp_path, "SELECT run_id, run_name, step, metrics FROM metrics ORDER BY id")
    numbers = [(step, json.loads(metrics)["loss"]) for _, _, step, metrics in rows]
    assert numbers == [*((step, float(step)) for step in range(1, 7)), (6, 60.0), (7, 7.0)], run.said()
    assert [json.loads(metrics).get("holdfast/corrects") for *_, metrics in rows] == [None] * 6 + [1, None]
    assert {(name, number) for number, name, _, _ in rows} == {(run.folder.name, rows[0][0])}
    alerts = select(tmp_path, "SELECT step, level, title FROM alerts ORDER BY id")
    assert alerts[0] == (6, "warn", "F005 cuda:0 stopped answering")
    assert (6, "info", "resumed at step 6 on cpu") in alerts and len(alerts) == len(set(alerts)) == 5
    stored = {name for (name,) in select(tmp_path, "SELECT name FROM artifacts")}
    assert stored == {f"{run.folder.name}-report", f"{run.folder.name}-model"}
