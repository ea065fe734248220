"""The same faults as macOS and Windows would see them: spawned workers, plain files, loopback; no fork, no pidfd."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.supervisor.supervisor import Supervisor
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOB, SOON, Command, alive, assert_exact, drive
from tests.waiting import wait_until


@pytest.mark.long
@pytest.mark.timeout(300)  # each worker is a fresh interpreter that imports torch
def test_kill_hang_memory_and_ctrl_c(tmp_path: Path, reference: Drive) -> None:
    wanted = reference()
    portable = {"run.portable": "true"}

    def interrupt(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.accounts.steps >= 12, 200.0)
        assert list((supervisor.run_folder.path / "slots").glob("slot-*"))  # plain files, by name
        os.kill(os.getpid(), signal.SIGINT)

    run = drive(
        tmp_path, nursery=None, faults="sigkill@5,oom_in_step@9", pause=0.1, meanwhile=interrupt, settings=portable
    )
    assert (run.outcome.state, run.outcome.exit_code) == ("STOPPED", 130), run.story()
    assert run.faults() == ["killed", "out_of_memory"]
    assert run.checkpoint().step >= 12
    assert not (run.folder / "slots").exists()
    again = drive(tmp_path, nursery=None, resume=run.folder, faults="hang@19", settings={**SOON, **portable})
    assert_exact(again, wanted, faults=3, stops=1)
    assert again.faults() == ["hang"]
    assert "_hang" in (again.evidence(3) / "stacks-python.txt").read_text()


@pytest.mark.long
def test_supervisor_killed(tmp_path: Path, drive: Drive, reference: Drive) -> None:
    """No worker is left, the keeper saves and keeps the lock meanwhile, and the slots are removed."""
    env = {"HOLDFAST_PORTABLE": "1"}
    with Command(tmp_path, "train", JOB, "pause=0.2", "--device", "cpu", env=env) as command:
        command.wait_for_step(4)
        command.note_family()
        command.process.kill()
        command.process.wait()
        again = drive(resume=command.folder)  # waits for the keeper's lock
        assert wait_until(lambda: not alive(command.family)), alive(command.family)
    assert again.outcome.state == "FINISHED", again.story()
    assert again.state() == reference().state()
    assert again.receipt["steps_lost"] == 0
    assert not (command.folder / "slots").exists()
