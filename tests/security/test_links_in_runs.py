"""The `holdfast` command on run folders in which somebody has planted something: real processes, a real run."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.run.folder import RunFolder, list_runs, read_events
from tests.cli.driving import SCRIPT, environment, holdfast
from tests.security import planting
from tests.security.matrix import template
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


@pytest.mark.sample(5, 1)
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("checkpoints", "link to a folder", "checkpoints is a link"),
        ("lock", "link to a file", "lock is a link"),
        ("journal.jsonl", "link to a file", "journal.jsonl is a link"),
        ("output.log", "hard link", "output.log has a second name (a hard link) elsewhere"),
        ("checkpoints/000010/state.safetensors", "pipe", "checkpoints/000010/state.safetensors is a pipe"),
    ],
)
def test_resume_refuses_and_leaves_everything_as_it_is(tmp_path: Path, name: str, kind: str, words: str) -> None:
    run, outside = template(tmp_path), planting.outside(tmp_path)
    at = run / name
    shutil.rmtree(at) if at.is_dir() else at.unlink(missing_ok=True)
    planting.plant(kind, at, outside)
    before = planting.seen(outside), planting.seen(run)
    done = holdfast("resume", str(run), cwd=tmp_path)
    assert done.code == 2, done.err
    assert words in done.err and "cause:" in done.err and "hint:" in done.err
    assert (planting.seen(outside), planting.seen(run)) == before


@pytest.mark.all
def test_pipes_are_waited_for_by_nobody(tmp_path: Path) -> None:
    run, outside = template(tmp_path), planting.outside(tmp_path)
    for name in ("journal.jsonl", "metrics.jsonl", "beat.json", "output.log", "lock", "receipt.json"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    before = planting.seen(outside)
    for words in (["status", str(run)], ["watch", "-1", str(run)], ["report", str(run)], ["fsck", str(run)]):
        assert holdfast(*words, cwd=tmp_path, timeout=100).code in (0, 1, 2), words
    assert planting.seen(outside) == before


@pytest.mark.long
def test_a_link_that_comes_while_a_run_goes_on_is_not_followed(tmp_path: Path) -> None:
    """The keeper saves and prunes several times a second; then `checkpoints` leads to somebody's pictures."""
    (tmp_path / "job.py").write_text(SCRIPT)
    outside = planting.outside(tmp_path)
    words = [
        "train",
        "job.py",
        "epochs=400",
        "nap=0.02",
        "--device",
        "cpu",
        "checkpoint.every=0.2s",
        "checkpoint.keep=1",
    ]
    before_mask = os.umask(0o000)
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.umask(before_mask)
    try:
        assert wait_until(lambda: saves(tmp_path / "runs")), "no checkpoint came"
        run = list_runs(tmp_path / "runs")[0]
        check_modes(run)
        checkpoints = run.path / "checkpoints"
        before = planting.seen(outside)
        checkpoints.rename(tmp_path / "taken away")
        checkpoints.symlink_to(outside / "pictures")
        assert wait_until(lambda: "is a link" in (run.path / "journal.jsonl").read_text()), "it is not said"
        assert planting.seen(outside) == before
        checkpoints.unlink()
        (tmp_path / "taken away").rename(checkpoints)
        done = saves(tmp_path / "runs")
        assert wait_until(lambda: saves(tmp_path / "runs") > done), "it does not go on saving"
    finally:
        child.terminate()
        _, said = child.communicate(timeout=120)
    assert child.returncode == 75, said
    check_modes(run)
    assert planting.seen(outside) == before


def saves(runs: Path) -> int:
    return sum(
        event.kind == "checkpoint" for run in list_runs(runs) for event in read_events(run.path / "journal.jsonl")
    )


def check_modes(run: RunFolder) -> None:
    """Everything in the folder of a living run is its owner's alone, although the umask would give it to all."""
    for path in [run.path, *run.path.rglob("*")]:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        wanted = 0o700 if stat.S_ISDIR(mode) else 0o600
        assert stat.S_IMODE(mode) == wanted, path.relative_to(run.path)
