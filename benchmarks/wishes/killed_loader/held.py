"""The same with a session and its loader; started by `holdfast train`."""

from shared import BATCH, EPOCHS, Faulty, finish, learner, update

import holdfast


def train(session: holdfast.Session) -> None:
    model, optimizer = learner()
    loader = holdfast.Loader(Faulty(), batch_size=BATCH, num_workers=2, pin_memory=True)
    session.protect(model, optimizer, loader)
    for _ in session.epochs(EPOCHS):
        for x, y in session.batches(loader):
            update(model, optimizer, x, y)
    finish(model)
