"""What `--detach` says of a run that ends while it looks."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ScriptFailed
from holdfast.cli import detach
from holdfast.console.output import Output
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder


def ended_run(root: Path, state: str, code: int, error: dict[str, Any] | None) -> RunFolder:
    """A folder as a supervisor leaves it a moment before its process ends."""
    run = RunFolder.create(root, "job", {})
    run.update_info(state=state, exit_code=code)
    run.append(Event.now("end", state=state, exit_code=code, error=error))
    return run


def tell(run: RunFolder, code: int) -> tuple[int, str]:
    """The background process was alive at the last look and is about to end."""
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(0.5); raise SystemExit({code})"])
    words = io.StringIO()
    try:
        return detach._tell(run, child, False, Output.from_args(argparse.Namespace(), stdout=words)), words.getvalue()
    finally:
        child.wait()
        run.close()


def test_a_run_that_failed_between_two_looks_is_a_failure(tmp_path: Path) -> None:
    """It is not "failed in the background", with exit code 0."""
    error = ScriptFailed("job.py raised KeyError: 'label'").to_json()
    with pytest.raises(ScriptFailed, match="raised KeyError") as caught:
        tell(ended_run(tmp_path, "FAILED", 1, error), 1)
    assert caught.value.exit_code == 1


def test_a_run_that_finished_between_two_looks_is_finished(tmp_path: Path) -> None:
    code, words = tell(ended_run(tmp_path, "FINISHED", 0, None), 0)
    assert code == 0
    assert " is finished\n" in words and "background" not in words
