"""The processes around the worker are killed: nursery, keeper, supervisor. The run goes on, or can be resumed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.base.errors import InternalError
from holdfast.state import checkpoint
from holdfast.supervisor import rescue_folder, workers
from holdfast.supervisor.process_start import NurseryLauncher
from holdfast.supervisor.supervisor import Supervisor
from tests import warm
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOB, JOBS, Command, alive, assert_exact, drive
from tests.waiting import wait_until


def test_keeper_killed(drive: Drive, reference: Drive) -> None:
    """In the middle of a run that saves all the time, twice, and just before the last save of all."""
    faults = "keeper_kill@4,sigkill@8,keeper_kill@12:data,keeper_kill@24:snapshot"
    run = drive(faults=faults, settings={"checkpoint.every": "0.05s"}, pause=0.02)
    assert_exact(run, reference(), faults=4)
    assert run.faults().count("keeper_died") == 3
    assert run.of("checkpoint")[-1].data["step"] == 24
    assert not list((run.folder / "checkpoints").glob(".*")), "half of a checkpoint was left"


@pytest.mark.long
def test_nursery_killed(tmp_path: Path, reference: Drive) -> None:
    """The kernel ends its worker with it; a new nursery imports torch, and a new worker goes on."""
    run = drive(tmp_path, nursery=None, faults="nursery_kill@5")
    assert_exact(run, reference(), faults=1)
    assert run.faults() == ["nursery_died"]


@pytest.mark.long
def test_nursery_killed_while_another_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Drive) -> None:
    """A second nursery was forked from the first as soon as the run began: the next worker comes from there. It is not
    left behind when the run is over."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the job imports from tests
    waited: list[int | None] = []

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.workers.spare is not None and supervisor.accounts.steps >= 2, 250.0)
        spare, nursery = supervisor.workers.spare, supervisor.workers.launcher
        assert spare is not None and nursery is not None and nursery.pid is not None
        assert spare.forked
        waited.append(spare.pid)
        os.kill(nursery.pid, signal.SIGKILL)
        assert wait_until(lambda: supervisor.workers.launcher is spare, 100.0)
        (supervisor.run_folder.path / "go-on").touch()

    job, settings = JOBS / "opinion.py", {"watchdog.loop": "10m"}
    run = drive(tmp_path, job, nursery=None, settings=settings, holds="go-on", meanwhile=meanwhile)
    assert run.outcome.state == "FINISHED" and waited, run.story()
    assert run.faults() == ["nursery_died"]
    assert all(pid is not None and processes.wait_for_end(pid, 100.0) for pid in waited)
    assert run.receipt["weights_sha256"] == reference(job).receipt["weights_sha256"]


@pytest.mark.long
def test_nursery_killed_while_one_that_imported_torch_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Drive
) -> None:
    """Where the first nursery cannot fork another, the second imports torch once the run is long enough for that."""
    monkeypatch.setattr(workers, "SPARE_SHARE", {True: 1e6, False: 1e6})
    monkeypatch.setattr(NurseryLauncher, "second", _closed_at_once)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the job imports from tests

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.workers.spare is not None and supervisor.accounts.steps >= 2, 250.0)
        spare, nursery = supervisor.workers.spare, supervisor.workers.launcher
        assert spare is not None and not spare.forked and nursery is not None and nursery.pid is not None
        os.kill(nursery.pid, signal.SIGKILL)
        assert wait_until(lambda: supervisor.workers.launcher is spare, 100.0)
        (supervisor.run_folder.path / "go-on").touch()

    job, settings = JOBS / "opinion.py", {"watchdog.loop": "10m"}
    run = drive(tmp_path, job, nursery=None, settings=settings, holds="go-on", meanwhile=meanwhile)
    assert run.outcome.state == "FINISHED" and run.faults() == ["nursery_died"], run.story()
    assert run.receipt["weights_sha256"] == reference(job).receipt["weights_sha256"]


def _closed_at_once(nursery: NurseryLauncher) -> NurseryLauncher:
    """What a nursery that must not fork leaves of a second one."""
    made = NurseryLauncher(nursery.env, [], of=_Deaf())  # type: ignore[arg-type]
    return made


class _Deaf:
    """Takes a message and does nothing with the channel that comes with it."""

    @property
    def channel(self) -> _Deaf:
        return self

    def send(self, message: object, fds: object) -> None: ...


