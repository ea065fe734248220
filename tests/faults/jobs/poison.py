"""The job with one sample that always ends, or always stops, the loader child that reads it."""

from __future__ import annotations

import os
import time

import job
import torch

import holdfast


class Poisoned(job.Augmented):
    def __init__(self, how: str) -> None:
        self.how = how

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        if index == 13 and self.how == "exit":
            os._exit(9)
        if index == 13 and self.how == "sleep":
            time.sleep(1000)
        if index == 13 and self.how == "raise":
            raise KeyError("sample 13 has no label")
        return super().__getitem__(index)


def train(session: holdfast.Session, *, how: str = "exit", workers: int = 2) -> None:
    model = job.make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    data = holdfast.Loader(Poisoned(how), batch_size=job.BATCH, num_workers=workers)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(1):
        for batch in session.batches(data):
            session.step(lambda b: torch.nn.functional.cross_entropy(model(b[0]), b[1]), batch)
