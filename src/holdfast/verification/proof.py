"""The short training of `holdfast verify`: a little of everything that real networks are made of, from a seed.

    holdfast train src/holdfast/verification/proof.py steps=60 --device cuda:0

Convolution, BatchNorm, attention, dropout, AdamW and a schedule: where kernels of unsupported cards go wrong most
often. It asks torch for the same bits each time, so that two runs can be compared; whether they are the same is a
result, not a condition.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import holdfast

CLASSES = 4


class Waves(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Noise with a wave in it, whose length is the class."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        own = torch.Generator().manual_seed(index)
        label = index % CLASSES
        wave = torch.sin(torch.arange(32) * (label + 1) * 0.4 + 6.28 * torch.rand((), generator=own))
        return wave.expand(8, 32) + 0.3 * torch.randn(8, 32, generator=own), label


class Listener(nn.Module):
    """Two convolutions, one layer of attention, a vote."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.hear = nn.Sequential(
            nn.Conv1d(8, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(), nn.Conv1d(width, width, 3, stride=2)
        )
        self.attend = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.vote = nn.Linear(width, CLASSES)

    def forward(self, waves: Tensor) -> Tensor:
        heard = self.hear(waves).transpose(1, 2)
        vote: Tensor = self.vote(self.attend(heard).mean(dim=1))
        return vote


def train(session: holdfast.Session, *, steps: int = 60, batch: int = 16) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = Listener()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    data = holdfast.Loader(Waves(10 * batch), batch_size=batch, shuffle=True)
    session.protect(model=model, optimizer=optimizer, schedule=schedule, data=data)
    for _ in session.epochs(math.ceil(steps / 10)):
        total = torch.zeros(())
        for samples in session.batches(data):
            loss = session.step(lambda b: cross_entropy(model(b[0]), b[1]), samples)
            schedule.step()
            total += float(loss) / 10
        session.log(train_loss=float(total))


if __name__ == "__main__":
    holdfast.main(train)
