"""A job of short steps for counting faults and watching the supervisor: dropout, AdamW, a scheduler, augmentation.

holdfast train benchmarks/jobs/small.py epochs=10
"""

from __future__ import annotations

import torch
from torch import nn

import holdfast


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1600

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        own = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=own) + 0.1 * torch.randn(16), index % 4


def train(session: holdfast.Session, *, epochs: int = 10, batch: int = 16, width: int = 32) -> None:
    model = nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    data = holdfast.Loader(Data(), batch_size=batch, shuffle=True)
    session.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    for _ in session.epochs(epochs):
        for samples in session.batches(data):
            session.step(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), samples)
            scheduler.step()


if __name__ == "__main__":
    holdfast.main(train)
