"""The agent of `holdfast launch`: where no rank can be started, and where nobody is left to start one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.distributed import roster
from holdfast.distributed.job import Job
from holdfast.distributed.roster import Roster

needs_fork = pytest.mark.skipif(processes.portable(), reason="needs fork: torchrun starts the ranks elsewhere")


@needs_fork
@pytest.mark.timeout(600)
def test_a_torch_that_cannot_be_imported_ends_the_launch_and_is_named(tmp_path: Path) -> None:
    """Each nursery ends before it can fork a rank. The launch started the next one for ever, and heeded no SIGTERM."""
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libcudart.so.12 is not here')")
    script = tmp_path / "script.py"
    script.write_text("def train(session):\n    pass\n")
    words = [sys.executable, "-m", "holdfast", "launch", "--nproc", "2", "--device", "cpu", str(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(broken.parent), *sys.path])}
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 4, ended.stdout + ended.stderr
    assert "libcudart.so.12 is not here" in ended.stderr


@needs_fork
@pytest.mark.timeout(600)
def test_a_rank_waits_for_no_other_once_the_agent_is_gone(tmp_path: Path) -> None:
    """Killed and not yet asked for by its parent, the agent is a zombie: it replaces nobody."""
    agent = subprocess.Popen([sys.executable, "-c", "pass"])
    agent.wait()
    zombie = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    job = Job(tmp_path)
    roster.publish(job, Roster(1, {0: os.getpid(), 1: 1}))
    for launcher in (agent.pid, zombie.pid):
        with pytest.raises(ConnectionError, match="the agent is gone"):
            roster.gather(job, 0, 2, 1, launcher=launcher)
        with pytest.raises(roster.RosterGone):
            roster.await_next(job, after=1, launcher=launcher)
    zombie.wait()
