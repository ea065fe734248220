"""A convolutional net with BatchNorm, about 11 million parameters, bf16 on a GPU, channels_last."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from windows import Windows, arguments

import holdfast


def make(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for stage, deep in enumerate((4, 4, 4, 4)):
        for at in range(deep):
            out = width << stage
            layers += [nn.Conv2d(channels, out, 3, 2 if stage and not at else 1, 1, bias=False), nn.BatchNorm2d(out)]
            layers += [nn.ReLU()]
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def images(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(count, 3, 32, 32, generator=generator), torch.randint(10, (count,), generator=generator)
    )


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        return cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y)


def train(
    session: holdfast.Session,
    *,
    times: str = "",
    epochs: int = 5,
    count: int = 12800,
    batch: int = 256,
    width: int = 64,
    window: int = 10,
) -> None:
    model = make(width).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = holdfast.Loader(images(count), batch_size=batch, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    windows = Windows(times, session.device, window)
    for _ in session.epochs(epochs):
        for samples in session.batches(data):
            loss = session.step(lambda b: loss_of(model, *b), samples)
            windows.step()
        session.log(train_loss=loss)


def bare(*, device: str, times: str, epochs: int, count: int, batch: int, width: int, window: int) -> None:
    where = torch.device(device)
    model = make(width).to(where, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = DataLoader(images(count), batch_size=batch, shuffle=True)
    windows = Windows(times, where, window)
    for _ in range(epochs):
        for x, y in data:
            optimizer.zero_grad()
            loss = loss_of(model, x.to(where), y.to(where))
            loss.backward()
            optimizer.step()
            windows.step()
        print(float(loss))


if __name__ == "__main__":
    bare(**arguments(device="cpu", times="", epochs=5, count=12800, batch=256, width=64, window=10))
