"""The same with a session and its loader; started by `holdfast train`."""

import os
import signal

import torch
from shared import BATCH, EPOCHS, Numbered, finish, network, once

import holdfast


class Dies(Numbered):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 37 and once("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def train(session: holdfast.Session) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = holdfast.Loader(Dies(), batch_size=BATCH, num_workers=2, pin_memory=True)
    session.protect(model, optimizer, loader)
    for _ in session.epochs(EPOCHS):
        for x, y in session.batches(loader):
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finish(model)
