"""A worker that no signal reaches, as in a driver's endless wait: the run goes on, or ends, without it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.run.folder import read_json
from holdfast.testing import FaultPlan
from tests.real_faults import unkillable
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS, Command, Run, alive, assert_exact
from tests.waiting import wait_until

if reason := unkillable.missing():
    pytest.skip(reason, allow_module_level=True)

GHOST = JOBS / "ghost.py"
SOON = ("watchdog.floor=0.5s", "watchdog.term_grace=0.2s", "watchdog.kill_grace=0.5s")
SET = """
import sys
import holdfast.supervisor.supervisor

owners = [module for name, module in sys.modules.items() if name.startswith("holdfast.") and hasattr(module, {0!r})]
assert owners, "nobody has a {0} any more"
for module in owners:
    module.{0} = {1}
"""
"""A `sitecustomize` that changes a constant wherever it lives."""


class Unkillable(Command):
    """`holdfast …` that can kill nobody. What it leaves behind is ended here, one process at a time."""

    def __init__(self, runs: Path, script: Path, *words: object, faults: str = "", **env: str) -> None:
        plan = runs / "faults.json"
        FaultPlan.parse(faults).write(plan)
        env = {**env, "HOLDFAST_CHAOS": str(plan)}
        super().__init__(runs, "train", script, *SOON, *words, env=env, preexec_fn=unkillable.hold_fire)
        self.workers: dict[int, int] = {}
        """Each with a descriptor that cannot come to mean another process."""

    def abandoned(self, count: int = 1) -> list[int]:
        """Wait until so many workers were given up; their pids."""
        assert wait_until(lambda: self._look() >= count or self.process.poll() is not None, 60.0)
        return [int(event.data["pid"]) for event in self.run().of("abandoned")]

    def worker(self, count: int) -> int:
        """Wait for the one that is the `count`-th; its pid."""
        assert wait_until(lambda: len(self.run().of("worker")) >= count)
        self._look()
        return int(self.run().of("worker")[count - 1].data["pid"])

    def _look(self) -> int:
        """Hold on to every worker there is; how many were given up."""
        run = self.run()
        for pid in {int(event.data["pid"]) for event in run.of("worker")} - set(self.workers):
            with contextlib.suppress(ProcessLookupError):
                self.workers[pid] = os.pidfd_open(pid)
        return len(run.of("abandoned"))

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        for pidfd in self.workers.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        assert wait_until(lambda: not alive(self.family)), alive(self.family)


@pytest.mark.long
def test_the_run_finishes_on_the_next_rung(tmp_path: Path, reference: Drive) -> None:
    """The one that was left behind wakes up, trains on and writes nonsense. Its slots are nobody's any more.

    That shows when the next worker is killed: its successor starts from the newest snapshot there is.
    """
    silent = "sentinel.enabled=never"  # it would end at its first word, before it had written anything
    words = (GHOST, "ghost=true", "pause=0.5", silent, "--device", "pretend:0", "--plain")
    with Unkillable(tmp_path, *words, faults="sigstop@5:backward") as command:
        command.wait_for_step(5)
        (first,) = command.abandoned()
        assert alive({first}) == {first}
        second = command.worker(2)
        signal.pidfd_send_signal(command.workers[first], signal.SIGCONT)
        assert wait_until(lambda: not alive({first})), "it trains on for ever, though nobody listens"
        assert command.process.poll() is None
        signal.pidfd_send_signal(command.workers[second], signal.SIGKILL)
        assert command.end() == 0, command.words()
        shown = command.words()
    run = command.run()
    assert len(take_out(run, generation=0, first=5)) == 3, "it did write"
    assert_exact(run, reference(GHOST), faults=2)
    assert (run.faults(), run.actions()) == (["hang", "killed"], ["next_rung", "replace"])
    assert [event.data["device"] for event in run.of("moved")] == ["cpu"]
    assert [event.data["pid"] for event in run.of("abandoned")] == [first]
    assert f" abandoned pid={first} " in shown
    assert "Traceback" not in shown, shown


def take_out(run: Run, *, generation: int, first: int) -> list[str]:
    """Take the steps that an abandoned worker did after `first` out of the book: they are not the run's."""
    path = run.folder / "witness.txt"
    lines = path.read_text().splitlines(keepends=True)
    found = [line for line in lines if int(line.split()[0]) == generation and int(line.split()[1]) > first]
    path.write_text("".join(line for line in lines if line not in found))
    return found


