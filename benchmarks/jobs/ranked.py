"""A job for several ranks: dropout, running means and random augmentation, about a tenth of a second a step."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast


class Points(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.randn(32, generator=torch.Generator().manual_seed(index))
        return x + 0.1 * torch.randn(32), (x.sum() > 0).long(), index


def train(session: holdfast.Session, epochs: int = 10, pause: float = 0.1, seen: str = "") -> None:
    """`seen` is a folder: each rank notes there which samples it had in each step."""
    model = nn.Sequential(
        nn.Linear(32, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(),
        nn.Linear(128, 2),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    data = holdfast.Loader(Points(), batch_size=40, shuffle=True)
    session.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    for _ in session.epochs(epochs):
        for batch in session.batches(data):
            session.step(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), batch)
            if seen:
                with open(Path(seen, f"rank{session.rank}.jsonl"), "a") as file:
                    file.write(json.dumps([session.step_count, batch[2].tolist()]) + "\n")
            time.sleep(pause)
        scheduler.step()
        with session.evaluating():
            x = torch.stack([Points()[index][0] for index in range(20)])
            session.log(valid_mean=float(model(x).mean()))


if __name__ == "__main__":
    holdfast.main(train)
