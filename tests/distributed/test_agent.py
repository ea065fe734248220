"""The agent of `holdfast launch`: where no rank can be started, and where nobody is left to start one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.base.channel import Channel
from holdfast.distributed import roster
from holdfast.distributed.job import Job
from holdfast.distributed.rank_nursery import Guest, Nest
from holdfast.distributed.roster import Roster
from holdfast.run.messages import Exited, RankEnded, received
from tests.distributed.launched import Launched

needs_fork = pytest.mark.skipif(processes.portable(), reason="needs fork: torchrun starts the ranks elsewhere")


@pytest.mark.all
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


@needs_fork
def test_a_rank_of_torchrun_whose_exit_status_nobody_knows_was_killed(tmp_path: Path) -> None:
    """The nursery says None where another has taken the status."""
    ours, theirs = Channel.pair()
    nest = object.__new__(Nest)  # without a nursery: only what it says is heard here
    nest.job, nest._guests, nest._forking = Job(tmp_path), [Guest(ours, pid=4711)], []
    nest._hear(Exited(4711, None))
    assert received(theirs.receive()[0]) == RankEnded(-signal.SIGKILL)
    assert nest.job.noted("exit-4711") == {"code": -signal.SIGKILL} and not nest._guests
    theirs.close()


@needs_fork
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_rank_that_does_not_end_with_its_nursery_is_killed(tmp_path: Path) -> None:
    """Its script ignores SIGTERM, or it is in a long call of C. It was forgotten, and a second process had its rank."""
    with Launched(tmp_path, 2, wait="8", deaf=1) as launch:
        launch.until(lambda: launch.waits_for(8, 2))
        first, second = launch.ranks()
        nursery = int(Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(nursery, signal.SIGKILL)
        launch.until(lambda: (launch.roster() or Roster(0, {})).number > 1)
        assert _is_dead(second.pid), "before another process has its rank"
        launch.go(8)
        receipt = launch.finish()["receipt"]
    assert receipt["steps"] == 30 and receipt["steps_lost"] == 0


def _below(pid: int) -> list[int]:
    return [each for child in processes.children(pid) for each in (child, *_below(child))]


def _is_dead(pid: int) -> bool:
    info = processes.inspect(pid)
    return info is None or info.state in "ZX"


@needs_fork
@pytest.mark.all
@pytest.mark.timeout(600)
def test_sigterm_for_every_process_of_the_launch_saves_at_once(tmp_path: Path) -> None:
    """Slurm sends SIGTERM to all processes of a job. Ranks whose nursery died of it started again before they saved."""
    with Launched(tmp_path, 2, wait="8", snapshot="1") as launch:
        launch.until(lambda: launch.waits_for(8, 2))
        pids = {each.pid for each in launch.ranks()}
        for pid in [launch.process.pid, *_below(launch.process.pid)]:
            processes.send(pid, signal.SIGTERM)
        launch.go(8)
        assert launch.end()["state"] == "STOPPED" and launch.process.returncode == 75
        events = list(launch.run.events())
    assert not [event.data for event in events if event.kind == "fault"], "no rank was replaced"
    (checkpoint,) = [event.data for event in events if event.kind == "checkpoint"]
    assert checkpoint["step"] in (7, 8)
    assert not any(processes.exists(pid) for pid in pids)
