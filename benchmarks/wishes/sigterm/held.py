"""The same in a session; started by `holdfast train`, which is what the SIGTERM goes to."""

from shared import BATCH, Numbered, learner, place, update

import holdfast


def train(session: holdfast.Session) -> None:
    model, optimizer = learner()
    loader = holdfast.Loader(Numbered(), batch_size=BATCH, shuffle=True)
    session.protect(model, optimizer, loader)
    place("warm-up")
    for epoch in session.epochs(200):
        for x, y in session.batches(loader):
            if epoch == 1 and session.step_count == 10:
                place("compile")
            update(model, optimizer, x, y)
        if epoch == 1:
            place("evaluation")
