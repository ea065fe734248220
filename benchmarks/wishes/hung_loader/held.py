"""The same with a session and its loader; started by `holdfast train`."""

import torch
from shared import BATCH, EPOCHS, Faulty, finish, network

import holdfast


def train(session: holdfast.Session) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = holdfast.Loader(Faulty(), batch_size=BATCH, num_workers=2)
    session.protect(model, optimizer, loader)
    for _ in session.epochs(EPOCHS):
        for x, y in session.batches(loader):
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finish(model)
