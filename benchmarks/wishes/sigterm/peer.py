"""goodfire-ai/spd#677, reduced: a flag that the signal sets, looked at between steps; warm-up, evaluation, compile."""

import signal

import torch
from shared import BATCH, HERE, Numbered, learner, place, update

asked = False


def stop(*_: object) -> None:
    global asked
    asked = True


signal.signal(signal.SIGTERM, stop)
model, optimizer = learner()
loader = torch.utils.data.DataLoader(Numbered(), batch_size=BATCH, shuffle=True)
place("warm-up")
step = 0
for epoch in range(200):
    for x, y in loader:
        if epoch == 1 and step == 10:
            place("compile")
        update(model, optimizer, x, y)
        step += 1
        if asked:
            torch.save({"model": model.state_dict(), "step": step}, HERE / "saved.pt")
            raise SystemExit(75)
    if epoch == 1:
        place("evaluation")
