"""A state that outgrows its slots: the old ones stay until the larger ones hold a commit, and not longer."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from holdfast.state import layout
from holdfast.supervisor.supervisor import Supervisor
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS, Command, Run, alive, assert_exact, kill_worker
from tests.waiting import wait_until

GROWING = JOBS / "growing.py"
SLOTS = 5
SETTINGS = {"snapshot.where": "memory", "snapshot.slots": str(SLOTS)}
LOOKS = 0.5
"""Seconds in which a supervisor looks at its worker several times."""


def holders(supervisor: Supervisor) -> list[int]:
    """How many slots each process that has them holds in memory: supervisor, keeper, worker."""
    worker = supervisor.worker
    return [slots_of(pid) for pid in (os.getpid(), supervisor.keeping.pid, worker.pid if worker else None)]


def slots_of(pid: int | None) -> int:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return len(set(re.findall(r" (\d+) +/memfd:holdfast-slot", maps)))


@pytest.mark.all
def test_kill_9_of_the_worker_in_the_middle_of_growing(drive: Drive, reference: Drive) -> None:
    """Larger slots are there and empty: what counts is in the old ones. And once more, right after the first commit."""

    def meanwhile(supervisor: Supervisor) -> None:
        folder, memory = supervisor.run_folder.path, supervisor.memory
        try:
            assert wait_until((folder / "growing").exists)
            time.sleep(LOOKS)
            old, new = memory.arenas
            assert new.capacity > old.capacity
            newest, empty = old.newest(), new.newest()
            assert newest is not None and newest.step == 9 and empty is None
            assert holders(supervisor) == [2 * SLOTS] * 3
            assert kill_worker(supervisor)
        finally:
            (folder / "go").touch()
        assert wait_until(lambda: supervisor.accounts.steps >= 12)
        assert memory.arenas == [new]
        assert wait_until(lambda: holders(supervisor) == [SLOTS] * 3), holders(supervisor)

    run = drive(GROWING, wait=True, pause=0.05, faults="sigkill@11:data", settings=SETTINGS, meanwhile=meanwhile)
    assert_exact(run, reference(GROWING), faults=2)
    assert [event.data["step"] for event in run.of("fault")] == [10, 11]


@pytest.mark.long
def test_kill_9_of_the_supervisor_in_the_middle_of_growing(tmp_path: Path, drive: Drive, reference: Drive) -> None:
    """The keeper has both, and saves what is whole."""
    with Command(tmp_path, "train", GROWING, "wait=true", "--device", "cpu") as command:
        command.wait_for_step(10)
        assert wait_until((command.folder / "growing").exists)
        command.note_family()
        command.process.kill()
        command.process.wait()
        assert wait_until(lambda: not alive(command.family)), alive(command.family)
    assert command.run().checkpoint().step == 9
    again = drive(GROWING, resume=command.folder)
    assert_exact(again, reference(GROWING), faults=0, stops=1)


@pytest.mark.all
def test_the_best_weights_wait_in_the_old_slots(drive: Drive, reference: Drive) -> None:
    """The keeper is busy on a slow disk while the best epoch ends and the state grows: what it will save stays.

    Not longer: then supervisor, keeper and the worker that grew let the old slots go, in the middle of the run.
    """

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.accounts.steps >= 5)
        keeper = supervisor.keeping.pid
        assert keeper is not None
        os.kill(keeper, signal.SIGSTOP)
        try:
            assert wait_until(lambda: supervisor.accounts.steps >= 12)
        finally:
            os.kill(keeper, signal.SIGCONT)
        assert wait_until(lambda: holders(supervisor) == [SLOTS] * 3), holders(supervisor)

    settings = {**SETTINGS, "checkpoint.every": "0.1s"}
    run = drive(GROWING, step=9, pause=0.1, settings=settings, meanwhile=meanwhile)
    undisturbed = reference(GROWING, step=9)
    assert_exact(run, undisturbed, faults=0)
    assert not run.of("not_saved"), run.story()
    assert best(run) == best(undisturbed)


def best(run: Run) -> bytes:
    """The best weights, without the header, which names the run."""
    data = (run.folder / "best.safetensors").read_bytes()
    return data[layout.parse_header(data)[1] :]
