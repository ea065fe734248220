"""An MLP of about 100,000 parameters on data in memory, read sample by sample.

python benchmarks/jobs/stranger/mlp.py device=cuda:0 times=bare.txt
holdfast train benchmarks/jobs/stranger/mlp.py times=held.txt --device cuda:0
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset
from windows import Windows, arguments

import holdfast


class Points(Dataset):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        self.x = torch.randn(count, 64, generator=torch.Generator().manual_seed(1))
        self.y = self.x.sum(dim=1, keepdim=True)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def make(width: int, lr: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


def train(
    session: holdfast.Session,
    *,
    times: str = "",
    epochs: int = 12,
    count: int = 25600,
    batch: int = 256,
    width: int = 256,
    workers: int = 0,
    window: int = 50,
) -> None:
    model, optimizer = make(width, 1e-3)
    data = holdfast.Loader(Points(count), batch_size=batch, shuffle=True, num_workers=workers)
    session.protect(model=model, optimizer=optimizer, data=data)
    windows = Windows(times, session.device, window)
    for _ in session.epochs(epochs):
        for samples in session.batches(data):
            loss = session.step(lambda b: mse_loss(model(b[0]), b[1]), samples)
            windows.step()
        session.log(train_loss=loss)


def bare(
    *, device: str, times: str, epochs: int, count: int, batch: int, width: int, workers: int, window: int
) -> None:
    where = torch.device(device)
    model, _ = make(width, 1e-3)
    model.to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = DataLoader(Points(count), batch_size=batch, shuffle=True, num_workers=workers)
    windows = Windows(times, where, window)
    for _ in range(epochs):
        for x, y in data:
            optimizer.zero_grad()
            loss = mse_loss(model(x.to(where)), y.to(where))
            loss.backward()
            optimizer.step()
            windows.step()
        print(float(loss))


if __name__ == "__main__":
    bare(**arguments(device="cpu", times="", epochs=12, count=25600, batch=256, width=256, workers=0, window=50))
