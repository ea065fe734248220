"""2,000 parameters of 1 kB each: what is done for every tensor in every step shows here."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from windows import Windows, arguments

import holdfast


class Many(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.full((256,), 1.0 / count)) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.stack(list(self.scales)).sum(0)


def points(count: int) -> TensorDataset:
    x = torch.randn(count, 256, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, 2.0 * x)


def train(
    session: holdfast.Session,
    *,
    times: str = "",
    steps: int = 300,
    count: int = 2000,
    batch: int = 64,
    window: int = 20,
) -> None:
    model = Many(count)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = holdfast.Loader(points(steps * batch), batch_size=batch, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    windows = Windows(times, session.device, window)
    for _ in session.epochs(1):
        for samples in session.batches(data):
            session.step(lambda b: mse_loss(model(b[0]), b[1]), samples)
            windows.step()


def bare(*, device: str, times: str, steps: int, count: int, batch: int, window: int) -> None:
    where = torch.device(device)
    model = Many(count).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    windows = Windows(times, where, window)
    for x, y in DataLoader(points(steps * batch), batch_size=batch, shuffle=True):
        optimizer.zero_grad()
        mse_loss(model(x.to(where)), y.to(where)).backward()
        optimizer.step()
        windows.step()


if __name__ == "__main__":
    bare(**arguments(device="cpu", times="", steps=300, count=2000, batch=64, window=20))
