"""A job with something wrong in it: in a sample, in the code, in the precision, or (see ailments) in the device.

A pretended device does with a label that is out of range what a real one does: it reports a sticky error, or hangs.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast
from holdfast.injection import endless
from holdfast.injection.pretend import DEVICE

COUNT, CLASSES, FEATURES = 64, 4, 12


class Recordings(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Samples with a name; one of them may be spoiled."""

    def __init__(self, bad: str, sample: int) -> None:
        source = torch.Generator().manual_seed(0)
        self.x = torch.randn(COUNT, FEATURES, generator=source)
        self.y = torch.randint(CLASSES, (COUNT,), generator=source)
        self.files = [f"sub-{index:02d}_eeg.set" for index in range(COUNT)]
        self.bad, self.sample = bad, sample
        if bad == "label":
            self.y[sample] = 99
        elif bad == "nan":
            self.x[sample, 3] = float("nan")
        elif bad == "huge":
            self.x[sample] = 3e38

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.bad == "bug" and index >= 0:
            raise KeyError("onset")
        if index == self.sample and self.bad == "events":  # an event table with a missing number
            np.arange(0.0, float("nan"))
        if index == self.sample and self.bad == "kills":
            ctypes.string_at(0)
        return self.x[index], self.y[index]


def train(
    session: holdfast.Session,
    *,
    epochs: int = 2,
    bad: str = "",
    sample: int = 37,
    shows_as: str = "error",
    code: str = "",
    at: int = 5,
    half: bool = False,
    scaler: float = 0.0,
    workers: int = 0,
    seed: int = 3,
    waits: str = "",
    until: str = "",
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = holdfast.Loader(Recordings(bad, sample), batch_size=8, shuffle=True, num_workers=workers)
    scaling = {"scaler": torch.amp.GradScaler("cpu", init_scale=scaler)} if scaler else {}
    session.protect(model=model, optimizer=optimizer, data=data, **scaling)

    def loss(batch: Any) -> Tensor:
        x, y = batch
        if session.device == DEVICE and bool((y >= CLASSES).any()):  # what a GPU makes of it
            if shows_as == "hang":
                endless.in_c()
            if shows_as == "crash":
                ctypes.string_at(0)
            raise RuntimeError("CUDA error: device-side assert triggered (a pretend device)")
        if code == "raises" and session.step_count + 1 >= at:
            raise ValueError("a bug in the script")
        if code == "crashes" and session.step_count + 1 >= at:
            ctypes.string_at(0)
        with torch.autocast("cpu", torch.float16, enabled=half):
            out = model(x)
            if half and not scaler and session.step_count + 1 >= at:
                out = (out * 1e6) @ torch.eye(CLASSES) / 1e6  # 65 504 is as far as fp16 goes
        if code == "log" and session.step_count + 1 >= at:
            return torch.log(out.sum() * 0.0)
        return nn.functional.cross_entropy(out.float(), y)

    for _ in session.epochs(epochs):
        for batch in session.batches(data):
            session.step(loss, batch)
            if scaler:
                session.log(scale=scaling["scaler"].get_scale())
            wait_for(session, waits)
            if until and said(session, until):
                return


def said(session: holdfast.Session, text: str) -> bool:
    """Whether the journal has it by now. The steps go on, slowly, until it has."""
    time.sleep(0.1)
    return text in (session.run.folder / "journal.jsonl").read_text()


def wait_for(session: holdfast.Session, waits: str) -> None:
    """ "12:probe passed,30:probe passed" waits after step 12 for the first in the journal, after 30 for the second."""
    for number, (step, text) in enumerate(wait.split(":") for wait in waits.split(",") if wait):
        if session.step_count == int(step):
            deadline = time.monotonic() + 150.0
            while (session.run.folder / "journal.jsonl").read_text().count(text) <= number:
                assert time.monotonic() < deadline, f"nobody said {text!r}"
                time.sleep(0.05)


if __name__ == "__main__":
    holdfast.main(train)
