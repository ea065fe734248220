"""Ctrl-C, SIGTERM, a closed terminal: saved, the promised exit code, and a run that goes on where it was."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from holdfast.supervisor.supervisor import Supervisor
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOB, SOON, Command, Run, Terminal, alive, assert_exact
from tests.waiting import wait_until

ENDLESS = 60.0
"""Seconds a step takes that no test waits for."""


def assert_saved(command: Command, code: int, *, at_least: int) -> Run:
    """It ended with that code, left no process, and its last committed step is on disk."""
    assert command.end() == code, command.words()
    assert wait_until(lambda: not alive(command.family)), alive(command.family)
    run = command.run()
    assert (run.outcome.state, run.outcome.exit_code) == ("STOPPED", code)
    good = run.checkpoint()
    assert good.step >= at_least
    assert run.of("end")[0].data["step"] == good.step
    assert not (run.folder / "slots").exists()
    return run


# As typed, killed or closed, from outside of a real process -------------------------------------------------------


def test_ctrl_c_once_saves_and_can_be_resumed(tmp_path: Path, drive: Drive, reference: Drive) -> None:
    with Terminal(tmp_path, "train", JOB, "workers=2", "pause=0.1", "--device", "cpu") as command:
        command.wait_for_step(5)
        command.type(b"\x03")
        run = assert_saved(command, 130, at_least=4)
        words = command.words()
    assert "again" in words, words  # what a second one would do
    assert "holdfast resume" in words and run.folder.name in words
    again = drive(resume=run.folder)
    assert_exact(again, reference(), faults=0, stops=1)


@pytest.mark.long
def test_ctrl_c_twice_stops_at_once_and_names_the_verified_checkpoint(
    tmp_path: Path, drive: Drive, reference: Drive
) -> None:
    words = ("checkpoint.every=0.1s", "pause=1", "--device", "cpu")
    with Terminal(tmp_path, "train", JOB, *words) as command:
        command.wait_for_step(3)
        assert wait_until(lambda: any((command.folder / "checkpoints").glob("0*")))
        command.type(b"\x03")
        assert wait_until(lambda: bool(command.run().of("stopping")))
        command.type(b"\x03")
        assert command.end() == 130
        shown = command.words()
    assert wait_until(lambda: not alive(command.family)), alive(command.family)
    run = command.run()
    assert (run.outcome.state, run.outcome.exit_code) == ("STOPPED", 130)
    (end,) = run.of("end")
    good = run.checkpoint()
    assert end.data["error"]["saved"] == f"step {good.step} in {good.path} (verified)"
    assert f"{good.step:06d}" in shown
    again = drive(resume=run.folder)
    assert again.outcome.state == "FINISHED", again.story()
    assert again.state() == reference().state()


@pytest.mark.long
def test_sigterm_saves_and_asks_to_be_resumed(tmp_path: Path, drive: Drive, reference: Drive) -> None:
    with Command(tmp_path, "train", JOB, "workers=2", "pause=0.1", "--device", "cpu", "--json") as command:
        command.wait_for_step(5)
        command.signal(signal.SIGTERM)
        run = assert_saved(command, 75, at_least=4)
        out, _ = command.process.communicate()
    said = json.loads(out)
    assert (said["state"], said["exit_code"]) == ("STOPPED", 75)
    assert said["error"]["saved"] == f"step {run.checkpoint().step} in {run.checkpoint().path}"
    assert_exact(drive(resume=run.folder), reference(), faults=0, stops=1)


@pytest.mark.long
def test_a_closed_terminal_saves_and_asks_to_be_resumed(tmp_path: Path, drive: Drive, reference: Drive) -> None:
    """The kernel sends SIGHUP, and from then on every word to the terminal is an error."""
    with Terminal(tmp_path, "train", JOB, "pause=0.1", "--device", "cpu") as command:
        command.wait_for_step(5)
        command.close()
        run = assert_saved(command, 75, at_least=4)
    assert_exact(drive(resume=run.folder), reference(), faults=0, stops=1)


# To a supervisor in this process: the same signals, at moments that are hard to meet from outside ------------------


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def in_step(supervisor: Supervisor, step: int) -> bool:
    worker = supervisor.worker
    try:
        return worker is not None and worker.board.read().attempt >= step
    except ValueError:  # closed between the two
        return False


def after_step(step: int, *signals: int):  # type: ignore[no-untyped-def]
    """Sends the first signal in that step, and each other one when the one before it was heard."""

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: in_step(supervisor, step))
        for number in signals:
            send(number)
            assert wait_until(lambda: supervisor._stopping is not None and not supervisor._signals)

    return meanwhile


@pytest.mark.sample(2)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_does_not_wait_for_the_step(drive: Drive, number: int, code: int) -> None:
    run = drive(pause=ENDLESS, meanwhile=after_step(1, number, number))
    assert (run.outcome.state, run.outcome.exit_code) == ("STOPPED", code), run.story()
    assert run.outcome.error.saved == "nothing was saved yet"


def test_a_closing_terminal_may_say_so_twice(drive: Drive, reference: Drive) -> None:
    """The kernel and the shell both do. That is one wish to stop, not two."""
    run = drive(pause=0.3, meanwhile=after_step(5, signal.SIGHUP, signal.SIGHUP))
    assert (run.outcome.state, run.outcome.exit_code) == ("STOPPED", 75), run.story()
    assert run.checkpoint().step == 5  # the step in flight was waited for
    assert_exact(drive(resume=run.folder), reference(), faults=0, stops=1)


def test_a_wish_to_stop_during_a_hang(drive: Drive, reference: Drive) -> None:
    """There is no next commit to wait for: the watchdog ends the step, and what was committed is saved."""
    run = drive(faults="hang@5", settings=SOON, meanwhile=after_step(5, signal.SIGTERM))
    assert (run.outcome.state, run.outcome.exit_code) == ("STOPPED", 75), run.story()
    assert run.checkpoint().step == 4
    assert_exact(drive(resume=run.folder), reference(), faults=1, stops=1)


def test_a_wish_to_stop_while_a_worker_is_being_replaced(drive: Drive, reference: Drive) -> None:
    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor._crisis is not None)
        send(signal.SIGTERM)

    run = drive(faults="sigkill@5", meanwhile=meanwhile)
    assert (run.outcome.state, run.outcome.exit_code) == ("STOPPED", 75), run.story()
    assert run.checkpoint().step >= 4
    assert_exact(drive(resume=run.folder), reference(), faults=1, stops=1)


@pytest.mark.all
def test_a_wish_to_stop_before_the_first_worker(tmp_path: Path) -> None:
    """torch is still being imported, which takes seconds; nobody has to wait for it."""
    with Command(tmp_path, "train", JOB, "--device", "cpu") as command:
        assert wait_until(lambda: len(command.note_family()) >= 3, 60.0)  # the keeper and the nursery are there
        command.signal(signal.SIGINT)
        assert command.end(timeout=100.0) == 130, command.words()
        assert not (command.folder / "witness.txt").exists()
    assert wait_until(lambda: not alive(command.family)), alive(command.family)
    assert command.run().outcome.state == "STOPPED"


def test_a_stuck_keeper_does_not_keep_a_second_ctrl_c_waiting(drive: Drive) -> None:
    """The last save hangs (a dead network disk does that): the second signal ends the run without it."""

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: in_step(supervisor, 5))
        assert supervisor.keeping.pid is not None
        os.kill(supervisor.keeping.pid, signal.SIGSTOP)
        send(signal.SIGINT)
        try:
            assert wait_until(lambda: supervisor.worker is None)
            send(signal.SIGINT)
            assert wait_until(lambda: supervisor.outcome is not None)
        finally:
            os.kill(supervisor.keeping.pid, signal.SIGKILL)

    run = drive(pause=0.05, meanwhile=meanwhile)
    assert (run.outcome.state, run.outcome.exit_code) == ("STOPPED", 130), run.story()
