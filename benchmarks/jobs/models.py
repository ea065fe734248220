"""The models the benchmarks train: the transformer of the EEG project and larger cousins."""

from __future__ import annotations

import torch
from torch import nn


class Windows(nn.Module):
    """Windows of 129 channels x 1000 samples: projection, positions, transformer, mean, head. About 550K parameters."""

    def __init__(
        self, channels: int = 129, length: int = 1000, width: int = 128, layers: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.project = nn.Conv1d(channels, width, kernel_size=1)
        self.positions = nn.Parameter(torch.zeros(1, length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.project(x).transpose(1, 2) + self.positions
        return self.head(self.encoder(tokens).mean(dim=1)).squeeze(-1)


SIZES = {
    "tiny": {"channels": 8, "length": 32, "width": 32, "layers": 1, "heads": 2},
    "550k": {"channels": 129, "length": 1000, "width": 128, "layers": 2, "heads": 4},
    "3m": {"channels": 129, "length": 250, "width": 256, "layers": 4, "heads": 8},
    "100m": {"channels": 129, "length": 256, "width": 768, "layers": 15, "heads": 12},
}
"""By what they are called; a result says how many parameters the model has: 541K, 3.3M, 106.6M. tiny: smoke tests."""
BATCHES = {"tiny": 8, "550k": 8, "3m": 64, "100m": 32}


def make(size: str) -> Windows:
    return Windows(**SIZES[size])
