"""The job, slow and healthy: a long first step, long evaluations, steps of uneven length; or with one slow step."""

from __future__ import annotations

import time
from typing import Any

import torch
from job import Job

import holdfast

UNEVEN = (0.3, 0.03, 0.03, 0.15, 0.03, 0.3, 0.06, 0.03)
"""Seconds; ten to one."""


def train(
    session: holdfast.Session,
    *,
    epochs: int = 3,
    setup: float = 0.0,
    first: float = 0.0,
    evaluation: float = 0.0,
    around: float = 0.0,
    uneven: bool = False,
    step: int = 0,
    step_s: float = 0.0,
) -> None:
    """`step` takes `step_s` seconds; `around`: seconds before the batches of later epochs, and at the end."""
    for done in range(10):
        session.progress(done, 10, "preparing")
        time.sleep(setup / 10)
    job = Job(session)

    def loss(batch: Any) -> torch.Tensor:
        at = session.step_count
        pause = first if at == 0 else UNEVEN[at % len(UNEVEN)] if uneven else 0.0
        time.sleep(step_s if at + 1 == step else pause)
        return job.loss(batch)

    for epoch in session.epochs(epochs):
        time.sleep(around if epoch else 0.0)
        for batch in session.batches(job.data):
            session.step(loss, batch)
            job.after(batch)
        with session.evaluating():
            time.sleep(evaluation)
    time.sleep(around)
