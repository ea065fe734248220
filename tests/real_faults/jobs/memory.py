"""The job on a pretend device whose memory is small for a while, or never large enough for one batch."""

from __future__ import annotations

from typing import Any

import torch
from job import BATCH, Job

import holdfast
from holdfast.injection.pretend import PretendMemory


def train(
    session: holdfast.Session,
    *,
    epochs: int = 3,
    fits: int = BATCH,
    first: int = 1,
    last: int = 0,
    never: int = 0,
    norm: str = "none",
    dropout: float = 0.0,
) -> None:
    """From step `first` to step `last` there is room for `fits` samples; the batch of step `never` never fits."""
    job = Job(session, norm=norm, dropout=dropout)
    memory = PretendMemory(session, BATCH)

    def loss(batch: Any) -> torch.Tensor:
        step = session.step_count + 1
        memory.samples = 0 if step == never else fits if first <= step <= last else BATCH
        memory.hold(batch)
        return job.loss(batch)

    for _ in session.epochs(epochs):
        for batch in session.batches(job.data):
            session.step(loss, batch)
            job.after(batch)
