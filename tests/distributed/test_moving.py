"""`holdfast push` and `pull`: what arrives is what was sent, or nothing is replaced."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.cli.main import main
from holdfast.record import transfer
from holdfast.run.folder import RunFolder
from holdfast.state import checkpoint, layout

FILE = "state.safetensors"


def _payload(seed: int) -> memoryview:
    plan = layout.plan([("model.weight", "U8", (4096,))], meta_capacity=1024)
    data = bytearray(plan.total_bytes)
    data[: plan.data_start] = plan.header
    data[plan.span("model.weight")] = bytes((seed + each) % 256 for each in range(4096))
    data[plan.span(layout.META)] = plan.pack_meta("{}")
    return memoryview(data)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A stopped run with two checkpoints."""
    (tmp_path / "my_script.py").write_text("def train(session):\n    pass\n")
    info = {"created": "2026-11-15T09:00:00Z", "state": "STOPPED", "script": str(tmp_path / "my_script.py")}
    made = RunFolder.create(tmp_path / "runs", "job", info)
    for step in (10, 20):
        checkpoint.write(made.path / "checkpoints", _payload(step), step=step)
    (made.path / "journal.jsonl").write_text('{"event": "start", "time": ""}\n')
    made.put("receipt.json", {"schema": 1, "steps": 20})
    (made.path / "slots").mkdir()
    (made.path / "slots" / "slot-0").write_bytes(b"x" * 100)
    return made


