"""Pretraining without labels: parts of the window are hidden, and the backbone learns to fill them in.

    holdfast train eeg-pretrain                        on simulated EEG
    holdfast train eeg-pretrain data=cache epochs=30   on every window there is
    holdfast train eeg-challenge1 parent=RUN           goes on from there

Stretches of time are silenced in all channels at once, so neighbouring electrodes cannot give them away. The loss is
counted only where something was hidden. Subjects of the test release are not looked at, although nobody's label is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import holdfast
from holdfast.workloads.eeg import models
from holdfast.workloads.eeg.challenge1 import backbone_for
from holdfast.workloads.eeg.inputs import say, windows_for
from holdfast.workloads.eeg.splits import split
from holdfast.workloads.eeg.training import Plan, Samples, fit

SERVED_S = 2.0


class Filling(nn.Module):
    """A backbone that sees a window with holes, and one layer that says what was in them."""

    def __init__(self, backbone: Any, hidden_share: float = 0.4, stretch: int = 8) -> None:
        super().__init__()
        self.backbone = backbone
        self.hidden_share, self.stretch = hidden_share, stretch
        self.fill = nn.Conv1d(backbone.width, backbone.channels, 1)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        steps = self.backbone.steps
        pieces = (steps + self.stretch - 1) // self.stretch
        hidden = (torch.rand(len(x), 1, pieces, device=x.device) < self.hidden_share).float()
        hidden = hidden.repeat_interleave(self.stretch, dim=2)[:, :, :steps]
        wide = functional.interpolate(hidden, size=x.shape[2], mode="nearest")
        wanted = functional.adaptive_avg_pool1d(self.backbone.norm(x), steps)
        said = self.fill(self.backbone.sequence(x * (1.0 - wide)))
        error = functional.smooth_l1_loss(said.float(), wanted, reduction="none") * hidden
        return error.sum() / (hidden.sum() * x.shape[1]).clamp_min(1.0)


def train(
    session: holdfast.Session,
    *,
    data: str = "",
    model: str = "tempo",
    valid: str = "",
    test: str = "",
    pretrain_epochs: int = 3,
    batch: int = 64,
    lr: float = 3e-3,
    width: int = 0,
    dropout: float = 0.1,
    tune: bool = True,
    precision: str = "",
) -> None:
    """One run: windows, holes, training. Its backbone is what the other stages start from."""
    windows = windows_for(session, "pretrain", data)
    parts = split(windows.table, valid=valid, test=test)
    say(session, f"split {parts.how}")
    length = min(windows.samples, round(SERVED_S * windows.rate))
    backbone = backbone_for(windows, model, length, width, dropout)
    backbone.norm.fit(torch.from_numpy(windows.batch(np.sort(np.random.default_rng(0).permutation(parts.train)[:256]))))
    net = Filling(backbone)
    say(session, f"{model}: {models.parameters(net):,} parameters")

    def samples_of(rows: Any, augment: float) -> Samples:
        return Samples(windows, rows, np.zeros((len(rows), 1), np.float32), length=length, augment=augment)

    held_out = holdfast.Loader(samples_of(parts.valid, 0.0), batch_size=256)

    def check() -> dict[str, float]:
        torch.manual_seed(0)  # the same holes every time
        losses = [float(net.loss(x.to(session.device))) for x, *_ in held_out]
        return {"valid_loss": float(np.mean(losses))}

    plan = Plan(pretrain_epochs, batch, lr, patience=pretrain_epochs, tune=tune,
                fixed=(("precision", precision),) if precision else ())  # fmt: skip
    fit(session, net, samples_of(parts.train, 0.5), lambda net, batch: net.loss(batch[0]), check, plan)
