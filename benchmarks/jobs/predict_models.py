"""Models for benchmarks/predict_by_hand.py, with the shape of one input. Their weights are random."""

from __future__ import annotations

import torch
from torch import nn

SHAPES = {
    "eeg_tempo": (129, 200),
    "braindecode_shallow": (129, 200),
    "torchvision_mobilenet": (3, 224, 224),
}


def eeg_tempo() -> nn.Module:
    """The net that `holdfast train eeg-challenge1` trains."""
    from holdfast.workloads.eeg import heads, models

    torch.manual_seed(0)
    backbone = models.build("tempo", channels=129, samples=200, rate=100.0)
    backbone.norm.fit(torch.randn(64, 129, 200))
    return heads.Net(backbone, heads.TimeHead(backbone, start=0.5, seconds=2.0)).eval()


def braindecode_shallow() -> nn.Module:
    from braindecode.models import ShallowFBCSPNet

    torch.manual_seed(0)
    return ShallowFBCSPNet(n_chans=129, n_outputs=2, n_times=200, sfreq=100).eval()


def torchvision_mobilenet() -> nn.Module:
    from torchvision.models import mobilenet_v3_small

    torch.manual_seed(0)
    return mobilenet_v3_small(weights=None).eval()
