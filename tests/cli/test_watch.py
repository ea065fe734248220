"""`holdfast watch` as people run it: in a pipe, in a terminal, on runs that are fine and on folders that are not."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.run.folder import write_json
from tests.cli.driving import Terminal, holdfast, said
from tests.monitor.folders import make_run


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A folder with two runs in `runs`."""
    make_run(tmp_path / "runs", "FINISHED", name="keen-skua", created="2026-11-15T09:00:00Z", boot_id=None)
    make_run(tmp_path / "runs", "STOPPED", boot_id=None)
    yield tmp_path


def test_once_in_a_pipe(here: Path) -> None:
    done = holdfast("watch", "-1", cwd=here)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("calm-heron · eeg · STOPPED") and max(map(len, lines)) <= 80
    assert "2 faults, both recovered · 28 s lost" in done.out
    assert not any(ord(char) < 32 and char != "\n" for char in done.out)
    assert holdfast("watch", cwd=here).out.splitlines()[1:] == lines[1:], "without a terminal it is the same"
    both = holdfast("watch", "-1", "keen-skua", "calm-heron", "--ascii", cwd=here)
    assert both.out.isascii() and "keen-skua . eeg . FINISHED" in both.out and "calm-heron . eeg" in both.out


def test_json(here: Path) -> None:
    done = holdfast("watch", "--json", cwd=here)
    [run] = done.json["runs"]
    assert (run["run"], run["state"], run["step"], run["faults"], run["recoveries"]) == (
        "calm-heron", "STOPPED", 1943, 2, 2,
    )  # fmt: skip
    assert run["problems"] == [] and run["metrics"]["train_loss"] == pytest.approx(0.3634, abs=1e-4)
    assert [row["device"] for row in run["devices"]] == ["cuda:0", "cpu"]
    assert run["devices"][0]["temperature_c"] is None, "the run is over: nobody knows how warm it is now"
    assert [each["run"] for each in holdfast("watch", "keen-skua", "latest", "--json", cwd=here).json["runs"]] == [
        "keen-skua", "calm-heron",
    ]  # fmt: skip


@pytest.mark.all
@pytest.mark.parametrize(("columns", "rows", "words"), [(100, 30, ()), (80, 24, ("--ascii", "--color", "never"))])
def test_the_first_picture_is_what_the_live_view_shows(
    here: Path, columns: int, rows: int, words: tuple[str, ...]
) -> None:
    pytest.importorskip("textual", reason="the extra `monitor` is not installed")
    terminal = Terminal("watch", *words, cwd=here, columns=columns, rows=rows, HOME=str(here))
    try:
        terminal.type("q")  # before it listens: it is heard when it does
        assert terminal.wait() == 0
    finally:
        terminal.end()
    taken = terminal.raw.split("\x1b[?1049h")[1].removeprefix("\x1b[?25l\x1b[2J\x1b[H")
    text = re.sub(r"\x1b\[\d+m", "", taken.partition("\x1b")[0] if words else taken)
    first = re.split(r"\r+\n", text)[:rows]
    assert len(first) == rows and [line for line in first[:-1] if len(line) > columns] == []
    assert "calm-heron" in first[0] and "q quit" in first[-1] and "read only" in first[-1]
    if words:
        assert all(line.isascii() for line in first)


@pytest.mark.all
def test_in_a_terminal(here: Path) -> None:
    pytest.importorskip("textual", reason="the extra `monitor` is not installed")
    terminal = Terminal("watch", cwd=here, columns=100, rows=30, HOME=str(here))
    try:
        terminal.wait_for("holdfast ─ calm-heron ─ eeg")
        terminal.type("e")
        terminal.wait_for("enter: why|▸ ")
        terminal.type("q")
        assert terminal.wait() == 0
        assert "\x1b[?1049l" in terminal.raw, "the terminal is given back as it was"
    finally:
        terminal.end()


def test_without_textual_a_simpler_picture_lives(here: Path) -> None:
    (here / "none/textual").mkdir(parents=True)
    (here / "none/textual/__init__.py").write_text("raise ImportError(\"No module named 'textual'\")")
    path = f"{here / 'none'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    terminal = Terminal("watch", cwd=here, HOME=str(here), PYTHONPATH=path)
    try:
        terminal.wait_for("more keys and charts: pip install 'holdfast")
        terminal.type("\x03")
        assert terminal.wait() == 0
        assert "calm-heron" in terminal.raw and terminal.raw.rstrip().endswith("\x1b[?1049l")
    finally:
        terminal.end()
    assert holdfast("watch", "-1", cwd=here, PYTHONPATH=path).code == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("nosuch",), "error: no run `nosuch` in runs\n"),
        (("calm-herron",), "error: no run `calm-herron` in runs\n\nhint: a similar run exists: `calm-heron`\n"),
        (("./empty",), "error: empty is not a run folder\n  cause: it has no readable run.json\n"),
        (("./nowhere",), "error: cannot read nowhere\n  cause: No such file or directory\n"),
        (("./file",), "error: file is not a run folder\n  cause: it is not a folder\n"),
    ],
)
def test_what_is_no_run_is_told(here: Path, words: tuple[str, ...], error: str) -> None:
    (here / "empty").mkdir()
    (here / "file").write_text("x")
    for flags in (("-1",), ("--json",), ()):
        done = said("watch", *words, *flags, cwd=here)
        assert done.code == 2
        assert done.err.startswith(error), done.err


def test_no_runs_at_all(tmp_path: Path) -> None:
    done = holdfast("watch", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, "", "no runs in runs\n")
    assert holdfast("watch", "--json", cwd=tmp_path).json["runs"] == []


def test_what_can_be_shown_of_a_damaged_run_is_shown(here: Path) -> None:
    run = here / "runs/eeg-20261115-0912-calm-heron"
    journal = (run / "journal.jsonl").read_bytes()
    (run / "journal.jsonl").write_bytes(journal[: len(journal) - 40])
    write_json(run / "run.json", {**json.loads((run / "run.json").read_text()), "format": 99})
    done = holdfast("watch", "calm-heron", "-1", cwd=here)
    assert done.code == 0
    assert "! written by a newer holdfast (format 99; known here: 1): some may be missing" in done.out
    assert "! cuda:0 was lost at step 1 471 in forward" in done.out, "what stands before the cut"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_files_without_permission_are_named(here: Path) -> None:
    run = here / "runs/eeg-20261115-0912-calm-heron"
    (run / "metrics.jsonl").chmod(0)
    try:
        done = holdfast("watch", "calm-heron", "-1", cwd=here)
        assert done.code == 0 and "! metrics.jsonl: Permission denied" in done.out
    finally:
        (run / "metrics.jsonl").chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_a_copy_that_cannot_be_written_to(here: Path) -> None:
    copy = here / "copy"
    shutil.copytree(here / "runs/eeg-20261115-0912-calm-heron", copy)
    for path in [*copy.rglob("*"), copy]:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        done = holdfast("watch", "./copy", "-1", cwd=here, XDG_CACHE_HOME="/nonexistent")
        assert done.code == 0 and done.out.startswith("copy · eeg · STOPPED")
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
