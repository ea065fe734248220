"""A job that fails on the pretended device at one step, and whose replay on the CPU waits for something to happen.

`waits` names a file in the run folder: the process that computes the failed step on the CPU waits until it is there.
The worker leaves `passed-N` after each step, `failed-N` before it fails for the Nth time, and `trained` at its end.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import holdfast
from holdfast.injection.pretend import DEVICE
from tests.real_faults.jobs.doubt import CLASSES, FEATURES, Recordings


def train(
    session: holdfast.Session,
    *,
    epochs: int = 2,
    at: int = 5,
    times: int = 1,
    waits: str = "",
    label: bool = False,
    holds: str = "",
) -> None:
    """With `label`, the step fails in which sample 37 comes: its label is out of range.

    `holds` names a file as well: after three steps the worker waits for it.
    """
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = holdfast.Loader(Recordings("label" if label else "", 37), batch_size=8, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    folder = session.run.folder

    def loss(batch: Any) -> Tensor:
        x, y = batch
        if session.replaying and waits:
            wait_for(folder / waits)
            if waits == "trained":  # and the supervisor has said that it waits: else the CPU may be done before the end
                wait_for(folder / "journal.jsonl", "training is over")
        if session.device == DEVICE:
            bad = bool((y >= CLASSES).any()) if label else session.step_count + 1 == at
            failed = len(list(folder.glob("failed-*")))
            if bad and failed < times:
                (folder / f"failed-{failed + 1}").touch()
                ctypes.string_at(0)
            y = y.clamp(max=CLASSES - 1)  # what some devices make of it
        return nn.functional.cross_entropy(model(x), y)

    for _ in session.epochs(epochs):
        for batch in session.batches(data):
            session.step(loss, batch)
            (folder / f"passed-{session.step_count}").touch()
            if holds and session.step_count >= 3:
                wait_for(folder / holds)
    (folder / "trained").touch()


def wait_for(path: Path, words: str = "") -> None:
    """Until the file is there and has these words in it."""
    deadline = time.monotonic() + 300.0
    while not path.exists() or words not in path.read_text(encoding="utf-8", errors="replace"):
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.01)
