"""The job whose first worker, should it ever get beyond step 5, spoils everything it touches."""

from __future__ import annotations

import torch
from job import Job

import holdfast


def train(session: holdfast.Session, *, epochs: int = 3, pause: float = 0.0, ghost: bool = False) -> None:
    """`ghost`: the first worker is one. `pause`: seconds each step of the second one takes."""
    job = Job(session, pause=pause if session.run.generation == 1 else 0.0)
    for _ in session.epochs(epochs):
        job.diary.draw()
        for batch in session.batches(job.data):
            job.step(batch)
            if ghost and session.run.generation == 0 and session.step_count >= 5:
                with torch.no_grad():
                    next(iter(job.model.parameters())).add_(0.5)
        job.evaluate()
        job.diary.draw()
