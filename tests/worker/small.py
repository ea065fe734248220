"""A small dataset and small models, for the tests of what a loop may do with a session."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SAMPLES = 22


def dataset() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, 6, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)


def network() -> nn.Module:
    """Dropout draws random numbers, BatchNorm has buffers: both must be rolled back and resumed."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def deterministic() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}
