"""Jobs for a card and the CPU beside it (benchmarks/cpu_and_gpu.py).

`mlp` has wide layers and much to exchange, `conv` computes much with few parameters, `read` has samples that take the
processor time to read. A step of each is the mean over its whole batch, so that parts of it can be added.
"""

from __future__ import annotations

import torch
from torch import nn

import holdfast


class Signals(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that have to be computed: the spectrum of a long signal."""

    def __init__(self, length: int, points: int) -> None:
        self.length, self.points = length, points

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randn(self.points, generator=torch.Generator().manual_seed(index))
        return torch.fft.rfft(drawn).abs()[:64], torch.tensor(index % 4)


def _job(kind: str, length: int, batch: int, width: int) -> tuple[nn.Module, torch.utils.data.Dataset[object]]:
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (length,), generator=draw)
    if kind == "conv":
        layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
        return model, torch.utils.data.TensorDataset(torch.randn(length, 3, 48, 48, generator=draw), labels)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
    if kind == "read":
        return model, Signals(length, 1 << 16)
    return model, torch.utils.data.TensorDataset(torch.randn(length, 64, generator=draw), labels)


def train(
    session: holdfast.Session,
    kind: str = "mlp",
    epochs: int = 100000,
    length: int = 2048,
    batch: int = 64,
    width: int = 256,
    double: bool = False,
    ddp: bool = False,
) -> None:
    torch.manual_seed(0)
    model, dataset = _job(kind, length, batch, width)
    model.to(session.device, torch.float64 if double else torch.float32)
    wrapped: nn.Module = model
    if ddp and torch.distributed.is_initialized():
        wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    data = holdfast.Loader(dataset, batch_size=batch, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)

    def loss(part: list[torch.Tensor]) -> torch.Tensor:
        x = part[0].double() if double else part[0]
        return nn.functional.cross_entropy(wrapped(x), part[1])

    for _ in session.epochs(epochs):
        for values in session.batches(data):
            session.step(loss, values)
