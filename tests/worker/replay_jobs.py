"""A step of a small network to be computed again, and a clock that moves when told to.

    job = Job()
    job.replay.compute(job.loss, job.batch)    # the numbers of the step; job.everything() is as it was
    Sentinel(job.replay, DEVICE, SentinelSettings(), clock=Clock()).check(job.work)

Shared by the tests of the replay, the sentinel and the inquiry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.injection.pretend import DEVICE
from holdfast.state.rng import capture_rng
from holdfast.worker.replay import CPU, Replay
from holdfast.worker.step import Work


class Net(nn.Module):
    """Convolution, batch statistics, dropout, a recurrent layer: what a replay must take care of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.recur = nn.GRU(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.norm(self.first(x))))
        return self.head(self.recur(x.transpose(1, 2))[0].mean(dim=1))


class Job:
    """A step of a small network, as a session holds it."""

    def __init__(self, size: int = 12) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.replay = Replay({"model": self.model}, home=DEVICE)
        self.batch = [torch.randn(size, 3, 10), torch.arange(size) % 5]
        self.work = Work(self.loss, self.batch, [self.optimizer], None, None, 1, None)

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def everything(self) -> list[Tensor]:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [*self.model.state_dict().values(), *gradients, *capture_rng(CPU)[0].values()]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now
