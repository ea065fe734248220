"""A job that writes no file of its own but prints at every step: only holdfast needs its run folder."""

from __future__ import annotations

import time

import torch
from torch.nn.functional import cross_entropy

import holdfast
from tests.real_faults.jobs.job import BATCH, CLASSES, FEATURES, Augmented, make_model


def train(session: holdfast.Session, *, epochs: int = 6, pause: float = 0.05) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = holdfast.Loader(Augmented(), batch_size=BATCH, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    for epoch in session.epochs(epochs):
        for batch in session.batches(data):
            loss = session.step(lambda b: cross_entropy(model(b[0]), b[1]), batch)
            print(f"step {session.step_count}", "x" * 200, flush=True)
            time.sleep(pause)
        with session.evaluating():
            x = torch.randn(16, FEATURES, generator=torch.Generator().manual_seed(epoch))
            session.log(train_loss=loss, valid_loss=float(cross_entropy(model(x), torch.arange(16) % CLASSES)))
