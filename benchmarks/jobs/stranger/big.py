"""A large state behind cheap steps: 100 square layers and AdamW, 2 GB in 300 tensors; `width=2560` makes it 8 GB."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from windows import Windows, arguments

import holdfast


def layers(count: int, width: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def points(count: int, width: int) -> TensorDataset:
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, 2.0 * x)


def train(
    session: holdfast.Session,
    *,
    times: str = "",
    steps: int = 30,
    count: int = 100,
    width: int = 1280,
    batch: int = 4,
    window: int = 1,
) -> None:
    model = layers(count, width).to(session.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = holdfast.Loader(points(steps * batch, width), batch_size=batch, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    windows = Windows(times, session.device, window)
    for _ in session.epochs(1):
        for samples in session.batches(data):
            session.step(lambda b: mse_loss(model(b[0]), b[1]), samples)
            windows.step()


def bare(*, device: str, times: str, steps: int, count: int, width: int, batch: int, window: int) -> None:
    where = torch.device(device)
    model = layers(count, width).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    windows = Windows(times, where, window)
    for x, y in DataLoader(points(steps * batch, width), batch_size=batch, shuffle=True):
        optimizer.zero_grad()
        mse_loss(model(x.to(where)), y.to(where)).backward()
        optimizer.step()
        windows.step()


if __name__ == "__main__":
    bare(**arguments(device="cpu", times="", steps=30, count=100, width=1280, batch=4, window=1))
