"""Trials in real processes: scripts that can be measured, and scripts that raise, crash, hang, or do not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.planning.measured_jobs import Bench, Job, Way
from holdfast.planning.measurement import MEASURED, PARTLY, Measurement
from holdfast.run.settings import Settings

HEAD = """\
import os, signal, time
import torch
import holdfast
from holdfast.injection.pretend import PretendMemory
from torch.utils.data import TensorDataset


def made(session, batch=8):
    x = torch.randn(64, 4)
    data = holdfast.Loader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    return model, data


def loss_of(model, b):
    return torch.nn.functional.mse_loss(model(b[0]), b[1])


"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """One for all: torch is imported once, and each trial is a fork. At the end nothing of it is left."""
    with Bench(10_000.0) as made:
        yield made
        servers = [host._server for host, _ in made._hosts.values() if host._server is not None]
    assert servers and all(server.poll() is not None for server in servers)
    assert not made._place.exists()


def tried(bench: Bench, folder: Path, body: str, *, seconds: float = 20.0, way: Way | None = None) -> Measurement:
    script = folder / "job.py"
    script.write_text(HEAD + textwrap.dedent(body), encoding="utf-8")
    job = Job("job", script, Settings().to_json())
    return bench.measure(job, way or Way("cpu", threads=1), seconds / bench.left_s)


@pytest.mark.all
def test_a_loop_is_cut_short_and_every_part_of_it_is_seen(bench: Bench, tmp_path: Path) -> None:
    found = tried(bench, tmp_path, """
        def train(session, epochs=50):
            time.sleep(0.2)
            model, data = made(session)
            for epoch in session.epochs(epochs):
                for batch in session.batches(data):
                    session.step(lambda b: loss_of(model, b), batch)
                    time.sleep(0.02)
                with session.evaluating():
                    time.sleep(0.1)
            time.sleep(0.3)
    """)  # fmt: skip
    assert found.status == MEASURED, found.why
    assert (found.epochs, found.batches, found.steps) == (50, 8, 400)
    assert found.steps_seen <= 16  # of 400
    assert found.step_s is not None and found.step_s >= 0.02
    assert found.setup_s is not None and found.setup_s >= 0.2
    assert found.between_s is not None and found.between_s >= 0.1
    assert found.closing_s is not None and found.closing_s >= 0.3
    assert found.save_s and found.state_bytes and found.memory_bytes
    assert found.took_s < 20.0


@pytest.mark.all
def test_an_epoch_that_is_one_transaction_is_the_unit(bench: Bench, tmp_path: Path) -> None:
    found = tried(bench, tmp_path, """
        def train(session):
            model, data = made(session)
            for epoch in session.epochs(30):
                session.transaction(lambda: time.sleep(0.05))
    """)  # fmt: skip
    assert (found.status, found.epochs, found.batches, found.steps) == (MEASURED, 30, None, 30)
    assert found.step_s is not None and found.step_s >= 0.05


def test_a_loop_without_epochs_is_measured_and_its_length_is_not_known(bench: Bench, tmp_path: Path) -> None:
    found = tried(bench, tmp_path, """
        def train(session):
            model, data = made(session)
            batch = next(iter(data))
            while session.step_count < 10_000:
                session.step(lambda b: loss_of(model, b), batch)
    """, seconds=6.0)  # fmt: skip
    assert (found.status, found.steps) == (PARTLY, None)
    assert found.step_s


def test_a_script_that_raises_says_what(bench: Bench, tmp_path: Path) -> None:
    found = tried(bench, tmp_path, """
        def train(session):
            model, data = made(session)
            for epoch in session.epochs(3):
                for batch in session.batches(data):
                    raise ValueError("no such column")
    """)  # fmt: skip
    assert not found.usable and found.raised
    assert "ValueError: no such column" in found.why and "job.py" in found.why


@pytest.mark.all
def test_a_first_step_that_never_ends_is_ended(bench: Bench, tmp_path: Path) -> None:
    found = tried(bench, tmp_path, f"""
        def train(session):
            model, data = made(session)
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            for epoch in session.epochs(3):
                for batch in session.batches(data):
                    session.step(lambda b: time.sleep(1000), batch)
    """, seconds=12.0)  # fmt: skip
    assert not found.usable and not found.raised
    assert "first step did not end" in found.why
    assert not processes.exists(int((tmp_path / "pid").read_text()))


@pytest.mark.all
def test_a_script_that_never_gets_to_a_step_is_ended(bench: Bench, tmp_path: Path) -> None:
    found = tried(bench, tmp_path, """
        def train(session):
            while True:
                time.sleep(1)
    """, seconds=3.0)  # fmt: skip
    assert "no step began" in found.why


def test_a_crash_is_a_result(bench: Bench, tmp_path: Path) -> None:
    found = tried(bench, tmp_path, """
        def train(session):
            model, data = made(session)
            for epoch in session.epochs(3):
                for batch in session.batches(data):
                    os.kill(os.getpid(), signal.SIGSEGV)
    """)  # fmt: skip
    assert not found.usable and "SIGSEGV" in found.why
    again = tried(bench, tmp_path, """
        def train(session):
            model, data = made(session)
            for epoch in session.epochs(1):
                for batch in session.batches(data):
                    session.step(lambda b: loss_of(model, b), batch)
    """)  # fmt: skip
    assert again.status == MEASURED  # the next one does not suffer from it


def test_a_script_without_a_step_is_told_so(bench: Bench, tmp_path: Path) -> None:
    found = tried(bench, tmp_path, """
        def train(session):
            pass
    """)  # fmt: skip
    assert found.why == "it ended before its first step"


def test_a_batch_that_does_not_fit_is_measured_in_pieces(bench: Bench, tmp_path: Path) -> None:
    found = tried(bench, tmp_path, """
        def train(session):
            model, data = made(session, batch=16)
            memory = PretendMemory(session, samples=4)
            for epoch in session.epochs(2):
                for batch in session.batches(data):
                    session.step(lambda b: memory.hold(b) or loss_of(model, b), batch)
    """, way=Way("pretend:0", threads=1))  # fmt: skip
    assert found.usable, found.why
    assert found.pieces == 4


@pytest.mark.all
def test_preparation_that_says_how_far_it_is_does_not_count(bench: Bench, tmp_path: Path) -> None:
    before = bench.spent_s
    found = tried(bench, tmp_path, """
        def train(session):
            for done in range(20):
                session.progress(done, 20, "reading")
                time.sleep(0.25)
            model, data = made(session)
            for epoch in session.epochs(2):
                for batch in session.batches(data):
                    session.step(lambda b: loss_of(model, b), batch)
    """, seconds=3.0)  # fmt: skip
    assert found.usable, found.why
    assert found.prepared_s > 4.0
    assert bench.spent_s - before < found.took_s - 4.0


def test_no_time_left_is_said(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(HEAD, encoding="utf-8")
    with Bench(0.5) as short:
        found = short.measure(Job("job", script, Settings().to_json()), Way("cpu"))
    assert not found.usable and "were over" in found.why


SLOW = """
import time

import torch
from torch import nn

import holdfast


def train(session: holdfast.Session, imgsz: int = 128, epochs: int = 2) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = holdfast.Loader(torch.utils.data.TensorDataset(torch.ones(64, 4)), batch_size=8)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(epochs):
        for (x,) in session.batches(data):
            time.sleep(1000 if imgsz > 100 else 0.01)
            session.step(lambda part: model(part).square().mean(), x)
"""


@pytest.mark.long
def test_a_job_that_is_too_slow_to_measure_leaves_time_for_a_smaller_one(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "plan", "slow.py", "--measure", "15s", "--device", "cpu", "--json", "-q"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "HOLDFAST_STATE": str(tmp_path / "state")},
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row["preset"]: row for row in json.loads(done.stdout)["options"] if row["where"].startswith("cpu")}
    small, whole = rows["imgsz 64"], rows["as asked"]
    assert small["time_s"] > 0 and small["basis"] == "measured"
    assert "first step did not end" in json.dumps(whole)
    assert whole["basis"] == "estimated" and small["time_s"] < whole["time_s"] < 5 * small["time_s"]  # 4 x the pixels
    assert whole["time_low_s"] < whole["time_s"] < whole["time_high_s"]
