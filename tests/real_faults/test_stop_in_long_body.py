"""SIGTERM in the middle of long work of a worker: what it committed is on disk long before its patience is over."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.real_faults.driving import Command
from tests.waiting import wait_until

SCRIPT = """
import time
import torch

def train(session):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.protect(model=model, optimizer=optimizer)
    while session.step_count < 8:
        session.step(lambda b: model(b).square().mean(), torch.ones(1, 2))
        if session.step_count == 5:
            (session.run.folder / "busy").touch()
            time.sleep(600)
"""


@pytest.mark.all
def test_the_last_commit_is_saved_at_once(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(SCRIPT)
    runs = tmp_path / "runs"
    runs.mkdir()
    with Command(runs, "train", script, "--device", "cpu", "checkpoint.every=1h") as command:
        assert wait_until(lambda: any(runs.glob("*/busy")) or command.process.poll() is not None, 300.0)
        assert command.process.poll() is None, command.words()
        assert not any(command.folder.glob("checkpoints/000004"))
        command.signal(signal.SIGTERM)
        assert wait_until(lambda: (command.folder / "checkpoints" / "000004" / "digest.json").exists(), 300.0)
        assert command.process.poll() is None, "it still waits for the body to come to its end"
