"""Modules to optimize, as a user's file has them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.drop(torch.relu(self.first(x))))
        return found


class NotForOnnx(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = super().forward(x)[:, :, None] @ torch.ones(1, 2) + torch.eye(2)
        found: torch.Tensor = torch.linalg.matrix_exp(square).sum(dim=2)
        return found


class Constant(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 0 + 1.0


def small() -> nn.Module:
    torch.manual_seed(0)
    return Small()


def not_for_onnx() -> nn.Module:
    torch.manual_seed(0)
    return NotForOnnx()


def constant() -> nn.Module:
    return Constant()


def broken() -> nn.Module:
    raise KeyError("hidden_size")


class Tokens(nn.Module):
    """A transformer over the samples of a recording."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.enter, self.layers = nn.Linear(4, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.layers(self.enter(x.transpose(1, 2))).mean(dim=1))
        return found


def tokens() -> nn.Module:
    torch.manual_seed(0)
    return Tokens()


def smooth(count: int) -> np.ndarray:
    """For it: slow waves of four channels, 256 samples."""
    rng = np.random.default_rng(0)
    rate, phase, size = (rng.uniform(low, high, (count, 4, 1)) for low, high in ((0.5, 4), (0, 6), (0.2, 2)))
    waves: np.ndarray = (size * np.sin(2 * np.pi * rate * np.arange(256) / 256 + phase)).astype(np.float32)
    return waves
