"""The state of a small training to be written as a checkpoint, and damage to what was written.

    checkpoint.write(tmp_path, payload(), step=10)
    damage(tmp_path / "000010" / "state.safetensors", -1)
    newest_step(tmp_path)    # None: there is no other

Shared by the tests of checkpoints and of the weights alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from holdfast.state import checkpoint
from holdfast.state.protected import Protected
from tests.state.saving import CPU, save


class Net(nn.Module):
    """Tied weights, integer buffers, half precision: everything that has its own way of going wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.small = nn.Parameter(torch.randn(3, 2).to(torch.bfloat16))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(tokens))) + self.small.float().sum()  # type: ignore[no-any-return]


def trained(seed: int = 0) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randint(0, 11, (8,))).square().mean().backward()
        optimizer.step()
    return model, optimizer


def payload(seed: int = 0) -> memoryview:
    model, optimizer = trained(seed)
    return memoryview(save(Protected({"model": model, "optimizer": optimizer}, CPU)))


def damage(path: Path, offset: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ (1 << bit)]))


def newest_step(folder: Path) -> int | None:
    good, _ = checkpoint.newest_good(folder)
    return None if good is None else good.step