def _damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_there_and_back(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk, back = tmp_path / "disk", tmp_path / "back"
    assert main(["push", str(run.path), str(disk)]) == 0
    assert "2 checkpoints verified at both ends, the newest is step 20" in capsys.readouterr().out
    copy = disk / run.path.name
    assert not (copy / "slots").exists() and not (copy / "lock").exists()
    assert copy.stat().st_mode & 0o077 == 0
    assert main(["pull", str(copy), "--folder", str(back), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checkpoints_verified"] == 2 and told["newest_step"] == 20
    for step in ("000010", "000020"):
        here, there = (root / "checkpoints" / step / FILE for root in (run.path, back / run.path.name))
        assert here.read_bytes() == there.read_bytes()
    assert main(["fsck", str(back / run.path.name)]) == 0


def test_a_damaged_newest_checkpoint_is_no_reason_to_send_nothing(run: RunFolder, tmp_path: Path) -> None:
    _damage(run.path / "checkpoints" / "000020" / FILE)
    moved = transfer.copy_run(run.path, tmp_path / "disk")
    assert moved.newest == 10 and moved.checkpoints == 1


def test_nothing_good_is_not_sent(run: RunFolder, tmp_path: Path) -> None:
    for step in ("000010", "000020"):
        _damage(run.path / "checkpoints" / step / FILE)
    with pytest.raises(UserError, match=r"no checkpoint of .* is good") as caught:
        transfer.copy_run(run.path, tmp_path / "disk")
    assert "bytes are not the ones written" in str(caught.value.cause)
    assert not (tmp_path / "disk").exists()


def test_damage_on_the_way_replaces_nothing(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transfer.copy_run(run.path, tmp_path / "disk")
    checkpoint.write(run.path / "checkpoints", _payload(30), step=30)
    copy = transfer._copy_tree

    def badly(source: Path, target: Path) -> tuple[int, int]:
        done = copy(source, target)
        _damage(target / "checkpoints" / "000030" / FILE)
        return done

    monkeypatch.setattr(transfer, "_copy_tree", badly)
    with pytest.raises(UserError, match="arrived damaged: step 30"):
        transfer.copy_run(run.path, tmp_path / "disk")
    names = sorted(path.name for path in (tmp_path / "disk" / run.path.name / "checkpoints").iterdir())
    assert names == ["000010", "000020"] and not list((tmp_path / "disk").glob(".*"))


def test_a_copy_that_went_further_is_left_alone(run: RunFolder, tmp_path: Path) -> None:
    transfer.copy_run(run.path, tmp_path / "disk")
    checkpoint.write(tmp_path / "disk" / run.path.name / "checkpoints", _payload(99), step=99)
    with pytest.raises(UserError, match="is ahead: it is at step 99"):
        transfer.copy_run(run.path, tmp_path / "disk")
    assert transfer.copy_run(tmp_path / "disk" / run.path.name, run.path.parent).newest == 99


def test_another_run_of_that_name_is_left_alone(run: RunFolder, tmp_path: Path) -> None:
    other = tmp_path / "disk" / run.path.name
    other.mkdir(parents=True)
    (other / "run.json").write_text(json.dumps({**run.info, "created": "2020-01-01T00:00:00Z"}))
    with pytest.raises(UserError, match="is another run"):
        transfer.copy_run(run.path, tmp_path / "disk")


def test_a_running_run_only_when_asked_to(run: RunFolder, tmp_path: Path) -> None:
    run.lock()
    with pytest.raises(UserError, match="is running"):
        transfer.copy_run(run.path, tmp_path / "disk")
    assert transfer.copy_run(run.path, tmp_path / "disk", live=True).newest == 20


def test_links_are_not_followed(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    os.symlink(tmp_path / "secret", run.path / "notes.txt")
    os.symlink(tmp_path, run.path / "everything")
    transfer.copy_run(run.path, tmp_path / "disk")
    copy = tmp_path / "disk" / run.path.name
    assert not os.path.lexists(copy / "notes.txt") and not os.path.lexists(copy / "everything")


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["pull", str(tmp_path / "empty"), "--folder", str(tmp_path / "runs")]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_script_at_another_path(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transfer.copy_run(run.path, tmp_path / "disk")
    (tmp_path / "my_script.py").rename(tmp_path / "moved.py")
    words = ["pull", str(tmp_path / "disk" / run.path.name), "--folder", str(tmp_path / "back")]
    assert main(words) == 0
    assert "its script is not on this machine" in capsys.readouterr().out
    assert main([*words, "--script", str(tmp_path / "moved.py")]) == 0
    assert "continue with `holdfast resume" in capsys.readouterr().out
    assert RunFolder(tmp_path / "back" / run.path.name).info["script"] == str(tmp_path / "moved.py")


@pytest.mark.parametrize(
    ("place", "remote"),
    [("box:runs", True), ("me@box:/runs", True), ("/mnt/disk", False), ("./a:b", False), ("C:x", False)],
)
def test_what_is_another_machine(place: str, remote: bool) -> None:
    assert transfer.is_remote(place) is remote


# rsync ------------------------------------------------------------------------------------------------------


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine: rsync with its own protocol, and a remote shell that stays here."""
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    home = tmp_path / "box"
    home.mkdir()
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\nshift\ncd {home}\nexec sh -c "$*"\n')
    shell.chmod(0o755)
    monkeypatch.setenv("RSYNC_RSH", str(shell))
    return home


def test_rsync_there_and_back(run: RunFolder, box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(run.path), "box:runs"]) == 0
    assert "2 checkpoints verified at both ends" in capsys.readouterr().out
    copy = box / "runs" / run.path.name
    assert not (copy / "slots").exists()
    checkpoint.write(copy / "checkpoints", _payload(40), step=40)  # it went on there
    assert main(["pull", f"box:runs/{run.path.name}", "--folder", str(run.path.parent)]) == 0
    assert "3 checkpoints verified at both ends, the newest is step 40" in capsys.readouterr().out
    assert isinstance(checkpoint.check(run.path / "checkpoints" / "000040"), checkpoint.Checkpoint)
    assert not (run.path.parent / ".arriving").exists()


def test_rsync_damage_at_the_far_end_is_noticed(run: RunFolder, box: Path) -> None:
    transfer.push(run.path, "box:runs")
    _damage(box / "runs" / run.path.name / "checkpoints" / "000020" / FILE)
    with pytest.raises(UserError, match="arrived damaged: checkpoints/000020"):
        transfer._compare(f"{run.path}/", f"box:runs/{run.path.name}/")
    _damage(box / "runs" / run.path.name / "checkpoints" / "000010" / FILE)
    with pytest.raises(UserError, match=r"no checkpoint of .* is good"):
        transfer.pull(f"box:runs/{run.path.name}", run.path.parent)
    assert isinstance(checkpoint.check(run.path / "checkpoints" / "000020"), checkpoint.Checkpoint)


def test_a_machine_that_is_not_there(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    monkeypatch.setenv("RSYNC_RSH", "false")
    with pytest.raises(UserError, match="rsync ended with code"):
        transfer.push(run.path, "box:runs")