@pytest.mark.long
def test_nursery_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Drive) -> None:
    """It hangs in a module of the script that it imports ahead; the worker that is to be replaced cannot wait."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "never_ends.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.setenv("PYTHONPATH", str(library))
    settings = {"watchdog.first_step": "3s"}
    run = drive(tmp_path, nursery=None, faults="sigkill@5", preload=["never_ends"], settings=settings)
    assert_exact(run, reference(), faults=2)
    assert run.faults() == ["killed", "nursery_died"]
    assert "did not answer for" in run.fault(2)["message"]


@pytest.mark.long
def test_nursery_unfit_to_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Drive) -> None:
    """A library started a thread in it, as some do at import. Then workers are spawned: slower, and as exact."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(library))
    run = drive(tmp_path, nursery=None, faults="sigkill@5")
    assert_exact(run, reference(), faults=1)
    assert [note.data["text"] for note in run.of("note")] == [
        "workers are spawned instead of forked: 2 threads are running"
    ]


def test_supervisor_killed_and_resumed(tmp_path: Path, reference: Drive) -> None:
    """No orphan is left, and the keeper's last act was to save: no committed step is lost."""
    temporary = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    env = {"TMPDIR": str(temporary)}
    with Command(tmp_path, "train", JOB, "workers=2", "pause=0.1", "--device", "cpu", env=env) as command:
        command.wait_for_step(6)
        assert len(command.note_family()) >= 6  # supervisor, keeper, nursery, worker, two loader children
        command.process.kill()
        command.process.wait()
        seen = command.step()
        assert wait_until(lambda: not alive(command.family)), alive(command.family)
    left = [entry.name for entry in temporary.iterdir()]
    assert all(name.startswith("torchinductor") for name in left), left  # torch's own cache, one for each user
    shutil.rmtree(temporary)
    run = command.run()
    assert not (run.folder / "slots").exists()
    assert run.outcome.state == "RUNNING"  # nobody was there to write it down
    assert seen - 1 <= run.checkpoint().step <= seen + 1
    again = warm.holdfast("resume", str(command.folder), "--json", cwd=tmp_path)
    assert again.code == 0, again.err
    run = command.run()
    assert run.outcome.state == "FINISHED"
    assert run.receipt["faults"] == {"supervisor_died": 1}
    assert_exact(run, reference(), faults=1)


@pytest.mark.long
def test_the_time_since_a_supervisor_died_ends_with_the_first_commit(tmp_path: Path) -> None:
    """Also where snapshots are fewer than steps: they are counted anew after a resume."""
    with Command(tmp_path, "train", JOB, "pause=0.05", "snapshot.every=4", "--device", "cpu") as command:
        command.wait_for_step(12)
        command.note_family()  # its keeper saves after it
        command.process.kill()
        command.process.wait()
        assert wait_until(lambda: not alive(command.family)), alive(command.family)
    saved = command.run().checkpoint().step
    with Command(tmp_path, "resume", command.folder, "--json") as again:
        assert again.end() == 0, again.words()
    (recovered,) = again.run().of("recovered")
    assert saved < recovered.data["step"] <= saved + 8 and again.run().receipt["recoveries"] == 1


# The kernel's own kill for memory ----------------------------------------------------------------------------------


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A memory cgroup of our own below the one we are in, or a skip that says why not."""
    folder = _own_group()
    if folder is None:
        pytest.skip("no memory cgroup is mounted here")
    group = folder / f"holdfast-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes")
        limit.write_text(str(3 << 30))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"a memory cgroup cannot be made: {error}")
    yield group
    assert wait_until(lambda: not (group / "cgroup.procs").read_text().strip())
    group.rmdir()


def _own_group() -> Path | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup") / ("memory" if "memory" in controllers.split(",") else "")
        folder = root / path.lstrip("/")
        if any((folder / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
            return folder
    return None


@pytest.mark.long
def test_killed_by_the_kernel_for_memory(tmp_path: Path, memory_group: Path, reference: Drive) -> None:
    """Told from any other SIGKILL by the kernel's own count."""

    def enter() -> None:
        (memory_group / "cgroup.procs").write_text(str(os.getpid()))

    with Command(
        tmp_path, "train", JOBS / "host.py", "how=cgroup", "--device", "cpu", "--json", preexec_fn=enter
    ) as command:
        command.words()
        assert command.end(100.0) == 0
    run = command.run()
    assert run.faults() == ["host_memory"], run.story()
    assert run.fault()["evidence"]["signal"] == "SIGKILL"
    assert run.fault()["evidence"]["oom_kills"] >= 1
    kernel = json.loads((run.evidence() / "kernel.json").read_text())
    if kernel["read_from"]:  # where the log may be read it says so too, and the README on top
        assert "oom-kill-group" in {entry["id"] for entry in kernel["entries"]}
        assert "reached its memory limit" in (run.evidence() / "README.txt").read_text().splitlines()[0]
    counted = json.loads((run.evidence() / "counters.json").read_text())
    assert counted["rose"]["memory.oom_kill"] >= 1
    assert_exact(run, reference(), faults=1)


