"""The same in a session; started by `holdfast train`, which is what the SIGTERM goes to."""

import torch
from shared import BATCH, Numbered, network, place

import holdfast


def train(session: holdfast.Session) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = holdfast.Loader(Numbered(), batch_size=BATCH, shuffle=True)
    session.protect(model, optimizer, loader)
    place("warm-up")
    for epoch in session.epochs(200):
        for x, y in session.batches(loader):
            if epoch == 1 and session.step_count == 10:
                place("compile")
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch == 1:
            place("evaluation")
