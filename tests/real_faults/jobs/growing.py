"""The job with a memory of its own that grows once, far beyond the slots of the first steps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from job import BATCH, Augmented, Witness, make_model
from torch.nn.functional import cross_entropy

import holdfast

LARGE = 1 << 20


class Attic:
    """Tensors as a script may collect them: a replay buffer, a queue of keys."""

    def __init__(self) -> None:
        self.kept = torch.zeros(8)

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"].clone()


def train(
    session: holdfast.Session, *, epochs: int = 3, step: int = 10, pause: float = 0.0, wait: bool = False
) -> None:
    """`step`: the one from which on there is more. `wait`: in the first copy of it, for a file named `go`."""
    attic = Attic()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = holdfast.Loader(Augmented(), batch_size=BATCH, shuffle=True)
    witness = Witness(session)
    session.protect(model=model, optimizer=optimizer, data=data, attic=attic)

    def loss(batch: Any) -> torch.Tensor:
        x, y, index = batch
        witness.saw(index)
        time.sleep(pause)
        return cross_entropy(model(x), y)

    if wait:
        wait_in_large_copies(session.run.folder)
    for epoch in session.epochs(epochs):
        for batch in session.batches(data):
            session.step(loss, batch)
            if session.step_count == step:
                attic.kept = torch.rand(LARGE)
        session.log(valid_loss=epoch)  # the first epoch is the best one


def wait_in_large_copies(folder: Path) -> None:
    """The slots are there and nothing is in them yet: a moment too short to be met from outside."""
    copy = torch._foreach_copy_

    def slowly(to: list[torch.Tensor], sources: list[torch.Tensor], *, non_blocking: bool = False) -> None:
        if any(source.numel() >= LARGE for source in sources) and not (folder / "go").exists():
            (folder / "growing").write_text(str(os.getpid()))
            while not (folder / "go").exists():
                time.sleep(0.01)
        copy(to, sources, non_blocking=non_blocking)

    torch._foreach_copy_ = slowly
