"""The loss an epoch had, also if a worker died in the middle of it.

    losses = Losses(20)                          # the mean of the last twenty; protect it as any other state
    for epoch in session.epochs(10):
        losses.begin(epoch)                      # forgets the epoch before, and keeps this one's after a restart
        for batch in session.batches(data):
            losses.add(session.step(compute, batch))
        session.log(train_loss=losses.mean())

A list in the loop would be empty after a restart, and the mean that of the rest of the epoch. Nothing waits for the
device before `mean`.
"""

from __future__ import annotations

from typing import Any

import torch

import holdfast


class Losses:
    """The last ones of one epoch, on the device they came from."""

    def __init__(self, most: int) -> None:
        self._ring = torch.zeros(max(1, most))
        self._count = 0
        self._epoch = -1
        self._last: holdfast.Loss | None = None

    def begin(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._count = epoch, 0

    def add(self, loss: holdfast.Loss) -> None:
        if self._ring.device != loss.tensor.device:
            self._ring = self._ring.to(loss.tensor.device)
        self._ring[self._count % len(self._ring)] = loss.tensor
        self._count += 1
        self._last = loss

    def mean(self) -> float:
        """NaN if there were none."""
        if self._last is not None:
            self._last.item()  # waits as a step does: a kernel that hangs is found as soon as in any other
        return float(self._ring[: min(self._count, len(self._ring))].mean())

    def state_dict(self) -> dict[str, Any]:
        return {"ring": self._ring, "count": self._count, "epoch": self._epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ring, self._count, self._epoch = state["ring"].clone(), int(state["count"]), int(state["epoch"])
