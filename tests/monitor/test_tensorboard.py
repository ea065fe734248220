"""Event files that stock TensorBoard reads, from a run that was killed, resumed and distrusted."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.monitor import reader, tensorboard
from holdfast.run import tensorboard_file
from holdfast.run.folder import RunFolder
from holdfast.run.tensorboard_file import EventFile, _checksum
from tests.cli.driving import SCRIPT

from .folders import make_run


def read(folder: Path) -> Any:
    """The folder as TensorBoard itself sees it."""
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard to read what was written"
    )
    seen = module.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    seen.Reload()
    return seen


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in read(folder).Scalars(tag)]


def test_the_checksum_is_that_of_castagnoli() -> None:
    crc = int.from_bytes(_checksum(b"123456789"), "little")
    crc = (crc - 0xA282EAD8) & 0xFFFFFFFF
    assert (crc >> 17 | crc << 15) & 0xFFFFFFFF == 0xE3069283


@pytest.mark.all
def test_stock_tensorboard_reads_it(tmp_path: Path) -> None:
    events = EventFile(tmp_path)
    events.scalars(1, 100.5, {"loss": 0.5, "näme <b>": math.inf})
    events.scalars(300, 101.5, {"loss": math.nan})
    events.scalars(1 << 40, 102.5, {"loss": 1e300})
    events.text(7, 103.5, "faults", "F006 cuda:0 was lost")
    events.close()
    seen = read(tmp_path)
    assert [(e.step, e.wall_time) for e in seen.Scalars("loss")] == [(1, 100.5), (300, 101.5), (1 << 40, 102.5)]
    assert math.isnan(seen.Scalars("loss")[1].value) and seen.Scalars("näme <b>")[0].value == math.inf
    assert seen.Tensors("faults")[0].tensor_proto.string_val[0] == b"F006 cuda:0 was lost"
    assert os.listdir(tmp_path) and all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


def test_a_step_that_comes_again_is_written_once(tmp_path: Path) -> None:
    events = EventFile(tmp_path)
    for step in (1, 2, 3, 2, 3, 4):
        events.scalars(step, 0.0, {"loss": step / 2})
    events.close()
    assert scalars(tmp_path, "loss") == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]


def test_steps_that_were_taken_back_are_dropped(tmp_path: Path) -> None:
    events = EventFile(tmp_path)
    for step in range(1, 9):
        events.scalars(step, 0.0, {"loss": 9.0})
    events.taken_back(4, 0.0)
    for step in range(5, 7):
        events.scalars(step, 0.0, {"loss": 1.0})
    events.close()
    assert scalars(tmp_path, "loss") == [(1, 9.0), (2, 9.0), (3, 9.0), (4, 9.0), (5, 1.0), (6, 1.0)]


def test_a_full_disk_costs_the_numbers_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    events = EventFile(tmp_path / "file" / "tb")
    events.scalars(1, 0.0, {"loss": 1.0})
    events.text(1, 0.0, "faults", "x")
    events.close()
    assert isinstance(events.problem, OSError)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_what_was_cut_short_ends_a_file_and_another_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard_file, "_numbers", itertools.count(9))  # the ninth file of a process, and the tenth
    events = EventFile(tmp_path)
    events.scalars(1, 0.0, {"loss": 1.0})
    assert events._file is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, events._file.fileno())  # from here on the disk takes nothing
    os.close(full)
    events.scalars(2, 0.0, {"loss": 2.0})
    assert isinstance(events.problem, OSError)
    events.scalars(3, 0.0, {"loss": 3.0})
    events.close()
    assert len(os.listdir(tmp_path)) == 2
    assert scalars(tmp_path, "loss") == [(1, 1.0), (3, 3.0)]


def test_the_files_of_one_second_are_read_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ninth and the tenth of a process, too: TensorBoard goes by their names."""
    monkeypatch.setattr(tensorboard_file, "_numbers", itertools.count(8))
    monkeypatch.setattr(tensorboard_file, "clock", SimpleNamespace(time=lambda: 1_800_000_000.0))
    for step in range(1, 5):
        events = EventFile(tmp_path)
        events.scalars(step, 0.0, {"loss": float(step)})
        events.close()
    assert len(os.listdir(tmp_path)) == 4
    assert scalars(tmp_path, "loss") == [(step, float(step)) for step in range(1, 5)]


