"""Models for benchmarks/optimize.py: `holdfast optimize` takes them as module:factory."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.workloads.eeg import heads, models


def transformer() -> nn.Module:
    """The EEG baseline as it was first written: 129 x 1000, a token per sample, dropout of attention; training mode."""
    torch.manual_seed(0)
    backbone = models.build(
        "transformer", channels=129, samples=1000, rate=500.0, attention_dropout=True, token_rate=0.0
    )
    return heads.Net(backbone, heads.ScalarHead(backbone)).train()