@pytest.mark.long
def test_a_wish_to_stop(tmp_path: Path, drive: Drive, reference: Drive) -> None:
    """In a step that takes its time: no hang yet, only nobody who would wait for its end."""
    slow = JOBS / "slow.py"
    (tmp_path / "sitecustomize.py").write_text(SET.format("STOP_PATIENCE", 1.0))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = (slow, "step=5", "step_s=100", "--device", "cpu", "watchdog.floor=100s")
    with Unkillable(tmp_path, *words, PYTHONPATH=path) as command:
        command.wait_for_step(4)
        assert wait_until(lambda: begun(command) == 5)
        command.signal(signal.SIGTERM)
        (pid,) = command.abandoned()
        assert alive({pid}) == {pid}
        assert command.end() == 75, command.words()
        shown = command.words()
    run = command.run()
    assert (run.outcome.state, run.outcome.exit_code) == ("STOPPED", 75), run.story()
    assert run.faults() == []
    assert run.checkpoint().step == 4
    (end,) = run.of("end")
    assert end.data["error"]["saved"] == f"step 4 in {run.checkpoint().path}"
    assert "Traceback" not in shown, shown
    assert_exact(drive(slow, resume=run.folder), reference(slow), faults=0, stops=1)


def begun(command: Command) -> int | None:
    """Steps begun, by the last beat."""
    return (read_json(command.folder / "beat.json") or {}).get("attempts")


# The keeper and the nursery ----------------------------------------------------------------------------------------

LEAVE = """
import os, signal, sys, time
from pathlib import Path
from holdfast.run.folder import RunFolder
from holdfast.supervisor.keeper_client import Keeping
from holdfast.supervisor.process_start import NurseryLauncher
from holdfast.state.slot_memory import Memory
from holdfast.base.scratch import Scratch
from holdfast.run.settings import Settings

if sys.argv[1] == "nursery":
    left = NurseryLauncher({}, [])
    pid, leave = left.pid, left.close
else:
    run, settings, scratch = RunFolder.create(Path("runs"), "job", {}), Settings.load(), Scratch.create()
    memory = Memory(run, settings, portable=False, say=print)
    left = Keeping(run, settings, memory, scratch, portable=False)
    left.start()
    pid, leave = left.pid, lambda: left.close(patience=0.1)
os.kill(pid, signal.SIGSTOP)
Path("new").write_text(str(pid))
Path("new").rename("pid")
leave()
"""
"""Starts one, as the supervisor does, and leaves it as the supervisor does. It is stopped: it hears nothing."""


@pytest.mark.all
def test_nobody_is_waited_for_for_ever(tmp_path: Path) -> None:
    """A keeper in a write to a dead network disk, a nursery in a driver: the supervisor leaves nevertheless."""
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(leaving(tmp_path / name, name)) for name in ("keeper", "nursery")]
        for process, pid in both:
            assert process.wait(100.0) == 0, process.args
            assert alive({pid}) == {pid}, "somebody could kill it after all"


@contextlib.contextmanager
def leaving(folder: Path, name: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Somebody who is about to leave, and the process that cannot be killed."""
    folder.mkdir()
    command = [sys.executable, unkillable.__file__, "--", sys.executable, "-c", LEAVE, name]
    with open(folder / "words.txt", "w") as words:  # a pipe would stay open: whoever is left behind has it too
        process = subprocess.Popen(command, cwd=folder, stdout=words, stderr=words)
    assert wait_until((folder / "pid").exists), (folder / "words.txt").read_text()
    pid = int((folder / "pid").read_text())
    pidfd = os.pidfd_open(pid)
    try:
        yield process, pid
    finally:
        process.kill()
        process.wait()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
