"""What is predicted from a backbone's features, how it is scored in training, and how it becomes seconds or factors.

    net = Net(backbone, TimeHead(backbone, start=0.5, seconds=2.0))      # Challenge 1: when in the window is the press?
    net = Net(backbone, ScalarHead(backbone))                            # the same question as plain regression
    net = Net(backbone, FactorsHead(backbone, ("externalizing",)))       # Challenge 2, with age and sex on the side
    net = Net(backbone, LabelHead(backbone, classes=3))                  # any label of any set
    net(x)                                                               # (batch, outputs): what a scorer wants
    net.head.loss(net.head.raw(net.backbone, x), targets)                # what training wants

Only torch is imported, see models.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    """A backbone, a head, and what was learned beside the weights: the last correction, and what training saw.

    An answer never leaves the range of the training labels. A window that holds no signal (zeros, NaN, flat, clipped)
    gets their mean.
    """

    backbone: Any
    head: Any
    gain: torch.Tensor
    bias: torch.Tensor
    lowest: torch.Tensor
    highest: torch.Tensor
    usual: torch.Tensor

    def __init__(self, backbone: Any, head: Any) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        for name, value in self._unlearned().items():
            self.register_buffer(name, torch.full((head.outputs,), value))

    @staticmethod
    def _unlearned() -> dict[str, float]:
        return {"gain": 1.0, "bias": 0.0, "lowest": -torch.inf, "highest": torch.inf, "usual": torch.nan}

    def learn_range(self, targets: torch.Tensor) -> None:
        """Smallest, largest and mean training label of each output; unknown labels (NaN) do not count."""
        for column in range(int(self.head.outputs)):
            known = targets[:, column][~targets[:, column].isnan()].float()
            if len(known):
                self.lowest[column], self.highest[column] = known.min(), known.max()
                self.usual[column] = known.mean()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        for name in self._unlearned():  # weights of earlier versions have no range
            state_dict.setdefault(prefix + name, getattr(self, name).detach().clone())
        super()._load_from_state_dict(state_dict, prefix, *more)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.settled(x, self.plain(x))

    def settled(self, x: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """An answer about `x` with the last correction, inside of what training saw."""
        found = found * self.gain + self.bias
        found = torch.minimum(torch.maximum(found, self.lowest), self.highest)
        norm = getattr(self.backbone, "norm", None)
        if norm is None:
            return found
        silent = ~has_signal(x, norm)[:, None] & ~self.usual.isnan()
        return torch.where(silent, self.usual.nan_to_num(), found)

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        """Without the last correction."""
        found: torch.Tensor = self.head.read(self.head.raw(self.backbone, x))
        return found

    def loss(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head.loss(self.head.raw(self.backbone, x), targets)
        return found


def has_signal(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """Whether at least half of the channels that moved in training move in each window, and are not at their ends.

    A channel does not count that is flat for its scale, stands at its own largest or smallest value half of the time,
    or lies beyond the clip of the norm half of the time.
    """
    scaled = torch.nan_to_num((x.float() - norm.centre[:, None]) * norm.gain[:, None], posinf=0.0, neginf=0.0)
    high, low = scaled.amax(dim=2, keepdim=True), scaled.amin(dim=2, keepdim=True)
    stuck = ((scaled == high) | (scaled == low)).float().mean(dim=2) > 0.5
    beyond = (scaled.abs() >= norm.limit).float().mean(dim=2) > 0.5
    flat = (high - low).squeeze(2) < 0.05  # of a typical deviation
    used = norm.gain != 0
    alive = (~(stuck | beyond | flat) & used).float().sum(dim=1)
    enough: torch.Tensor = alive * 2 >= used.float().sum()
    return enough


class Ensemble(nn.Module):
    """Several nets whose answers are averaged. Trained together, each on the samples that are not held out from it.

    `pooled`: what is averaged is their view of when, before it is read as a time: one that is sure counts more.
    """

    members: Any

    def __init__(self, members: list[nn.Module], *, pooled: bool = False) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.pooled = pooled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.pooled:
            raw = torch.stack([member.head.raw(member.backbone, x) for member in self.members]).mean(dim=0)
            return torch.stack([member.settled(x, member.head.read(raw)) for member in self.members]).mean(dim=0)
        return torch.stack([member(x) for member in self.members]).mean(dim=0)

    def loss(self, x: torch.Tensor, targets: torch.Tensor, fold: torch.Tensor | None = None) -> torch.Tensor:
        if fold is None:
            return torch.stack([member.loss(x, targets) for member in self.members]).mean()
        losses = []
        for number, member in enumerate(self.members):
            mine = fold != number
            if int(mine.sum()) > min(1, len(x) // 4):  # one sample has no statistics
                losses.append(member.loss(x[mine], targets[mine]))
        return torch.stack(losses).mean()


class TimeHead(nn.Module):
    """The press as a distribution over the samples of a window: trained against a bump there, read as its mean.

    Finding a moment is easier than weighing the whole window into one number, and the loss at every sample says
    where. `start` and `seconds` place the window after the stimulus.
    """

    times: torch.Tensor

    def __init__(
        self,
        backbone: Any,
        *,
        start: float = 0.5,
        seconds: float = 2.0,
        sigma: float = 0.12,
        vector_steps: int = 50,
    ) -> None:
        super().__init__()
        steps = int(backbone.steps)
        self.outputs = 1
        self.sigma = sigma
        self.vector = steps == 0
        steps = steps or vector_steps
        width = int(backbone.width)
        self.logits: nn.Module = nn.Linear(width, steps) if self.vector else nn.Conv1d(width, 1, 1)
        self.prior = nn.Parameter(torch.zeros(steps))
        centres = (torch.arange(steps, dtype=torch.float32) + 0.5) / steps * seconds + start
        self.register_buffer("times", centres)
        self.ends = (float(centres[0]), float(centres[-1]))  # as numbers: reading them off a device would wait for it

    def raw(self, backbone: Any, x: torch.Tensor) -> torch.Tensor:
        """Logits over time."""
        features = backbone.sequence(x)
        logits: torch.Tensor = self.logits(features)
        return (logits if self.vector else logits.squeeze(1)).float() + self.prior

    def read(self, raw: torch.Tensor) -> torch.Tensor:
        return (raw.softmax(dim=1) * self.times).sum(dim=1, keepdim=True)

    def loss(self, raw: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        when = targets[:, :1].clamp(*self.ends)
        bump = (-0.5 * ((self.times - when) / self.sigma).square()).softmax(dim=1)
        divergence = functional.kl_div(raw.log_softmax(dim=1), bump, reduction="batchmean")
        return divergence + 4.0 * functional.mse_loss(self.read(raw), targets[:, :1])


class ScalarHead(nn.Module):
    """Response time as plain regression: every feature at every moment of the window has a weight.

    `pooled`: of the summary of the window, as the baseline was first written. A mean over the window cannot tell when
    something happened, so that would be too easy to beat.
    """

    def __init__(self, backbone: Any, mean: float = 1.6, *, pooled: bool = False) -> None:
        super().__init__()
        self.outputs = 1
        self.pooled = pooled
        width = int(backbone.summary_width) if pooled else int(backbone.width) * max(1, int(backbone.steps))
        self.out = nn.Linear(width, 1)
        nn.init.constant_(self.out.bias, mean)

    def raw(self, backbone: Any, x: torch.Tensor) -> torch.Tensor:
        features = backbone.summary(x) if self.pooled else backbone.sequence(x).flatten(1)
        found: torch.Tensor = self.out(features).float()
        return found

    def read(self, raw: torch.Tensor) -> torch.Tensor:
        return raw

    def loss(self, raw: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(raw, targets[:, :1])


class FactorsHead(nn.Module):
    """Factors of psychopathology, with age and sex on the side: they are in the EEG far more clearly.

    Targets are standardised inside; a label that is missing (NaN) is not counted. The columns of `targets` are the
    factors, then age, then sex (1 for male).
    """

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, backbone: Any, names: tuple[str, ...], hidden: int = 32, beside: float = 0.5) -> None:
        super().__init__()
        self.names = tuple(names)
        self.outputs = len(self.names)
        self.beside = beside
        width = int(backbone.summary_width)
        self.trunk = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0.2))
        self.person = nn.Linear(hidden, 2)
        self.factors = nn.Linear(hidden + 2, self.outputs)
        self.register_buffer("mean", torch.zeros(self.outputs + 2))
        self.register_buffer("scale", torch.ones(self.outputs + 2))

    def fit(self, targets: torch.Tensor) -> None:
        """Mean and spread of the training labels; sex stays 0 or 1."""
        for column in range(self.outputs + 1):
            known = targets[:, column][~targets[:, column].isnan()]
            if len(known) > 1:
                self.mean[column], self.scale[column] = known.mean(), known.std().clamp_min(1e-6)

    def raw(self, backbone: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(backbone.summary(x).float())
        person = self.person(hidden)
        about = torch.stack([person[:, 0], person[:, 1].sigmoid()], dim=1)
        return torch.cat([self.factors(torch.cat([hidden, about], dim=1)), person], dim=1)

    def read(self, raw: torch.Tensor) -> torch.Tensor:
        count = self.outputs
        return raw[:, :count] * self.scale[:count] + self.mean[:count]

    def loss(self, raw: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        wanted = (targets - self.mean) / self.scale
        count = self.outputs
        known = ~wanted.isnan()
        wanted = wanted.nan_to_num()
        squares = (raw[:, : count + 1] - wanted[:, : count + 1]).square() * known[:, : count + 1]
        means = squares.sum(dim=0) / known[:, : count + 1].sum(dim=0).clamp_min(1)
        sex = functional.binary_cross_entropy_with_logits(raw[:, -1], wanted[:, -1].clamp(0, 1), reduction="none")
        sex = (sex * known[:, -1]).sum() / known[:, -1].sum().clamp_min(1)
        return means[:count].mean() + self.beside * (means[count] + sex)


class LabelHead(nn.Module):
    """Any label: one of several classes, or an amount where there are none.

    It sees the summary of a window and, where the backbone keeps time, its course in ten steps. Classes count alike
    in the loss, however many windows each has. Targets are the number of the class, or the amount.
    """

    weights: torch.Tensor
    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, backbone: Any, classes: int = 0, *, steps: int = 10, dropout: float = 0.3) -> None:
        super().__init__()
        self.classes, self.outputs = classes, max(1, classes)
        self.steps = min(steps, int(backbone.steps))
        width = int(backbone.summary_width) + self.steps * int(backbone.width)
        self.out = nn.Sequential(nn.BatchNorm1d(width), nn.Dropout(dropout), nn.Linear(width, self.outputs))
        self.register_buffer("weights", torch.ones(self.outputs))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def fit(self, targets: torch.Tensor) -> None:
        """How often each class is, or mean and spread of the amount."""
        if self.classes:
            counts = torch.bincount(targets[:, 0].long(), minlength=self.classes).float()
            self.weights.copy_(counts.sum() / self.classes / counts.clamp_min(1.0))
        elif len(targets) > 1:
            self.mean.copy_(targets[:, 0].mean())
            self.scale.copy_(targets[:, 0].std().clamp_min(1e-6))

    def raw(self, backbone: Any, x: torch.Tensor) -> torch.Tensor:
        features = backbone.summary(x)
        if self.steps:
            course = functional.adaptive_avg_pool1d(backbone.sequence(x), self.steps)
            features = torch.cat([features, course.flatten(1)], dim=1)
        found: torch.Tensor = self.out(features.float())
        return found

    def read(self, raw: torch.Tensor) -> torch.Tensor:
        return raw.softmax(dim=1) if self.classes else raw * self.scale + self.mean

    def loss(self, raw: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.classes:
            return functional.cross_entropy(raw, targets[:, 0].long(), self.weights)
        return functional.mse_loss(raw, (targets[:, :1] - self.mean) / self.scale)


def coral(features: torch.Tensor, domain: torch.Tensor) -> torch.Tensor:
    """CORAL: how far the feature covariance of one release is from that of the others (Sun and Saenko, 2016).

    In units of the features' own spread in the batch, so that features of any scale count alike.
    """
    here = domain == domain.mode().values
    if int(here.sum()) < 4 or int((~here).sum()) < 4:
        return features.sum() * 0.0
    scaled = features.float() / features.detach().float().std(dim=0).clamp_min(1e-6)
    one, other = (torch.cov(scaled[part].T) for part in (here, ~here))
    return (one - other).square().mean() / 4.0
