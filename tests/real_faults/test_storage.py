"""Disks that are full, read-only or gone while a run is under way: it goes on in memory, says so once, and comes back.

Real mounts, real runs. Where mounting is not permitted, those tests are skipped; folders can be moved anywhere.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.record import audit
from holdfast.run.folder import RunFolder
from holdfast.state import checkpoint
from holdfast.supervisor.supervisor import Supervisor
from tests.disks import fill, make_room, read_only, small_disk
from tests.real_faults import driving
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS, Command, Run, kill_worker, read_run
from tests.waiting import wait_until

JOB = JOBS / "talkative.py"
OFTEN = {"checkpoint.every": "0.2s"}
STEPS = 48


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a rescue goes."""
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    return path


@pytest.fixture
def wanted(reference: Drive) -> str:
    """The weights of an undisturbed run."""
    return str(reference(JOB, pause=0.0).receipt["weights_sha256"])


def saved_steps(run: Run) -> list[int]:
    return [int(event.data["step"]) for event in run.of("checkpoint")]


def told(run: Run) -> list[str]:
    """What was said about the disk, in order."""
    return [event.kind for event in run.events if event.kind in ("not_saved", "saved_again", "rescued")]


def assert_whole(run: Run, wanted: str) -> None:
    """Finished with the right weights, and nothing is missing in any of its records."""
    assert run.outcome.state == "FINISHED", run.story()
    assert run.receipt["weights_sha256"] == wanted, run.story()
    assert (run.receipt["steps"], run.receipt["steps_lost"]) == (STEPS, 0)
    folder = RunFolder(run.folder)
    assert [event.kind for event in folder.events()] == [event.kind for event in run.events], "the journal is complete"
    assert [record["epoch"] for record in folder.metrics()] == [0, 1, 2, 3, 4, 5]
    found = audit.look(run.folder)
    assert not found.damaged and not found.leftovers, found


