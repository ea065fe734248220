"""Two models that take turns in one transaction, an average updated before the step, and memory that runs out once."""

from __future__ import annotations

from typing import Any

import torch
from job import BATCH, Augmented, make_model
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel

import holdfast


def train(session: holdfast.Session, *, epochs: int = 2, fail: int = 0) -> None:
    """At step `fail` memory runs out between the two updates, once."""
    first, second = make_model(), make_model()
    average = AveragedModel(first)
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-2) for model in (first, second)]
    data = holdfast.Loader(Augmented(), batch_size=BATCH, shuffle=True)
    session.protect(first=first, second=second, average=average, one=optimizers[0], other=optimizers[1], data=data)
    failed = session.run.folder / "failed"

    def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        optimizer.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    for _ in session.epochs(epochs):
        for batch in session.batches(data):
            average.update_parameters(first)

            def turns(batch: Any = batch) -> None:
                update(first, optimizers[0], batch)
                if session.step_count + 1 == fail and not failed.exists():
                    failed.touch()
                    raise torch.OutOfMemoryError("out of memory between two updates")
                update(second, optimizers[1], batch)

            session.transaction(turns)