def test_an_old_run_can_be_turned_into_event_files(tmp_path: Path) -> None:
    run = reader.open(make_run(tmp_path, "FINISHED").path, cached=False)
    tensorboard.write(run, run.path / "tb")
    tensorboard.write(run, run.path / "tb")
    seen = read(run.path / "tb")
    assert [each.step for each in seen.Scalars("train_loss")] == list(range(100, 2000, 100))
    assert seen.Tensors("faults")[0].tensor_proto.string_val[0].startswith(b"F005 cuda:0 stopped answering")


def wait_for(path: Path, step: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for beat in path.glob("*/beat.json"):
            said: dict[str, Any] = json.loads(beat.read_text() or "{}")
            if said.get("step", 0) >= step:
                return said
        assert process.poll() is None, "it ended early"
        time.sleep(0.05)
    raise AssertionError("no progress")


@pytest.mark.long
def test_a_run_that_is_killed_and_resumed_never_goes_back(tmp_path: Path) -> None:
    """A real run: its worker is killed, then its supervisor, then it is resumed to its end."""
    (tmp_path / "job.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "holdfast.cli.main"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    first = subprocess.Popen([*words, "train", "job.py", "epochs=40", "nap=0.02"], **quiet)  # type: ignore[call-overload]
    beat = wait_for(tmp_path / "runs", 24, first)
    os.kill(beat["pid"], signal.SIGKILL)
    wait_for(tmp_path / "runs", beat["step"] + 24, first)
    first.kill()
    first.wait()
    subprocess.run([*words, "resume", "latest"], check=True, timeout=100, **quiet)  # type: ignore[call-overload]
    (folder,) = (tmp_path / "runs").iterdir()
    logged = reader.open(folder, cached=False)
    assert logged.state == "FINISHED" and logged.faults_total >= 1
    for tag in ("train_loss", "valid_loss"):
        steps = [step for step, _ in scalars(folder / "tb", tag)]
        assert steps == [8 * (epoch + 1) for epoch in range(40)]
        values = dict(scalars(folder / "tb", tag))
        assert all(values[int(step)] == pytest.approx(value, rel=1e-5) for step, value in logged.metrics[tag])
    faults = [each.tensor_proto.string_val[0] for each in read(folder / "tb").Tensors("faults")]
    assert any(b"SIGKILL" in words for words in faults)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped here")
def test_numbers_in_the_mail_of_a_supervisor_that_is_killed_are_written_by_the_next(tmp_path: Path) -> None:
    """The worker goes on for some epochs while nobody reads what it logs; then its supervisor is killed."""
    (tmp_path / "job.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "holdfast.cli.main"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    first = subprocess.Popen([*words, "train", "job.py", "epochs=30", "nap=0.02"], **quiet)  # type: ignore[call-overload]
    wait_for(tmp_path / "runs", 24, first)
    first.send_signal(signal.SIGSTOP)
    (folder,) = (tmp_path / "runs").iterdir()
    before = {record["step"] for record in RunFolder.open(folder).metrics()}
    time.sleep(1.0)
    first.kill()
    first.wait()
    subprocess.run([*words, "resume", "latest"], check=True, timeout=100, **quiet)  # type: ignore[call-overload]
    run = RunFolder.open(folder)
    resumed = max(event.data["step"] for event in run.events() if event.kind == "start")
    assert resumed >= max(before) + 8, "no epoch ended while nobody listened: this test shows nothing"
    every = [8 * (epoch + 1) for epoch in range(30)]
    for tag in ("train_loss", "valid_loss"):
        assert sorted(record["step"] for record in run.metrics() if tag in record) == every
        assert [step for step, _ in scalars(folder / "tb", tag)] == every


@pytest.mark.long
def test_it_can_be_turned_off(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "holdfast.cli.main", "train", "job.py", "epochs=1", "run.tensorboard=false"]
    subprocess.run(words, check=True, cwd=tmp_path, capture_output=True, timeout=100)
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "tb").exists() and (folder / "metrics.jsonl").exists()
