"""Who stands still is not always stuck: a keeper that is, is replaced; a run that was paused as a whole goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.supervisor import keeper_client
from holdfast.supervisor.supervisor import Supervisor
from holdfast.testing import FaultPlan
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOB, SOON, Command, alive, assert_exact
from tests.waiting import wait_until

# The keeper ------------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that takes a second is a stuck one; by default that is a minute, and more for a large state."""
    monkeypatch.setattr(keeper_client, "SLOWEST_SAVE", 1.0)


@contextlib.contextmanager
def stopped_keeper(supervisor: Supervisor) -> Iterator[int]:
    """It stands still, as in a write to a disk that does not answer; should nobody end it, that is done here."""
    pid = supervisor.keeping.pid
    assert pid is not None
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


@pytest.mark.usefixtures("impatient")
def test_a_stuck_keeper_is_replaced_and_checkpoints_go_on(drive: Drive, reference: Drive) -> None:
    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.accounts.steps >= 5)
        with stopped_keeper(supervisor) as pid:
            assert wait_until(lambda: not alive({pid})), "nobody minds"

    run = drive(pause=0.1, settings={"checkpoint.every": "0.1s"}, meanwhile=meanwhile)
    assert_exact(run, reference(), faults=1)
    assert run.faults() == ["keeper_died"]
    assert run.fault()["evidence"]["status"] == -signal.SIGKILL
    kinds = [event.kind for event in run.events if event.kind in ("fault", "checkpoint")]
    assert kinds[kinds.index("fault") :].count("checkpoint") >= 3, kinds
    assert run.of("checkpoint")[-1].data["step"] == 24


@pytest.mark.all
@pytest.mark.usefixtures("impatient")
def test_a_keeper_stuck_in_the_last_save_is_replaced(drive: Drive, reference: Drive) -> None:
    """Training is over, and its result is nowhere but in memory."""

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.accounts.steps >= 20)
        with stopped_keeper(supervisor) as pid:
            assert wait_until(lambda: not alive({pid})), "nobody minds"

    run = drive(pause=0.05, settings={"checkpoint.at_epochs": "false", "checkpoint.best": "none"}, meanwhile=meanwhile)
    assert_exact(run, reference(), faults=1)
    assert run.faults() == ["keeper_died"]
    assert [event.data["step"] for event in run.of("checkpoint")] == [24]


# Everything at once ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_pause_of_the_whole_run_is_no_hang(tmp_path: Path, reference: Drive) -> None:
    """A closed lid, a paused container: everybody stands still for many times the patience of the watchdog.

    The supervisor wakes up first, to a worker that is silent still. And a hang that comes after the pause is one.
    """
    FaultPlan.parse("hang@12:backward").write(tmp_path / "faults.json")
    env = {"HOLDFAST_CHAOS": str(tmp_path / "faults.json")}
    words = ("workers=2", "pause=0.05", "--device", "cpu", *(f"{key}={value}" for key, value in SOON.items()))
    with Command(tmp_path, "train", JOB, *words, env=env) as command:
        command.wait_for_step(5)
        family = sorted(command.note_family())
        assert len(family) >= 6  # supervisor, keeper, nursery, worker, two loader children
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        seen = command.step()
        time.sleep(2.0)
        assert command.step() == seen
        os.kill(command.process.pid, signal.SIGCONT)
        time.sleep(0.3)
        for pid in family:
            os.kill(pid, signal.SIGCONT)
        assert command.end() == 0, command.words()
        command.words()
    run = command.run()
    assert run.faults() == ["hang"], run.story()
    assert run.fault()["step"] == 12
    assert_exact(run, reference(), faults=1)
