"""Steps far faster than a save; the script keeps its own copy of the weights at each best value.

With `dies`, somebody is killed once, between the end of that epoch and the word about it (or right after its value was
logged, or before the word about its weights, then it is a step): its worker, or before that the supervisor too. With
`leave`, the loop is left after that epoch.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import torch

import holdfast

VALUES = [5.0, 4.0, 4.5, 3.0, 2.0, 2.5, 1.0, 1.5, 0.5, 0.7, 0.2, 0.9]


def train(
    session: holdfast.Session,
    *,
    epochs: int = 12,
    batch_size: int = 4,
    dies: int = -1,
    after: str = "epoch",
    who: str = "worker",
    pause: float = 0.0,
    leave: int = -1,
    steps: int = 0,
) -> None:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = holdfast.Loader(torch.utils.data.TensorDataset(torch.randn(96, 64)), batch_size=batch_size, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    if dies >= 0 and not (session.run.folder / "died").exists():
        _die_at_the_end_of(session, dies, after, who)
    while session.step_count < steps:  # a loop without epochs
        session.step(lambda b: model(b).square().mean(), torch.randn(4, 64))
        value = VALUES[session.step_count - 1]
        if value == min(VALUES[: session.step_count]):
            _keep(session, model)
        session.log(valid_loss=value)
    for epoch in session.epochs(0 if steps else epochs):
        for batch in session.batches(data):
            session.step(lambda b: model(b[0]).square().mean(), batch)
            time.sleep(pause)
        if VALUES[epoch] == min(VALUES[: epoch + 1]):
            _keep(session, model)
        session.log(valid_loss=VALUES[epoch])
        if epoch == leave:
            break
    if leave >= 0:
        torch.nn.init.zeros_(model.weight)  # what follows is not what was valued


def _keep(session: holdfast.Session, model: torch.nn.Linear) -> None:
    (session.run.folder / "mine.bin").write_bytes(model.weight.detach().numpy().tobytes())


def _die_at_the_end_of(session: holdfast.Session, epoch: int, after: str, who: str) -> None:
    link: Any = session._context.link
    send = link.send

    def die(message: Any) -> None:
        if message.kind == after and getattr(message, "epoch", message.step) == epoch:
            if message.kind == "log":
                send(message)
                time.sleep(0.5)  # it is heard
            (session.run.folder / "died").touch()
            if who == "both":
                os.kill(json.loads((session.run.folder / "run.json").read_text())["pid"], signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        send(message)

    link.send = die


if __name__ == "__main__":
    holdfast.main(train)
