"""Models for benchmarks/optimize.py: `holdfast optimize` takes them as module:factory."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import nn

from holdfast.workloads.eeg import heads, models


def transformer() -> nn.Module:
    """The EEG baseline as it was first written: 129 x 1000, a token per sample, dropout of attention; training mode."""
    torch.manual_seed(0)
    backbone = models.build(
        "transformer", channels=129, samples=1000, rate=500.0, attention_dropout=True, token_rate=0.0
    )
    if os.environ.get("HOLDFAST_BENCH_WINDOWS"):
        backbone.norm.fit(torch.from_numpy(np.load(os.environ["HOLDFAST_BENCH_WINDOWS"], allow_pickle=False)))
    return heads.Net(backbone, heads.ScalarHead(backbone)).train()