def delete(path: Path) -> None:
    """All of it, although the keeper makes and removes folders in it meanwhile."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


def disturbed(
    begin: Callable[[Path], object], end: Callable[[Path], object], *, steps: int = 12
) -> Callable[[Supervisor], None]:
    """From a checkpoint on for some steps: `begin`, then `end`, each with the run folder."""

    def meanwhile(supervisor: Supervisor) -> None:
        path = supervisor.run_folder.path
        assert wait_until(lambda: bool(supervisor.keeping.saved), 60)
        begin(path)
        since = supervisor.accounts.steps
        assert wait_until(lambda: supervisor.accounts.steps >= since + steps, 60), "training does not wait"
        end(path)

    return meanwhile


# A full disk ------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_survived_in_memory_and_left_behind(
    tmp_path: Path, nursery: driving.NurseryLauncher, wanted: str
) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        meanwhile = disturbed(lambda _: fill(disk), lambda _: make_room(disk))
        run = driving.drive(disk, JOB, nursery=nursery, settings=OFTEN, meanwhile=meanwhile)
        assert told(run) == ["not_saved", "saved_again"], run.story()
        warning = run.of("not_saved")[0].data
        assert warning["text"] == "No space left on device"
        assert warning["step"] in saved_steps(run) or warning["step"] is None
        steps = saved_steps(run)
        gap = max(later - earlier for earlier, later in itertools.pairwise(steps))
        assert gap >= 12, "no checkpoint was written while there was no room"
        assert steps[-1] == STEPS
        assert_whole(run, wanted)
        assert (run.folder / "best.safetensors").exists()


@pytest.mark.all
def test_a_disk_that_stays_full_and_the_run_is_rescued(
    tmp_path: Path, nursery: driving.NurseryLauncher, temporary: Path, wanted: str
) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        meanwhile = disturbed(lambda _: fill(disk), lambda _: None)
        run = driving.drive(disk, JOB, nursery=nursery, settings=OFTEN, meanwhile=meanwhile)
        folder = rescued(temporary)
        assert (run.outcome.state, run.outcome.exit_code) == ("GAVE_UP", 4), run.story()
        assert told(run)[0] == "not_saved" and told(run).count("not_saved") == 1 and "rescued" in told(run)
        error = run.outcome.error
        assert error is not None
        assert error.message.startswith("training is over, but its result could not be saved in ")
        assert error.cause == "No space left on device"
        assert error.saved == f"step {STEPS} in {folder / 'checkpoints' / f'{STEPS:06d}'}"
        assert error.hints[0] == f"the weights are in {folder / 'final.safetensors'}"
        assert f"holdfast resume {folder}" in error.hints[-1]
        before = next(path for path in disk.iterdir() if path.is_dir())
        assert audit.look(before).usable is not None, "what was saved before is still good"
    assert not audit.look(folder).damaged
    assert [record["epoch"] for record in RunFolder(folder).metrics()] == [0, 1, 2, 3, 4, 5]
    again = driving.drive(tmp_path, JOB, nursery=nursery, resume=folder)
    assert again.outcome.state == "FINISHED" and again.receipt["weights_sha256"] == wanted


def rescued(temporary: Path) -> Path:
    found = list(temporary.glob("holdfast-rescue-*/*"))
    assert len(found) == 1, found
    assert found[0].stat().st_mode & 0o777 == 0o700
    return found[0]


# Read-only, moved away, deleted -------------------------------------------------------------------------------------


@pytest.mark.all
def test_a_folder_that_turns_read_only_and_back(drive: Drive, wanted: str) -> None:
    with contextlib.ExitStack() as mounts:
        meanwhile = disturbed(lambda path: mounts.enter_context(read_only(path)), lambda _: mounts.close())
        run = drive(JOB, settings=OFTEN, meanwhile=meanwhile)
    assert told(run) == ["not_saved", "saved_again"], run.story()
    assert run.of("not_saved")[0].data["text"] == "Read-only file system"
    assert_whole(run, wanted)


@pytest.mark.all
def test_a_folder_that_is_moved_away_and_comes_back(drive: Drive, wanted: str) -> None:
    def end(path: Path) -> None:
        assert not path.exists(), "nothing was put in its place"
        path.with_name("away").rename(path)

    run = drive(JOB, settings=OFTEN, meanwhile=disturbed(lambda path: path.rename(path.with_name("away")), end))
    assert told(run) == ["not_saved", "saved_again"], run.story()
    assert run.of("not_saved")[0].data["text"] == "the run folder is gone"
    assert_whole(run, wanted)


@pytest.mark.all
def test_a_worker_that_dies_while_the_folder_is_gone(drive: Drive, wanted: str) -> None:
    """The new one has no file to print to; it trains all the same."""

    def meanwhile(supervisor: Supervisor) -> None:
        path = supervisor.run_folder.path
        assert wait_until(lambda: bool(supervisor.keeping.saved), 60)
        path.rename(path.with_name("away"))
        assert wait_until(lambda: kill_worker(supervisor), 100)
        assert wait_until(lambda: supervisor.accounts.recoveries == 1, 60), "it trains again"
        path.with_name("away").rename(path)

    run = drive(JOB, settings=OFTEN, meanwhile=meanwhile)
    assert run.faults() == ["killed"]
    assert_whole(run, wanted)


@pytest.mark.all
def test_a_folder_that_is_deleted_and_the_run_is_rescued(
    drive: Drive, nursery: driving.NurseryLauncher, temporary: Path, wanted: str, tmp_path: Path
) -> None:
    run = drive(JOB, settings=OFTEN, meanwhile=disturbed(delete, lambda path: None))
    assert (run.outcome.state, run.outcome.exit_code) == ("GAVE_UP", 4), run.story()
    error = run.outcome.error
    assert error is not None and error.cause == "the run folder is gone"
    folder = rescued(temporary)
    assert run.folder == folder, "whoever asks for the run is led there"
    journal = [event.kind for event in RunFolder(folder).events()]
    assert journal == [event.kind for event in run.events], "even what the deleted journal held"
    assert not audit.look(folder).damaged
    again = driving.drive(tmp_path, JOB, nursery=nursery, resume=folder)
    assert again.outcome.state == "FINISHED" and again.receipt["weights_sha256"] == wanted


@pytest.mark.all
def test_a_folder_that_is_deleted_and_made_anew_is_filled_again(drive: Drive, wanted: str) -> None:
    run = drive(JOB, settings=OFTEN, meanwhile=disturbed(delete, lambda path: path.mkdir()))
    assert run.outcome.state == "FINISHED", run.story()
    assert run.receipt["weights_sha256"] == wanted
    assert told(run) == ["not_saved", "saved_again"], run.story()
    found = audit.look(run.folder)
    assert not found.damaged, found
    assert RunFolder(run.folder).info["state"] == "FINISHED"


@pytest.mark.all
def test_a_stop_that_cannot_be_saved_is_rescued_and_not_called_one(
    drive: Drive, nursery: driving.NurseryLauncher, temporary: Path, wanted: str, tmp_path: Path
) -> None:
    run = drive(JOB, settings=OFTEN, meanwhile=disturbed(delete, lambda _: os.kill(os.getpid(), signal.SIGTERM)))
    assert (run.outcome.state, run.outcome.exit_code) == ("GAVE_UP", 4), run.story()
    error = run.outcome.error
    assert error is not None and "but that could not be saved in" in error.message
    again = driving.drive(tmp_path, JOB, nursery=nursery, resume=rescued(temporary))
    assert again.outcome.state == "FINISHED"
    assert again.receipt["weights_sha256"] == wanted


# The command --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(300)
def test_holdfast_train_on_a_disk_that_fills_up_and_is_cleared(tmp_path: Path, wanted: str) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        words = ("train", JOB, "pause=0.1", "checkpoint.every=0.5s")
        with Command(disk, *words, env={"PYTHONPATH": os.pathsep.join(driving_path())}) as command:
            assert wait_until(lambda: any(disk.glob("*/checkpoints/0*")), 100), "the first checkpoint"
            fill(disk)
            at = newest_step(command.folder)
            assert wait_until(lambda: command.process.poll() is not None, 3.0) is False
            make_room(disk)
            assert wait_until(lambda: newest_step(command.folder) > at, 60), "checkpoints are written again"
            code, said = command.end(100), command.words()
        assert code == 0, said
        lines = [line.split()[1] for line in said.splitlines() if line.startswith("20")]
        assert (lines.count("not_saved"), lines.count("saved_again")) == (1, 1), said
        assert 'not_saved text="No space left on device"' in said
        assert "Traceback" not in said
        assert read_run(command.folder).receipt["weights_sha256"] == wanted


@pytest.mark.long
@pytest.mark.timeout(300)
def test_holdfast_train_whose_disk_stays_full_ends_with_words(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    env = {"PYTHONPATH": os.pathsep.join(driving_path()), "TMPDIR": str(tmp_path / "tmp")}
    with small_disk(tmp_path / "disk", "2m") as disk:
        with Command(disk, "train", JOB, "pause=0.02", "epochs=8", "checkpoint.every=0.5s", env=env) as command:
            assert wait_until(lambda: any(disk.glob("*/checkpoints/0*")), 100), "the first checkpoint"
            fill(disk)
            code, said = command.end(100), command.words()
        run = command.folder
    folder = rescued(tmp_path / "tmp")
    assert code == 4, said
    assert "Traceback" not in said
    assert said.strip().splitlines()[-7:] == [
        f"error: training is over, but its result could not be saved in {run}",
        "  cause: No space left on device",
        f"  saved: step 64 in {folder}/checkpoints/000064",
        "",
        f"hint: the weights are in {folder}/final.safetensors",
        f"hint: the whole run is now in {folder}: move it to a safe place",
        f"hint: continue with `holdfast resume {folder}`",
    ]
    lines = [line.split()[1] for line in said.splitlines() if line.startswith("20")]
    assert (lines.count("not_saved"), lines.count("rescued")) == (1, 1), said


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_supervisor_that_is_killed_on_a_full_disk_loses_no_step(tmp_path: Path, wanted: str) -> None:
    """Its keeper has nowhere to write but elsewhere, and says where that is."""
    (tmp_path / "tmp").mkdir()
    env = {"PYTHONPATH": os.pathsep.join(driving_path()), "TMPDIR": str(tmp_path / "tmp")}
    with small_disk(tmp_path / "disk", "2m") as disk:
        with Command(disk, "train", JOB, "pause=0.1", "checkpoint.every=0.5s", env=env) as command:
            assert wait_until(lambda: any(disk.glob("*/checkpoints/0*")), 100), "the first checkpoint"
            fill(disk)
            assert wait_until(lambda: command.process.poll() is not None, 2.0) is False
            command.signal(signal.SIGKILL)
            command.end()
            said = command.words()  # ends with the keeper, which has the pipe too
        before = newest_step(command.folder)
    folder = rescued(tmp_path / "tmp")
    saved = newest_step(folder)
    assert saved > before
    assert f"could not be written (No space left on device); step {saved} is in {folder}" in said
    with Command(tmp_path / "tmp", "resume", folder, env=env) as again:
        assert again.end(100) == 0, again.words()
    assert read_run(folder).receipt["weights_sha256"] == wanted


def newest_step(folder: Path) -> int:
    good, _ = checkpoint.newest_good(folder / "checkpoints")
    return good.step if good is not None else 0


def driving_path() -> list[str]:
    """The job imports its neighbours."""
    return [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]


def test_a_disk_that_is_full_from_the_start_is_a_plain_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "128k") as disk:
        fill(disk)
        with Command(disk, "train", JOB, env={"PYTHONPATH": os.pathsep.join(driving_path())}) as command:
            assert command.end() == 2
            said = command.words().strip().splitlines()
        assert said[:2] == [f"error: cannot create a run folder in {disk}", "  cause: No space left on device"]
