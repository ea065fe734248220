"""The reader takes whatever is in a folder, and says what is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.base.errors import UserError
from holdfast.monitor import reader
from holdfast.run.folder import RunFolder
from tests.monitor.folders import at, logged, make_run, plain

pytestmark = pytest.mark.usefixtures("cache")


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, words in [("nowhere", "No such file"), ("file", "not a folder"), ("empty", "no readable run.json")]:
        with pytest.raises(UserError) as error:
            reader.open(tmp_path / name)
        assert words in str(error.value.cause)


def test_a_newer_holdfast_is_named_and_what_is_known_is_shown(tmp_path: Path) -> None:
    run = reader.open(make_run(tmp_path, "FINISHED", format=99).path)
    assert run.state == "FINISHED" and len(run.metrics) == 2
    assert "written by a newer holdfast (format 99; known here: 1): some may be missing" in run.problems


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_links_and_pipes_are_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text(json.dumps(at(1, secret=1.0)) + "\n")
    path = plain(tmp_path / "run")
    (path / "metrics.jsonl").symlink_to(secret)
    os.mkfifo(path / "journal.jsonl")
    os.mkfifo(path / "beat.json")
    (path / "output.log").symlink_to(secret)
    (path / "checkpoints").symlink_to("/")
    (path / "receipt.json").symlink_to(tmp_path / "run" / "run.json")
    run = reader.open(path)
    assert len(run.metrics) == 0 and run.log_tail() == [] and run.checkpoints == [] and run.receipt is None
    assert "metrics.jsonl: a link, not a file" in run.problems
    assert "journal.jsonl: a pipe, not a file" in run.problems


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    logged(path, at(1, loss=1.0))
    (path / "metrics.jsonl").chmod(0)
    assert "metrics.jsonl: Permission denied" in reader.open(path).problems


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
kinds = st.sampled_from(
    ["start", "worker", "fault", "verdict", "recovered", "moved", "epoch", "checkpoint", "undone", "end"]
)
keys = [
    "code",
    "device",
    "step",
    "epoch",
    "folder",
    "seconds",
    "lost_s",
    "pid",
    "generation",
    "best",
    "time",
    "to_step",
]
events = st.dictionaries(st.sampled_from(keys), anything, max_size=6)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    info=st.dictionaries(
        st.sampled_from(["state", "device", "accounts", "best", "settings", "created", "run"]), anything
    ),
    beat=st.dictionaries(
        st.sampled_from(["time", "step", "epoch", "epochs", "rate", "progress", "readings"]), anything
    ),
    journal=st.lists(st.tuples(kinds, events), max_size=8),
    metrics=st.lists(st.dictionaries(st.sampled_from(["step", "epoch", "time", "loss", "b"]), anything), max_size=8),
)
def test_no_content_makes_it_fail(
    tmp_path_factory: pytest.TempPathFactory,
    info: dict[str, object],
    beat: dict[str, object],
    journal: list[tuple[str, dict[str, object]]],
    metrics: list[dict[str, object]],
) -> None:
    """Every part of the page can be made of any folder."""
    from holdfast.monitor import compare, export, payload, prometheus, report

    path = tmp_path_factory.mktemp("any") / "run"
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"format": 1, **info}))
    (path / "beat.json").write_text(json.dumps(beat))
    lines = [json.dumps({**data, "event": kind}) for kind, data in journal]
    (path / "journal.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)) + "\n", encoding="utf-8")
    run = reader.open(path)
    json.dumps(report.data(run), allow_nan=False)
    json.dumps(compare.together([compare.side(run, "a"), compare.side(run, "b")]), allow_nan=False)
    json.dumps(export.to_json(run), allow_nan=False)
    assert payload.glance(run, "a")["id"] == "a"
    assert prometheus.exposition([run]).endswith("\n")
    assert "".join(export.csv_text(run)).startswith("time,step,epoch")


@pytest.mark.all
def test_while_somebody_writes(tmp_path: Path) -> None:
    """A real writer in another process: every look is whole, and the last one has everything."""
    path = plain(tmp_path / "run")
    code = f"""
import sys, time
from pathlib import Path
from holdfast.run.folder import RunFolder
run = RunFolder(Path({str(path)!r}))
for step in range(1, 3001):
    run.append_metrics({{"time": "2026-11-15T09:12:04.000Z", "step": step, "epoch": 0, "loss": step / 2}})
    if step % 500 == 0:
        run.write_beat({{"step": step}})
        time.sleep(0.01)
"""
    writer = subprocess.Popen([sys.executable, "-c", code])
    run, seen = reader.open(path), 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (writer.poll() is None or seen < 3000):
        run.refresh()
        if "loss" in run.metrics:
            points = list(run.metrics["loss"])
            assert points == [(step, step / 2) for step in range(1, len(points) + 1)]
            assert len(points) >= seen
            seen = len(points)
    assert writer.wait() == 0
    assert seen == 3000 and run.problems == [] and run.beat == {"step": 3000}
    assert isinstance(run.folder, RunFolder)
