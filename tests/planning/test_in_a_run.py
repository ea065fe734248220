"""The tuner in a supervised run: a candidate that takes the process down costs one worker and is not tried again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import os, signal
import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast
from holdfast.planning import measure
from holdfast.planning.choice import Choice, Knob


class Deadly(measure.Training):
    def knobs(self):
        return [Knob("precision", ("fp32", "bf16")), Knob("pieces", (1, 2))]

    def make(self, choice):
        if choice.precision == "bf16":
            os.kill(os.getpid(), signal.SIGKILL)  # a kernel that ends the process, as on a card that has no bf16
        return super().make(choice)


def loss_of(net, b):
    return nn.functional.mse_loss(net(b[0]), b[1])


def train(session):
    x = torch.randn(64, 8)
    samples = TensorDataset(x, x.sum(dim=1, keepdim=True))
    model = nn.Linear(8, 1)
    choice = measure.for_session(session, Deadly(model, loss_of, samples, batch=16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = holdfast.Loader(samples, batch_size=16, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    compute = choice.loss(lambda b: loss_of(model, b), session.device)
    for _ in session.epochs(3):
        for batch in session.batches(data):
            session.step(compute, batch, accumulate=choice.pieces)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.timeout(400)
def test_a_deadly_candidate_is_passed_over_by_the_next_worker(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "train", "job.py", "--json", "--device", "cpu"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["receipt"]["recoveries"] == 1 and result["receipt"]["steps"] == 12
    kept = json.loads((Path(result["folder"]) / "tuning.json").read_text())["cpu"]
    assert kept["choice"]["precision"] == "fp32"
    assert kept["rows"][0]["refused"] == "it ended an earlier worker"
    assert kept["trying"] is None
