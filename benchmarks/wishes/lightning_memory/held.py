"""The same step in a session; started by `holdfast train`. WISH_FAULT=memory is the small card."""

import os

import torch
from shared import BATCH, EPOCHS, Numbered, finish, network

import holdfast

FITS = 4


def train(session: holdfast.Session) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = holdfast.Loader(Numbered(), batch_size=BATCH)
    session.protect(model, optimizer, loader)

    def step(batch: list[torch.Tensor]) -> torch.Tensor:
        if len(batch[0]) > FITS and os.environ.get("WISH_FAULT") == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    for _ in session.epochs(EPOCHS):
        for batch in session.batches(loader):
            session.step(step, batch)
    finish(model)
