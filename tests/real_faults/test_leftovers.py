"""After runs that ended in every way: no process, no descriptor, no memory, no file outside of the run folder."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from holdfast.supervisor.process_start import NurseryLauncher
from holdfast.supervisor.supervisor import Supervisor
from tests.real_faults import driving
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS, SOON, Run, descendants, kill_worker
from tests.waiting import wait_until

ONCE = JOBS / "once.py"
ENDS: dict[str, tuple[str, Callable[[Drive], Run]]] = {
    "finished": ("FINISHED", lambda drive: drive()),
    "with loader children": ("FINISHED", lambda drive: drive(workers=2)),
    "killed": ("FINISHED", lambda drive: drive(faults="sigkill@3:data,segfault@9,exit@17", workers=2)),
    "loader killed": ("FINISHED", lambda drive: drive(faults="loader_kill@4,loader_kill@10", workers=2)),
    "hung": ("FINISHED", lambda drive: drive(faults="hang_gil@6,sigstop@12", workers=2, settings=SOON)),
    "out of memory": ("FINISHED", lambda drive: drive(faults="oom@3,oom_in_step@9")),
    "keeper killed": ("FINISHED", lambda drive: drive(faults="keeper_kill@5")),
    "in a file": ("FINISHED", lambda drive: drive(faults="sigkill@3", settings={"snapshot.memory": "1MiB"})),
    "moved": ("FINISHED", lambda drive: drive(faults="hang@6,segfault@6", device="pretend:0", settings=SOON)),
    "gave up": ("GAVE_UP", lambda drive: drive(faults="exit@3,exit@3,exit@3,exit@3")),
    "failed": ("FAILED", lambda drive: drive(JOBS / "poison.py", how="raise", workers=2)),
    "stopped": ("STOPPED", lambda drive: drive(pause=0.05, workers=2, meanwhile=stop(signal.SIGTERM))),
    "stopped at once": ("STOPPED", lambda drive: drive(pause=30, workers=2, meanwhile=stop(2, 2))),
    "killed from outside": ("FINISHED", lambda drive: drive(workers=2, epochs=10, meanwhile=kill_often)),
}


def stop(*signals: int) -> Callable[[Supervisor], None]:
    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.worker is not None and supervisor.worker.board.read().attempt >= 1)
        for number in signals:
            os.kill(os.getpid(), number)
            assert wait_until(lambda: supervisor._stopping is not None and not supervisor._signals)

    return meanwhile


def kill_often(supervisor: Supervisor) -> None:
    for _ in range(4):
        generation = supervisor.generation
        wait_until(lambda: supervisor.outcome is not None or supervisor._crisis is None, 5.0)
        kill_worker(supervisor)
        wait_until(lambda g=generation: supervisor.outcome is not None or supervisor.generation > g, 5.0)  # type: ignore[misc]


def belongings() -> set[str]:
    """What this process holds and has put anywhere."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        *(f"descriptor {number}" for number in range(len(os.listdir("/proc/self/fd")))),
        *(f"mapping {number}" for number in range(sum("memfd:holdfast" in line for line in maps))),
        *(f"child {pid}" for pid in descendants(os.getpid())),
        *(f"thread {thread.name}" for thread in threading.enumerate()),
        *(f"/dev/shm/{entry.name}" for entry in Path("/dev/shm").glob("*")),
        *(str(entry) for entry in Path(tempfile.gettempdir()).iterdir()),
    }


def assert_nothing_new(before: set[str], what: str) -> None:
    """Others may come and go in /dev/shm meanwhile, so one moment without anything new is enough."""
    assert wait_until(lambda: belongings() <= before, 100.0), (what, belongings() - before)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder that nobody else uses."""
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))  # short: addresses of sockets go there
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    folder.rmdir()  # it is empty


FEW = ("loader killed", "keeper killed", "failed", "stopped at once")
"""What `make test-all` looks at: one of each process, an error, and a run that is left."""


@pytest.mark.all
@pytest.mark.parametrize("names", [FEW, pytest.param(sorted({*ENDS} - {*FEW}), marks=pytest.mark.long)])
def test_nothing_is_left_behind(drive: Drive, temporary: Path, names: Iterable[str]) -> None:
    drive()  # whatever is made once, and kept, is made now
    before = belongings()
    for name in names:
        state, run_it = ENDS[name]
        run = run_it(drive)
        assert run.outcome.state == state, (name, run.story())
        assert not (run.folder / "slots").exists(), name
        assert not list(run.folder.glob("stacks-*")), name
        assert not list(run.folder.rglob("*.tmp")), name
        assert_nothing_new(before, name)


@pytest.mark.long
def test_nothing_is_left_behind_by_a_nursery_of_its_own(tmp_path: Path, temporary: Path) -> None:
    before = belongings()
    run = driving.drive(tmp_path, nursery=None, faults="sigkill@3", workers=2)
    assert run.outcome.state == "FINISHED", run.story()
    assert_nothing_new(before, "a nursery of its own")


def test_a_nursery_is_not_touched_by_the_runs_that_use_it(drive: Drive, nursery: NurseryLauncher) -> None:
    """It stays one thread without a descriptor of any run: that is what makes forking from it safe."""
    fds = Path(f"/proc/{nursery.pid}/fd")
    drive(faults="sigkill@3", workers=2)
    before = len([*fds.iterdir()])
    for _ in range(3):
        drive(faults="sigkill@3", workers=2)
    assert len([*fds.iterdir()]) == before
    assert len([*Path(f"/proc/{nursery.pid}/task").iterdir()]) == 1
