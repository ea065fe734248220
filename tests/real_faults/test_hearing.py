"""What the supervisor hears of its worker: only a closed channel is one, and an exit that nobody saw is unknown."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import processes
from holdfast.record.reporter import Teller
from holdfast.run.messages import Exited, Message
from holdfast.state.slot_memory import Memory
from holdfast.supervisor.process_start import NurseryLauncher
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS

BEST = JOBS / "best.py"


def notes(run: Any) -> list[dict[str, Any]]:
    return [event.data for event in run.of("note") if "traceback" in event.data]


@pytest.mark.sample(2)
@pytest.mark.parametrize("error", [ValueError("a bug of ours"), OSError(5, "a bug of ours")])
def test_a_message_we_fail_over_is_our_own_fault(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is told with its traceback, once, and the run goes on: its end is heard, the other messages too."""

    def fail(self: Teller, step: int, epoch: int, values: dict[str, Any]) -> None:
        raise error

    monkeypatch.setattr(Teller, "log", fail)
    deaf: list[bool] = []
    run = drive(BEST, epochs=3, pause=0.02, meanwhile=lambda supervisor: _watch(supervisor, deaf))
    assert run.outcome.state == "FINISHED", run.story()
    (note,) = notes(run)
    assert "bug" in note["text"] and "`log`" in note["text"] and "in fail" in note["traceback"]
    assert [event.data["epoch"] for event in run.of("epoch")] == [0, 1, 2]
    assert run.receipt["faults"] == {}
    assert deaf and not any(deaf), "its end of the channel is open until the worker ends"


def _watch(supervisor: Any, deaf: list[bool]) -> None:
    """Until the worker is about to end."""
    while supervisor.outcome is None:
        worker = supervisor.worker
        if worker is not None and worker.pid and 0 < worker.board.read().step < 60:
            deaf.append(worker.deaf)
        time.sleep(0.01)


def test_a_worker_that_waits_for_an_answer_we_fail_over(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends, and says whose fault it is."""

    def fail(self: Memory, capacity: int) -> None:
        raise ValueError("a bug of ours")

    monkeypatch.setattr(Memory, "grow", fail)
    run = drive(BEST, epochs=1)
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 3), run.story()
    assert len(notes(run)) == 1


# -- how it ended --------------------------------------------------------------------------------------------


def slow_news(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The word about how a worker ended comes so much later, and the kernel has no pidfd."""
    monkeypatch.setattr(processes, "open_pidfd", lambda pid: None)
    hear, poll = NurseryLauncher._hear, NurseryLauncher.poll
    held: list[tuple[float, Message]] = []

    def hold(self: NurseryLauncher, message: Message | None) -> list[str]:
        if isinstance(message, Exited):
            held.append((time.monotonic(), message))
            return []
        return hear(self, message)

    def poll_late(self: NurseryLauncher) -> list[str]:
        notes = poll(self)
        while held and time.monotonic() - held[0][0] > seconds:
            notes += hear(self, held.pop(0)[1])
        return notes

    monkeypatch.setattr(NurseryLauncher, "_hear", hold)
    monkeypatch.setattr(NurseryLauncher, "poll", poll_late)


def test_an_exit_that_is_heard_of_late_is_read_as_what_it_was(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_news(monkeypatch, 1.0)
    run = drive(faults="segfault@5:forward")
    assert run.outcome.state == "FINISHED", run.story()
    assert run.receipt["faults"] == {"crash": 1}, run.story()


def test_an_exit_that_nobody_saw_is_unknown(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has waited for the nursery's child: the nursery is told ECHILD, and knows no more than that."""
    hear = NurseryLauncher._hear

    def unknown(self: NurseryLauncher, message: Message | None) -> list[str]:
        return hear(self, replace(message, code=None) if isinstance(message, Exited) else message)

    monkeypatch.setattr(NurseryLauncher, "_hear", unknown)
    monkeypatch.setattr(processes, "status_of_zombie", lambda pid: None)  # it is no zombie any more
    run = drive(faults="sigkill@5:forward")
    assert run.outcome.state == "FINISHED", run.story()
    (fault,) = run.of("fault")
    assert fault.data["kind"] == "exit" and "unknown" in fault.data["sentence"], run.story()
    assert "SIGKILL" not in str(fault.data)


def test_a_shell_that_ignores_its_children_hides_nothing(tmp_path: Path) -> None:
    """`trap '' CHLD`: the kernel keeps no exit status for a parent that says so, and we are that parent."""

    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    script = tmp_path / "dies.py"
    script.write_text("import os\nos._exit(7)\n")
    words = [sys.executable, "-m", "holdfast", "run", f"run.folder={tmp_path}", "--", sys.executable, str(script)]
    done = subprocess.run(words, preexec_fn=ignore, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 7, done.stderr
