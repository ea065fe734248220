"""A batch whose rows are not its samples: the look for a bad number finds a row, and no sample is left out for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch, holdfast

class Graphs(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index): return torch.full((2, 3), float("nan") if index == 5 else 1.0)

def train(session: holdfast.Session) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = holdfast.Loader(Graphs(), batch_size=40, collate_fn=torch.cat)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(1):
        for nodes in session.batches(data):
            session.step(lambda part: model(part).square().mean(), nodes)
"""


@pytest.mark.all
def test_no_sample_is_left_out_for_a_row(tmp_path: Path) -> None:
    (tmp_path / "graphs.py").write_text(SCRIPT)
    words = ["train", "graphs.py", "--device", "cpu", "data.skip_bad=true", "run.folder=runs", "--json", "-q"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    printed = json.loads(said.stdout)
    assert said.returncode == 1 and printed["state"] == "FAILED", printed
    assert printed["receipt"]["samples_quarantined"] == 0, printed["receipt"]
    assert printed["error"]["message"].startswith("the data are at fault: rows 10, 11: "), printed["error"]
