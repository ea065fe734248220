"""What can go wrong between machines: namespaces of this kernel, joined by cables that can be cut (machines.py)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from holdfast.run.folder import RunFolder, list_runs
from holdfast.run.settings import Settings
from holdfast.worker.local_run import run_local
from tests.distributed import machines as made
from tests.distributed import sharded_job
from tests.distributed.launched import ROOT, alone
from tests.distributed.machines import Machines
from tests.distributed.several import Several

pytestmark = [
    pytest.mark.skipif(bool(made.missing()), reason=made.missing()),
    pytest.mark.timeout(600),
]
WHOLE = {epoch: Counter(range(60)) for epoch in range(6)}


def _show(launch: Several) -> None:
    """For a failure, and for a look with `-s`."""
    for number in launch.processes:
        print(f"machine {number}: {launch.said(number)}")
    print(*launch.notes(), sep="\n")


def _whole(launch: Several, tmp_path: Path, **job: object) -> dict[str, object]:
    """Every sample once in every epoch, no step lost, and the weights of one process; the receipt."""
    receipt: dict[str, object] = launch.finish()["receipt"]
    assert receipt["steps"] == 30 and receipt["steps_lost"] == 0
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    assert launch.samples() == WHOLE
    for name, values in alone(tmp_path / "alone", **job).items():
        assert (launch.weights()[name.removeprefix("module.")] - values).abs().max() < 1e-6, name
    return receipt


def test_a_rank_of_another_machine_is_killed(tmp_path: Path) -> None:
    with Machines(2, share=[tmp_path]) as machines, Several(machines, tmp_path, 2, wait="8 16") as launch:
        launch.until(lambda: launch.waits_for(8, 2))
        before = launch.pids()
        launch.kill(1)
        launch.go(8)
        launch.until(lambda: launch.waits_for(16, 2))
        after = launch.pids()
        assert after[0] == before[0] and after[1] != before[1], "the other rank keeps its process"
        launch.go(16)
        receipt = _whole(launch, tmp_path)
    assert receipt["faults"] == {"killed": 1}


@pytest.mark.all
def test_a_machine_is_away_for_a_while(tmp_path: Path) -> None:
    """Its cable is cut until the others have gone on without it; it joins them again when the cable is mended."""
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, "--min-ranks", "2", nproc=2, wait="8 16 24") as launch,
    ):
        launch.until(lambda: launch.waits_for(8, 4))
        before = launch.pids()
        machines.cut(1)
        launch.go(8)
        launch.until(lambda: launch.waits_for(16, 2))
        machines.mend(1)
        launch.until(lambda: "connected again" in launch.said(1))
        launch.until(lambda: launch.is_invited())
        launch.go(16)
        launch.until(lambda: launch.waits_for(24, 4))
        after = launch.pids()
        assert {seat: after[seat] for seat in (0, 1)} == {seat: before[seat] for seat in (0, 1)}
        launch.go(24)
        _whole(launch, tmp_path)
        notes = launch.notes()
    assert "the first machine is lost: no answer for" in launch.said(1)
    assert any(note.startswith("machine 1 (m1) is lost: no answer for") for note in notes)
    assert "rank 2 is back: 4 of 4 ranks train" in notes


@pytest.mark.long
@pytest.mark.parametrize("seconds", [1, 5, 60])
def test_a_cable_is_cut_and_the_others_wait(tmp_path: Path, seconds: int) -> None:
    """Without --min-ranks. After a second nothing has happened; else the machine joins again, and its rank goes on."""
    with Machines(2, share=[tmp_path]) as machines, Several(machines, tmp_path, 2, wait="8 16", ddp=True) as launch:
        launch.until(lambda: launch.waits_for(8, 2))
        before = launch.pids()
        machines.cut(1)
        launch.go(8)
        time.sleep(seconds)
        if seconds > 1:  # both ends notice; how long that takes depends on the silences that they have seen
            launch.until(lambda: "the first machine is lost" in launch.said(1))
            launch.until(lambda: any(note.startswith("machine 1 (m1) is lost: no answer") for note in launch.notes()))
        machines.mend(1)
        launch.until(lambda: launch.waits_for(16, 2))
        after = launch.pids()
        assert after[0] == before[0] and (after == before) == (seconds == 1)
        launch.go(16)
        _whole(launch, tmp_path, ddp=False)
        again = [note for note in launch.notes() if "is connected again" in note or " is lost" in note]
        assert bool(again) == (seconds > 1) == ("connected again" in launch.said(1)), again
    _show(launch)


@pytest.mark.long
def test_a_cable_is_cut_for_ever(tmp_path: Path) -> None:
    """The machine gives up, and what it has in memory is on its disk."""
    words = ("--min-ranks", "1", "--wait-for-machines", "8s")
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, *words, wait="8", snapshot="1") as launch,
    ):
        launch.until(lambda: launch.waits_for(8, 2))
        machines.cut(1)
        launch.go(8)
        ended = launch.end(1)
        assert launch.processes[1].returncode == 4 and ended["error"]["error"] == "GaveUp", ended
        assert ended["error"]["message"].startswith("no connection to the first machine for")
        (rescued,) = list_runs(launch.home(1))
        assert str(rescued.path) in ended["error"]["saved"]
        assert [path.name for path in (rescued.path / "checkpoints").glob("[0-9]*")] == ["000007"]
        first = launch.end(0)
        assert launch.processes[0].returncode == 0 and first["receipt"]["steps_lost"] == 0
        assert launch.samples() == WHOLE
    _show(launch)


@pytest.mark.long
@pytest.mark.parametrize(("source", "target"), [(1, None), (None, 1)], ids=["what it sends", "what is sent to it"])
def test_one_way_loss(tmp_path: Path, source: int | None, target: int | None) -> None:
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, "--min-ranks", "1", wait="8 16 24") as launch,
    ):
        launch.until(lambda: launch.waits_for(8, 2))
        machines.drop(source=source, target=target)
        launch.go(8)
        launch.until(lambda: launch.waits_for(16, 1))
        launch.until(lambda: "the first machine is lost" in launch.said(1))
        launch.until(lambda: not launch.ranks(1))
        machines.mend()
        launch.until(launch.is_invited)
        launch.go(16)
        launch.until(lambda: launch.waits_for(24, 2))
        launch.go(24)
        _whole(launch, tmp_path)
    _show(launch)


@pytest.mark.long
@pytest.mark.parametrize(("delay", "loss"), [(0.1, 0.0), (0.0, 0.01)], ids=["200 ms", "1 % loss"])
def test_a_slow_or_a_lossy_network(tmp_path: Path, delay: float, loss: float) -> None:
    """From the first packet on; the delay is that of one way. A rank is killed besides."""
    with Machines(2, share=[tmp_path]) as machines:
        machines.slow(1, delay=delay, loss=loss, seed=3)
        with Several(machines, tmp_path, 2, wait="8") as launch:
            launch.until(lambda: launch.waits_for(8, 2))
            before = launch.pids()
            launch.kill(1)
            launch.go(8)
            receipt = _whole(launch, tmp_path)
            assert receipt["faults"] == {"killed": 1} and not any("lost" in note for note in launch.notes())
            assert before
    _show(launch)


@pytest.mark.long
@pytest.mark.parametrize("how", ["power", "killed"])
def test_the_first_machine_dies(tmp_path: Path, how: str) -> None:
    """The others stop. The newest state is on the disk of a machine that is left, and a run can go on from it."""
    words = ("--wait-for-machines", "8s")
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, *words, wait="8", snapshot="1") as launch,
    ):
        launch.until(lambda: launch.waits_for(8, 2))
        launch.let_go(0)
        (machines.power_off if how == "power" else machines.kill)(0)
        ended = launch.end(1)
        assert launch.processes[1].returncode == 4 and ended["error"]["error"] == "GaveUp", ended
        (rescued,) = list_runs(launch.home(1))
        assert [path.name for path in (rescued.path / "checkpoints").glob("[0-9]*")] == ["000007"]
        assert "step 7 in" in ended["error"]["saved"] and f"--resume {rescued.name}" in ended["error"]["hints"][0]
        launch.go(8)
        resumed = [sys.executable, "-m", "holdfast", "launch", "--resume", rescued.name, "--nproc", "2"]
        env = {**os.environ, "HOLDFAST_STATE": str(launch.home(1) / "state")}
        said = machines.run(1, [*resumed, "--folder", str(launch.home(1)), "--json"], cwd=launch.home(1), env=env)
        receipt = json.loads(said[said.index("{") :])["receipt"]
        assert receipt["steps"] == 30 and receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    weights = load_file(rescued.path / "final.safetensors")
    for name, values in alone(tmp_path / "alone").items():
        assert (weights[name] - values).abs().max() < 1e-6, name
    _show(launch)


@pytest.mark.long
def test_a_partition_of_two_and_two(tmp_path: Path) -> None:
    """The half with the first machine goes on, the other one stops and says why; all go on once they can."""
    with (
        Machines(4, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 4, "--min-ranks", "2", wait="8 16 24") as launch,
    ):
        launch.until(lambda: launch.waits_for(8, 4))
        before = launch.pids()
        machines.partition([0, 1], [2, 3])
        launch.go(8)
        launch.until(lambda: launch.waits_for(16, 2))
        assert launch.roster().seats == (0, 1)  # type: ignore[union-attr]
        for number in (2, 3):
            launch.until(lambda number=number: "the first machine is lost" in launch.said(number))
            launch.until(lambda number=number: not launch.ranks(number))
        machines.mend()
        launch.until(lambda: launch.is_invited() and len(launch.pids()) == 4)
        launch.go(16)
        # The two may come one after the other. Whoever came late to step 24 is invited there, and joins before its end.
        launch.until(lambda: launch.waits_for(24, 4) or (launch.waits_for(24, 3) and launch.is_invited()))
        after = launch.pids()
        assert sorted(after) == [0, 1, 2, 3] and (after[0], after[1]) == (before[0], before[1])
        launch.go(24)
        _whole(launch, tmp_path)
    _show(launch)


@pytest.mark.long
def test_clocks_that_are_an_hour_apart(tmp_path: Path) -> None:
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, wait="8", clocks={1: 3600.0}) as launch,
    ):
        launch.until(lambda: launch.waits_for(8, 2))
        launch.kill(1)
        launch.go(8)
        receipt = _whole(launch, tmp_path)
        assert receipt["faults"] == {"killed": 1}
    _show(launch)


def _fill(machines: Machines, number: int, folder: Path) -> None:
    """Leave no byte of room in this folder."""
    machines.run(number, ["sh", "-c", f"cat /dev/zero > {folder}/filler 2>/dev/null || true"])


@pytest.mark.long
def test_the_disk_of_the_run_folder_is_full(tmp_path: Path) -> None:
    """It trains on and says that nothing is saved; the end of the run cannot be saved either."""
    with Machines(2, share=[tmp_path]) as machines:
        launch = Several(machines, tmp_path, 2, wait="8 16", start=False, snapshot="1", **{"checkpoint.every": "1ms"})
        machines.disk(0, launch.home(0), megabytes=4)
        with launch:
            for each in range(2):
                launch.start(each)
            launch.until(lambda: launch.waits_for(8, 2))
            _fill(machines, 0, launch.home(0))
            launch.go(8)
            launch.until(lambda: launch.waits_for(16, 2))
            machines.run(0, ["rm", f"{launch.home(0)}/filler"])
            launch.go(16)
            ended = launch.finish()
            journal = machines.run(0, ["sh", "-c", f"cat {launch.home(0)}/job-*/journal.jsonl"])
            assert ended["receipt"]["steps"] == 30 and launch.samples() == WHOLE
            told = [line["event"] for line in map(json.loads, journal.splitlines())]
            assert "not_saved" in told and "saved_again" in told


@pytest.mark.long
def test_no_room_for_snapshots_on_one_machine(tmp_path: Path) -> None:
    with Machines(2, share=[tmp_path]) as machines:
        machines.run(1, ["mount", "-o", "remount,size=4m", "/dev/shm"])
        with Several(machines, tmp_path, 2) as launch:
            ended = [launch.end(number) for number in range(2)]
            assert [launch.processes[number].returncode for number in range(2)] == [2, 2]
            for each in ended:
                assert each["error"]["message"].startswith("no room for 5 MiB of snapshots in memory")
            assert "(machine 1, m1)" in ended[0]["error"]["cause"]


@pytest.mark.long
def test_the_memory_for_snapshots_becomes_full_on_one_machine(tmp_path: Path) -> None:
    """Snapshots have their room from the start. What is written besides is small, but it needs some."""
    with Machines(2, share=[tmp_path]) as machines:
        machines.run(1, ["mount", "-o", "remount,size=16m", "/dev/shm"])
        with Several(machines, tmp_path, 2, "--min-ranks", "1", wait="8 16", snapshot="1") as launch:
            launch.until(lambda: launch.waits_for(8, 2))
            _fill(machines, 1, Path("/dev/shm"))
            launch.kill(1)  # its successor has to write files of its own
            launch.go(8)
            launch.until(lambda: launch.waits_for(16, 1) or launch.waits_for(16, 2), patience=60.0)
            machines.run(1, ["rm", "/dev/shm/filler"])
            launch.go(16)
            first, second = launch.end(0), launch.end(1)
            assert launch.processes[0].returncode == 0 and first["receipt"]["steps_lost"] == 0, first
            assert launch.processes[1].returncode == 4 and second["error"]["message"] == "/dev/shm is full", second
            assert launch.samples() == WHOLE


@pytest.mark.all
@pytest.mark.parametrize("what", ["version", "script", "argument", "setting", "nproc"])
def test_machines_that_do_not_fit(tmp_path: Path, what: str) -> None:
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, start=False, env={"HOLDFAST_TOKEN": "a"}) as launch,
    ):
        other = tmp_path / "other.py"
        other.write_text(Path(launch.path).read_text() + "\n# another one\n")
        launch.start(0)
        if what == "version":
            fake = tmp_path / "fake" / "torch-0.9.dist-info"
            fake.mkdir(parents=True)
            (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.9\n")
            launch.start(1, PYTHONPATH=os.pathsep.join([str(fake.parent), str(ROOT / "src"), str(ROOT)]))
        elif what == "script":
            launch.start(1, path=other)
        elif what == "argument":
            launch.start(1, changes={"epochs": 5})
        elif what == "setting":
            launch.start(1, changes={"run.seed": 1, "checkpoint.every": "5s", "run.threads": 2})
        else:
            launch.start(1, "--nproc", "2")
        ended = [launch.end(number) for number in range(2)]
        assert [launch.processes[number].returncode for number in range(2)] == [2, 2], ended
        says = {
            "version": "it has torch 0.9, the first machine has ",
            "script": "its script is not that of the first machine",
            "argument": "its epochs is not that of the first machine",
            "setting": "its checkpoint.every, run.seed are not those of the first machine",
            "nproc": "--nproc is 2 there and 1 here",
        }[what]
        assert f"machine 1 (m1) cannot join: {says}" in ended[0]["error"]["message"]
        assert f"this machine cannot join: {says}" in ended[1]["error"]["message"]


@pytest.mark.all
def test_a_machine_with_another_token_is_turned_away_and_the_right_one_is_waited_for(tmp_path: Path) -> None:
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, wait="8", start=False, env={"HOLDFAST_TOKEN": "a"}) as launch,
    ):
        launch.go(8)
        launch.start(0)
        launch.start(1, HOLDFAST_TOKEN="b")
        ended = launch.end(1)
        assert launch.processes[1].returncode == 2, ended
        assert "this machine cannot join: the tokens differ" in ended["error"]["message"]
        launch.start(1)
        _whole(launch, tmp_path)
        assert f"a machine at {machines.address(1)} cannot join: the tokens differ" in launch.notes()


@pytest.mark.long
def test_a_run_is_resumed_on_the_first_machine(tmp_path: Path) -> None:
    """The others give the script and its arguments as before."""
    with Machines(2, share=[tmp_path]) as machines, Several(machines, tmp_path, 2, wait="8", snapshot="1") as launch:
        launch.until(lambda: launch.waits_for(8, 2))
        launch.processes[0].terminate()
        launch.go(8)
        for number in (0, 1):
            launch.end(number)
        assert [launch.processes[number].returncode for number in (0, 1)] == [75, 75]
        launch.start(0, resume=launch.run.name)
        launch.start(1)
        _whole(launch, tmp_path)


@pytest.mark.long
def test_the_agent_of_a_machine_is_killed_and_started_again(tmp_path: Path) -> None:
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, "--min-ranks", "1", wait="8 16 24") as launch,
    ):
        launch.until(lambda: launch.waits_for(8, 2))
        before = launch.pids()
        launch.processes[1].kill()
        launch.go(8)
        launch.until(lambda: launch.waits_for(16, 1))
        launch.start(1)
        launch.until(launch.is_invited)
        launch.go(16)
        launch.until(lambda: launch.waits_for(24, 2))
        assert launch.pids()[0] == before[0]
        launch.go(24)
        _whole(launch, tmp_path)
    _show(launch)


@pytest.mark.all
def test_a_stop_while_another_machine_is_away(tmp_path: Path) -> None:
    with Machines(2, share=[tmp_path]) as machines, Several(machines, tmp_path, 2, wait="8", snapshot="1") as launch:
        launch.until(lambda: launch.waits_for(8, 2))
        machines.cut(1)
        launch.until(lambda: "the first machine is lost" in launch.said(1))
        for number in (0, 1):
            launch.processes[number].terminate()
        launch.go(8)
        first, second = launch.end(0), launch.end(1)
        assert (launch.processes[0].returncode, first["state"]) == (75, "STOPPED")
        assert (launch.processes[1].returncode, second["error"]["error"]) == (4, "GaveUp")
        assert [path.name for path in (launch.run.path / "checkpoints").glob("[0-9]*")] == ["000007"]


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("--min-ranks", "1")], ids=["the others wait", "the others go on"])
def test_a_machine_with_parts_of_the_model_loses_its_power(tmp_path: Path, words: tuple[str, ...]) -> None:
    """FSDP2: its parts were only in its memory. The first machine has copies of them."""
    job = {"epochs": 8, "pause": 0.2, "snapshot": "1", "path": sharded_job.__file__}
    with Machines(2, share=[tmp_path]) as machines, Several(machines, tmp_path, 2, *words, **job) as launch:
        launch.until(lambda: launch.step() >= 6)
        launch.let_go(1)
        machines.power_off(1)
        launch.processes[1].wait()
        if not words:
            machines.mend(1)
            launch.start(1)
            assert launch.end(1)["state"] == "FINISHED"
        receipt = launch.end(0)["receipt"]
        assert (
            launch.processes[0].returncode == 0
            and receipt["steps"] == 40
            and receipt["steps_lost"] == 0
            and receipt["steps_repeated"] <= 4
        ), receipt
        assert not any("checkpoint" in note for note in launch.notes())
    _show(launch)
    _same_as_alone(launch.weights(), tmp_path)


def _same_as_alone(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    alone_run = RunFolder.create(tmp_path / "alone", "alone", {})
    run_local(sharded_job.train, alone_run, Settings.load({}), arguments={"epochs": 8, "whole": True})
    for name, values in load_file(alone_run.path / "final.safetensors").items():
        assert (weights[name] - values).abs().max() < 1e-6, name


@pytest.mark.long
def test_the_first_machine_dies_with_its_parts_of_the_model(tmp_path: Path) -> None:
    """FSDP2: the second machine has copies of its parts, saves the whole state, and a run can go on from it."""
    job = {"epochs": 8, "pause": 0.2, "snapshot": "1", "path": sharded_job.__file__}
    words = ("--wait-for-machines", "8s")
    with Machines(2, share=[tmp_path]) as machines, Several(machines, tmp_path, 2, *words, **job) as launch:
        launch.until(lambda: launch.step() >= 6)
        launch.let_go(0)
        machines.power_off(0)
        ended = launch.end(1)
        assert launch.processes[1].returncode == 4 and ended["error"]["error"] == "GaveUp", ended
        (rescued,) = list_runs(launch.home(1))
        (saved,) = (rescued.path / "checkpoints").glob("[0-9]*")
        assert 2 <= int(saved.name) < 40 and f"step {int(saved.name)} in" in ended["error"]["saved"]
        resumed = [sys.executable, "-m", "holdfast", "launch", "--resume", rescued.name, "--nproc", "2"]
        env = {**os.environ, "HOLDFAST_STATE": str(launch.home(1) / "state")}
        said = machines.run(1, [*resumed, "--folder", str(launch.home(1)), "--json"], cwd=launch.home(1), env=env)
        assert json.loads(said[said.index("{") :])["receipt"]["steps"] == 40
    _same_as_alone(load_file(rescued.path / "final.safetensors"), tmp_path)
