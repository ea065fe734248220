"""The same training in a session; started by `holdfast launch`, which starts both processes."""

import torch
from shared import BATCH, EPOCHS, Numbered, finish, learner, shown, slowly

import holdfast


def train(session: holdfast.Session) -> None:
    model, optimizer = learner()
    loader = holdfast.Loader(Numbered(), batch_size=BATCH, shuffle=True)
    session.protect(model, optimizer, loader)

    def loss(batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    for _ in session.epochs(EPOCHS):
        for batch in session.batches(loader):
            session.step(loss, batch)
            shown(session.rank)
            slowly()
    if session.rank == 0:
        finish(model)
