"""A healthy run that looks unhealthy: a first step of 30 s, evaluations of 20 s, steps that vary tenfold.

holdfast train benchmarks/jobs/soak.py minutes=30
"""

from __future__ import annotations

import random
import time

import torch
from torch import nn

import holdfast


def train(session: holdfast.Session, *, minutes: float = 30.0, first: float = 30.0, evaluation: float = 20.0) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = holdfast.Loader(torch.utils.data.TensorDataset(torch.randn(512, 8)), batch_size=8, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    uneven = random.Random(5)
    ends = time.monotonic() + 60 * minutes

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        pause = first if session.step_count == 0 else 0.05 * 10 ** uneven.random()
        if session.step_count and uneven.random() < 0.005:
            pause = 4.0  # now and then something else has the machine
        time.sleep(pause)
        return model(batch[0]).square().mean()

    for _ in session.epochs(10**6):
        for batch in session.batches(data):
            session.step(loss_of, batch)
            if time.monotonic() > ends:
                return
        if uneven.random() < 0.3:
            with session.evaluating():
                time.sleep(evaluation)


if __name__ == "__main__":
    holdfast.main(train)
