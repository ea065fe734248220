"""Tracker processes beside a run: killed, without disk, over several sittings; every number arrives once.

TensorBoard's event files stand for all trackers here, and are read back by TensorBoard itself. The others have files of
their own, which need their packages.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.cli import track
from holdfast.cli.main import main
from holdfast.run.folder import RunFolder, write_json
from holdfast.run.settings import Settings
from tests.monitor.trackers.tracked_run import TrackedRun
from tests.waiting import wait_until


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def words(folder: Path) -> list[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    reader.Reload()
    return [event.tensor_proto.string_val[0].decode() for event in reader.Tensors("events")]


@pytest.mark.all
def test_every_number_once_over_kills_undone_steps_and_sittings(tmp_path: Path) -> None:
    team = tmp_path / "team"
    run = TrackedRun(tmp_path, "tensorboard", {"track.tensorboard": str(team)})
    for step in range(1, 6):
        run.log(step, loss=float(step), lr=0.5)
    run.event("fault", code="F005", sentence="cpu stopped answering", step=6)
    run.wait_for("tensorboard", 6)
    run.kill("tensorboard")
    for step in range(6, 11):
        run.log(step, loss=float(step), lr=0.5)
    run.wait_for("tensorboard", 11)
    run.event("undone", from_step=10, to_step=8)
    run.log(9, loss=90.0, lr=0.5)
    run.end("CRASHED")
    run.resume(8)  # the newest checkpoint is older than what was logged
    run.log(9, loss=90.0, lr=0.5)
    run.log(10, loss=100.0, lr=0.5)
    run.end("FINISHED")
    run.wait()
    expected = [(step, float(step)) for step in range(1, 9)] + [(9, 90.0), (10, 100.0)]
    found = scalars(team / run.folder.name)
    assert found["loss"] == expected, run.said()
    assert found["lr"] == [(step, 0.5) for step in range(1, 11)]
    said = words(team / run.folder.name)
    assert [line for line in said if line.startswith("F005")], said
    assert "resumed at step 8 on cpu" in said and said[-1] == "ended: FINISHED"


@pytest.mark.all
def test_a_tracker_without_room_catches_up(tmp_path: Path) -> None:
    """A file stands where the folder should be: nothing can be written until it is gone."""
    team = tmp_path / "team"
    team.write_text("in the way")
    run = TrackedRun(tmp_path, "tensorboard", {"track.tensorboard": str(team)})
    run.log(1, loss=1.0)
    assert wait_until(lambda: "rows wait" in run.said())
    team.unlink()
    run.log(2, loss=2.0)
    run.end()
    run.wait()
    assert scalars(team / run.folder.name) == {"loss": [(1, 1.0), (2, 2.0)]}
    assert "it takes rows again" in run.said()


def test_what_is_left_is_sent_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    team = tmp_path / "team"
    team.write_text("in the way")
    run = TrackedRun(tmp_path, "tensorboard", {"track.tensorboard": str(team), "track.patience": "1s"})
    run.log(1, loss=1.0)
    run.end()
    run.wait()
    assert f"2 rows are left; `holdfast track {run.folder.name}` sends them" in run.said()
    team.unlink()
    assert main(["track", str(run.folder.path), "track.to=tensorboard", f"track.tensorboard={team}"]) == 0
    assert capsys.readouterr().out == "tensorboard: it has everything\n"
    assert scalars(team / run.folder.name) == {"loss": [(1, 1.0)]}
    assert main(["track", str(run.folder.path), "track.to=tensorboard", f"track.tensorboard={team}"]) == 0
    assert scalars(team / run.folder.name) == {"loss": [(1, 1.0)]}


def test_a_tracker_that_the_script_writes_to_gets_nothing_from_us(tmp_path: Path) -> None:
    run = TrackedRun(tmp_path, "tensorboard", {"track.tensorboard": str(tmp_path / "team")})
    run.event("loggers", names=["tensorboard"])
    run.log(1, loss=1.0)
    run.wait()  # although the run goes on
    assert "the script writes to it by itself" in run.said()
    assert not (tmp_path / "team").exists()
    run.end()


def test_a_missing_package_is_one_line_and_costs_the_run_nothing(tmp_path: Path) -> None:
    """In a Python that has none of the trackers, whatever this one has."""
    code = f"""
import sys, importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in ("mlflow", "wandb") else found(name, *more)
from pathlib import Path
from holdfast.cli import track
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
run = RunFolder.create(Path({str(tmp_path)!r}), "eeg", {{}})
for line in track.start(run, Settings.load({{"track.to": "mlflow,wandb"}}, env={{}})): print(line)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("track.to=mlflow needs the package mlflow: install it: `pip install 'holdfast[mlflow]'`; ")
    assert "holdfast[wandb]" in second


def test_a_foreign_run_folder_cannot_say_who_gets_the_numbers(tmp_path: Path) -> None:
    from holdfast.cli.resume import _untracked
    from holdfast.cli.run_settings import settings_of

    folder = RunFolder.create(tmp_path, "eeg", {})
    ours = {"track": {"to": "mlflow", "mlflow": "http://ours.example"}}
    folder.vouch({**folder.info, "settings": ours})
    assert settings_of(folder, {}).track.mlflow == "http://ours.example"
    write_json(folder.path / "run.json", {**folder.info, "settings": {"track": {"to": "mlflow", "mlflow": "http://x"}}})
    assert not folder.vouched
    assert settings_of(folder, {}).track == Settings().track
    assert settings_of(folder, {"track.to": "wandb"}).track.to == "wandb"
    assert _untracked(folder.info)["settings"] == {}  # what a yes seals


@pytest.mark.all
def test_a_hostile_name_leads_nowhere(tmp_path: Path) -> None:
    """run.json says what the run is called; the folder in the team's folder has the name of the run folder."""
    team = tmp_path / "team" / "here"
    run = TrackedRun(tmp_path, "tensorboard", {"track.tensorboard": str(team)})
    run.folder.update_info(run="../elsewhere")
    run.kill("tensorboard")
    run.log(1, loss=1.0)
    run.end()
    run.wait()
    assert [path.name for path in (tmp_path / "team").iterdir()] == ["here"]
    assert [path.name for path in team.iterdir()] == [run.folder.name]


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(UserError, match="is not allowed"):
        Settings.load({"track.mlflow": "https://me:secret@mlflow.example"}, env={})


@pytest.mark.parametrize("value", ["mlflow", "mlflow,wandb", "mlflow,wandb,trackio,tensorboard", "off"])
def test_trackers_are_named_with_commas(value: str) -> None:
    assert (Settings.load({"track.to": value}, env={}).track.to or "off") == value


@pytest.mark.parametrize("value", ["", "mlflow,", ",mlflow", "mlflow wandb", "aim", "mlflowwandb"])
def test_other_names_are_refused(value: str) -> None:
    with pytest.raises(UserError):
        Settings.load({"track.to": value}, env={})


def test_event_files_that_the_run_writes_itself_are_not_written_twice(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "eeg", {})
    assert track.start(folder, Settings.load({"track.to": "tensorboard"}, env={})) == []
    assert not (folder.path / "trackers").exists()
