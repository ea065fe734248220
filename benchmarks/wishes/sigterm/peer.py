"""goodfire-ai/spd#677, reduced: a flag that the signal sets, looked at between steps; warm-up, evaluation, compile."""

import os
import signal
import time

import torch
from shared import BATCH, HERE, Numbered, network

LONG = 6.0
asked = False


def stop(*_: object) -> None:
    global asked
    asked = True


def place(name: str) -> None:
    """Long work that looks at no flag; the driver sends its SIGTERM in the one it is told of."""
    if name == os.environ.get("WISH_PLACE"):
        (HERE / "there").touch()
    until = time.monotonic() + (LONG if name == os.environ.get("WISH_PLACE") else 0.1)
    while time.monotonic() < until:
        torch.randn(64, 64) @ torch.randn(64, 64)


signal.signal(signal.SIGTERM, stop)
model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Numbered(), batch_size=BATCH, shuffle=True)
place("warm-up")
step = 0
for epoch in range(200):
    for x, y in loader:
        if epoch == 1 and step == 10:
            place("compile")
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if asked:
            torch.save({"model": model.state_dict(), "step": step}, HERE / "saved.pt")
            raise SystemExit(75)
    if epoch == 1:
        place("evaluation")
