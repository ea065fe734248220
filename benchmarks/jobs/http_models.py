"""Two models for benchmarks/http_stacks.py: one with small requests, one with requests of half a megabyte."""

from __future__ import annotations

import torch
from torch import nn


def policy() -> nn.Module:
    """A request of 1 kB."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).eval()


def recording() -> nn.Module:
    """A request of 129 channels x 1,000 samples, 516 kB."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(129, 32, 25, stride=10), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(256, 4)
    ).eval()
