"""The job with one sample that kills, hangs or raises; without shuffling it is in batch 1 of each epoch.

`how="none"` is the same job with a good sample; `without` leaves samples out from the start.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import time

import job
import numpy
import torch
from torch.utils.data import Subset

import holdfast
from holdfast.injection import endless

BAD = 13


class Poisoned(job.Augmented):
    def __init__(self, how: str, slow: float = 0.0) -> None:
        self.how = how
        self.slow = slow
        self.onsets = [float("nan") if index == BAD else float(index) for index in range(job.SAMPLES)]

    def source(self, index: int) -> str:
        return f"sub-NDAR{index:03d}/eeg/sub-NDAR{index:03d}_task-RestingState_eeg.set"

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        if index == 0:
            time.sleep(self.slow)
        if index == BAD and self.how == "exit":
            os._exit(9)
        if index == BAD and self.how == "segfault":
            ctypes.string_at(0)
        if index == BAD and self.how == "hang":
            endless.in_python()
        if index == BAD and self.how == "raise":
            raise KeyError("sample 13 has no label")
        if index == BAD and self.how == "huge":  # a damaged header
            numpy.empty(1 << 50, dtype=numpy.uint8)
        if index == BAD and self.how == "short":  # a file that was cut off
            pickle.loads(b"")
        if self.how == "all":
            raise KeyError("no sample has a label")
        if self.how == "events":  # what really happened: an event table without a number where one should be
            numpy.arange(self.onsets[index], self.onsets[index] + 1.0, 0.25)
        return super().__getitem__(index)


def train(
    session: holdfast.Session,
    *,
    how: str = "exit",
    workers: int = 2,
    epochs: int = 1,
    without: bool = False,
    score: str = "none",
    slow: float = 0.0,
) -> None:
    """`score`: "strict" or "missing", an evaluation over the same data by a loader of its own; `slow`: of sample 0."""
    model = job.make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    samples = Subset(Poisoned("none" if score != "none" else how, slow), range(job.SAMPLES))
    data = holdfast.Loader(samples, batch_size=job.BATCH, num_workers=workers)
    valid = holdfast.Loader(Poisoned(how), 8, num_workers=workers, allow_missing=score == "missing")
    diary = job.Diary()
    session.protect(model=model, optimizer=optimizer, data=data, diary=diary)
    if without and not session.run.resumed:
        data.leave_out([BAD], "told to", epoch=0, batch=1)
    for _ in session.epochs(epochs):
        for batch in session.batches(data):
            session.step(lambda b: torch.nn.functional.cross_entropy(model(b[0]), b[1]), batch)
            diary.samples += batch[2].tolist()
        if score != "none":
            with session.evaluating():
                seen = sum(len(batch[2]) for batch in valid)
                session.log(valid_seen=seen, valid_missing=len(valid.missing))
