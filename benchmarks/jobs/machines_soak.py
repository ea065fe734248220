"""A job for benchmarks/machines_soak.py: a small network, and a pause in each step in place of a device that computes.

Every rank writes which samples it was given, with the number of its group, and rank 0 the time after each step.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast


class Numbers(torch.utils.data.Dataset[Any]):
    """Each sample says which one it is."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index % 7), 1.0]), index


def train(session: holdfast.Session, seen: str, pause: float = 0.2, batch: int = 64) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = holdfast.Loader(Numbers(), batch_size=batch, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(1):
        for x, index in session.batches(data):
            time.sleep(pause)
            session.step(lambda part: model(part[0]).square().mean(), (x, index))
            step = session._position.step
            with open(Path(seen, f"part-{session.run.generation}-{session.rank}.txt"), "a") as file:
                file.write(f"0 {step} {' '.join(map(str, index.tolist()))}\n")
            if session.rank == 0:
                with open(Path(seen, "times.txt"), "a") as file:
                    file.write(f"{step} {time.monotonic()}\n")
