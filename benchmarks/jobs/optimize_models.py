"""Models for benchmarks/optimize.py: `holdfast optimize` takes them as module:factory."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from holdfast.workloads.eeg import heads, models

WEIGHTS = "HOLDFAST_BENCH_WEIGHTS"
SHAPE: dict[str, Any] = {"channels": 129, "samples": 1000, "rate": 500.0, "token_rate": 0.0}


def transformer(attention_dropout: bool = True) -> nn.Module:
    """The EEG baseline as it was first written: 129 x 1000, a token per sample, dropout of attention; training mode.

    Its head has a weight for each moment: with a mean over the window it could not learn when something happened, and a
    score that is nothing cannot get worse.
    """
    torch.manual_seed(0)
    backbone = models.build("transformer", attention_dropout=attention_dropout, **SHAPE)
    net = heads.Net(backbone, heads.ScalarHead(backbone))
    if os.environ.get(WEIGHTS):
        from safetensors.torch import load_file

        net.load_state_dict(load_file(os.environ[WEIGHTS]))
    return net.train()


def train(windows: Any, targets: Any, steps: int, target: str, batch: int = 8) -> list[float]:
    """The same weights with the fast kernels, on a GPU where there is one; the losses.

    The head has 128,000 weights for a few hundred windows: it begins at zero and learns slower than the rest.
    """
    from safetensors.torch import save_file

    os.environ.pop(WEIGHTS, None)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = transformer(attention_dropout=False)
    x, y = torch.from_numpy(windows), torch.from_numpy(targets).float().reshape(-1, 1)
    net.backbone.norm.fit(x[:64])
    net.bias.fill_(float(y.mean()))  # what is left to learn is the deviation
    net.gain.fill_(float(y.std()))
    nn.init.zeros_(net.head.out.weight)
    nn.init.zeros_(net.head.out.bias)
    wanted = ((y - y.mean()) / y.std()).to(device)
    x, net = x.to(device), net.to(device)
    rates = [5e-4, 1.5e-5]
    groups = [{"params": net.backbone.parameters()}, {"params": net.head.parameters()}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=max(2, steps))
    order = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        rows = torch.randperm(len(x), generator=order)[:batch].to(device)
        loss = (net.plain(x[rows]) - wanted[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        rate.step()
        losses.append(float(loss.detach()))
    save_file({name: each.cpu().contiguous() for name, each in net.state_dict().items()}, target)
    return losses
