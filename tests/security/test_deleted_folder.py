"""The current folder was deleted: a command says so, a crash report is written elsewhere, and a run tells its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.driving import environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the current folder of a process")


def in_deleted_folder(tmp_path: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Python whose current folder goes before the code begins."""
    begin = f"import os\nos.mkdir({str(tmp_path / 'gone')!r})\nos.chdir({str(tmp_path / 'gone')!r})\n"
    begin += f"os.rmdir({str(tmp_path / 'gone')!r})\n"
    known = environment(TMPDIR=str(tmp_path), **env)
    return subprocess.run([sys.executable, "-c", begin + code], env=known, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("words", [["list"], ["show", "latest", "--json"], ["run", "--", "true"], ["env"]])
def test_a_command_says_it_in_words(tmp_path: Path, words: list[str]) -> None:
    done = in_deleted_folder(tmp_path, f"from holdfast.cli.main import main\nraise SystemExit(main({words!r}))")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: the current folder no longer exists\n")
    assert not list(tmp_path.glob("holdfast-report-*"))


def test_the_crash_reporter_does_not_crash(tmp_path: Path) -> None:
    code = """
from holdfast.cli import main
main._dispatch = lambda words: 1 / 0                       # any bug of ours
raise SystemExit(main.main(["list", "--pwd", "hunter2"]))
"""
    done = in_deleted_folder(tmp_path, code)
    assert done.returncode == 3 and "holdfast failed because of a bug" in done.stderr, done.stderr
    assert "ZeroDivisionError" in done.stderr and "Traceback" not in done.stderr
    (report,) = tmp_path.glob("holdfast-report-*.txt")
    assert "ZeroDivisionError" in report.read_text() and "hunter2" not in report.read_text()


def test_a_run_that_outlives_its_folder_tells_how_it_ended(tmp_path: Path) -> None:
    """Runs are elsewhere; the folder that the command was given in goes while it runs."""
    here = tmp_path / "here"
    here.mkdir()
    words = ["run", f"run.folder={tmp_path / 'runs'}", "--", "sh", "-c", f"rm -rf {here}; exit 0"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        cwd=here, env=environment(TMPDIR=str(tmp_path)), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("holdfast-report-*"))