def test_a_killed_worker_takes_its_children_with_it(drive: Drive) -> None:
    """Even those that asked for nothing of the kind: the whole group is killed before a new worker starts."""
    script = JOBS / "children.py"
    run = drive(script, faults="sigkill@5")
    assert run.outcome.state == "FINISHED", run.story()
    pids = {int(line) for line in (run.folder / "children.txt").read_text().split()}
    assert len(pids) == 2
    assert wait_until(lambda: not alive(pids)), pids


@pytest.mark.all
def test_a_keeper_that_dies_now_and_then_is_replaced_for_ever(drive: Drive, reference: Drive) -> None:
    """What counts is how often in a row: a save that worked begins the count anew."""
    faults = ",".join(f"keeper_kill@{step}" for step in (3, 11, 19))  # a new one has seconds to save in, not tenths
    settings = {"checkpoint.every": "0.05s", "retry.without_progress": "2"}
    run = drive(faults=faults, settings=settings, pause=0.3)
    assert_exact(run, reference(), faults=3)


def test_a_result_that_cannot_be_saved_is_not_called_finished(
    drive: Drive, reference: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in its folder nor anywhere else."""
    monkeypatch.setattr(rescue_folder, "bases", lambda: iter(()))

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.accounts.steps >= 5)
        folder = supervisor.run_folder.path / "checkpoints"
        folder.rename(folder.with_name("moved"))
        folder.write_text("a file, and no folder")
        folder.with_name("final.safetensors").mkdir()

    run = drive(pause=0.02, meanwhile=meanwhile)
    assert (run.outcome.state, run.outcome.exit_code) == ("GAVE_UP", 4), run.story()
    assert run.outcome.error.message == "training is over, but its result could not be saved"
    assert run.outcome.error.cause == "Is a directory"
    assert run.of("not_saved")
    (run.folder / "checkpoints").unlink()
    (run.folder / "final.safetensors").rmdir()
    (run.folder / "moved").rename(run.folder / "checkpoints")
    again = drive(resume=run.folder)
    assert again.outcome.state == "FINISHED"
    assert again.state() == reference().state()


def test_a_result_without_its_last_checkpoint_is_still_a_result(drive: Drive, reference: Drive) -> None:
    """The weights are smaller than the state, and they are what the run was for."""

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.accounts.steps >= 5)
        folder = supervisor.run_folder.path / "checkpoints"
        folder.rename(folder.with_name("moved"))
        folder.write_text("a file, and no folder")

    run = drive(pause=0.02, meanwhile=meanwhile)
    assert run.outcome.state == "FINISHED", run.story()
    assert run.receipt["weights_sha256"] == reference().receipt["weights_sha256"]
    assert [event.data["text"] for event in run.of("not_saved")] == ["checkpoints is a file, not a folder"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), InternalError("a bug")])
def test_a_supervisor_that_fails_loses_no_step(drive: Drive, reference: Drive, error: Exception) -> None:
    """What is in memory is saved, whatever went wrong in the process that owns it."""
    seen: list[Supervisor] = []

    def meanwhile(supervisor: Supervisor) -> None:
        seen.append(supervisor)

        def fail(*_: object) -> None:
            raise error

        assert wait_until(lambda: supervisor.accounts.steps >= 5)
        supervisor.teller.beat = fail  # type: ignore[method-assign]
        supervisor._last_beat = 0.0

    with contextlib.suppress(OSError):
        assert drive(pause=0.05, meanwhile=meanwhile).outcome.exit_code == 3
    folder = seen[0].run_folder.path
    good, _ = checkpoint.newest_good(folder / "checkpoints")
    assert good is not None and good.step >= seen[0].accounts.steps
    assert drive(resume=folder).state() == reference().state()


@pytest.mark.long
def test_nursery_killed_while_a_hung_worker_is_ended(tmp_path: Path, reference: Drive) -> None:
    """The worker does not heed SIGTERM, and before its time is up the nursery is gone that was to fork the next."""

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.accounts.steps >= 5)
        worker, launcher = supervisor.worker, supervisor.workers.launcher
        assert worker is not None and launcher is not None and launcher.pid is not None
        status = Path(f"/proc/{worker.pid}/status")
        os.kill(worker.pid, signal.SIGSTOP)
        assert wait_until(lambda: _pends(status, signal.SIGTERM))
        os.kill(launcher.pid, signal.SIGKILL)

    settings = {"watchdog.floor": "1s", "watchdog.loop": "1s", "watchdog.term_grace": "3s", "run.stacks": False}
    run = drive(tmp_path, nursery=None, pause=0.05, meanwhile=meanwhile, settings=settings)
    assert_exact(run, reference(), faults=1)
    assert run.faults() == ["hang"]


def _pends(status: Path, number: int) -> bool:
    """Sent to the process, and not taken yet."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("ShdPnd:"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
