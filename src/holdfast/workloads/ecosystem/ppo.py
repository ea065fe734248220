"""Proximal policy optimization, whole, in one file: advantages, the clipped loss, the update, and its normalisers.

    advantages, returns = gae(rewards, values, ends, next_values, last_values, there, ...)
    batch = Batch(inputs, actions, logps, values, advantages, returns)
    told = update(net, optimizer, batch, Recipe())          # loss, entropy, how far the policy moved

A net is anything with `net(*inputs) -> (logits, value)`. Nothing here knows about worlds or sessions. Random numbers
are torch's own, which a session protects.

Schulman et al. 2017, arXiv:1707.06347; advantages: arXiv:1506.02438; Huang et al. 2022, "The 37 implementation details
of PPO".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.base.errors import HoldfastError, UserError

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to learn from what was collected."""

    lr: float = 1e-3
    gamma: float = 0.95
    """What a reward is worth one step later."""
    lam: float = 0.9
    clip: float = 0.2
    value_clip: float = 0.2
    """The value may move this far from the old one, in units of normalised returns; 0 for no limit."""
    entropy: float = 0.005
    value: float = 0.5
    epochs: int = 3
    minibatch: int = 512
    pieces: int = 1
    """A minibatch is computed in so many pieces whose gradients add up to that of the whole."""
    norm: float = 0.5
    """The longest gradient."""
    most: int = 2048
    """Samples used for an update; more are drawn from. 0 for all."""
    stop_at: float = 0.05
    """Further epochs are left out once the policy has moved this far (approximate KL); 0 for never."""

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatch", "pieces"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}", cause="it has to be 1 or more")
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 <= self.lam <= 1.0:
            raise UserError(f"gamma is {self.gamma} and lam {self.lam}", cause="both are between 0 and 1")


# Choosing ---------------------------------------------------------------------------------------------------


def sample(logits: Tensor, who: str) -> tuple[Tensor, Tensor]:
    """An action for each row, and its log-probability."""
    check_finite(logits, who)
    logps = logits.log_softmax(dim=-1)
    noise = torch.rand_like(logps).clamp_(1e-10, 1.0 - 1e-7)
    actions = (logps - torch.log(-torch.log(noise))).argmax(dim=-1)
    return actions, logps.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def check_finite(logits: Tensor, who: str) -> None:
    """A policy that says NaN cannot be acted upon: its weights are damaged, or what it was shown is."""
    if not bool(torch.isfinite(logits).all()):
        rows = int((~torch.isfinite(logits)).any(dim=-1).sum())
        raise HoldfastError(
            f"the policy of the {who} says NaN for {rows} of {len(logits)}",
            cause="its weights are damaged, or the last update was too large",
            hints=["go on from the last checkpoint with a smaller lr", "`holdfast doctor` if the device is in doubt"],
        )


# Advantages -------------------------------------------------------------------------------------------------


def gae(
    rewards: Floats, values: Floats, ends: Mask, cuts: Mask, there: Mask, last: Floats, *, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """Generalised advantages and returns, all arrays (steps, slots); `last` is the value of what came after.

    `ends`: it died, nothing comes after. `cuts`: it lived, but was not followed further; its own value stands for
    what would have come. `there`: there was somebody. A slot whose next step belongs to somebody else must have
    ended or been cut before.
    """
    advantages = np.zeros_like(rewards)
    carried = np.zeros_like(last)
    after = last
    for t in range(len(rewards) - 1, -1, -1):
        coming = np.where(cuts[t], values[t], after)
        goes_on = np.where(ends[t], np.float32(0.0), np.float32(1.0))
        surprise = rewards[t] + gamma * coming * goes_on - values[t]
        linked = goes_on * ~cuts[t]
        carried = np.where(there[t], surprise + gamma * lam * linked * carried, 0.0).astype(np.float32)
        advantages[t] = carried
        after = values[t]
    return advantages, advantages + values


class Scale:
    """A running mean and spread, one for each feature. Protected: a policy is worth little without it."""

    def __init__(self, features: int = 1) -> None:
        self.count = 0.0
        self.mean = np.zeros(features, np.float64)
        self.square = np.zeros(features, np.float64)

    def learn(self, values: NDArray[Any]) -> None:
        rows = np.asarray(values, np.float64).reshape(-1, len(self.mean))
        if not len(rows):
            return
        mean, square = rows.mean(axis=0), ((rows - rows.mean(axis=0)) ** 2).sum(axis=0)
        total = self.count + len(rows)
        apart = mean - self.mean
        self.square += square + apart**2 * self.count * len(rows) / total
        self.mean += apart * len(rows) / total
        self.count = total

    @property
    def spread(self) -> NDArray[np.float64]:
        return np.sqrt(self.square / max(1.0, self.count - 1.0)) if self.count > 1 else np.ones_like(self.mean)

    def apply(self, values: NDArray[Any]) -> Floats:
        found = (values - self.mean) / np.maximum(self.spread, 1e-4)
        return np.clip(found, -10.0, 10.0).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean.copy(), "square": self.square.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = float(state["count"])
        self.mean, self.square = np.array(state["mean"], np.float64), np.array(state["square"], np.float64)


# Learning ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """What was seen, done and got. All have the same first dimension."""

    inputs: tuple[Tensor, ...]
    actions: Tensor
    logps: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.actions)

    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.inputs, self.actions, self.logps, self.values, self.advantages, self.returns)

    def rows(self, which: Tensor) -> Batch:
        return Batch.of(tuple(each[which] for each in self.tensors()))

    @classmethod
    def of(cls, tensors: tuple[Tensor, ...]) -> Batch:
        """The other way round of `tensors`: what comes before the last five are inputs."""
        return cls(tuple(tensors[:-5]), *tensors[-5:])


def loss(net: Any, batch: Batch, recipe: Recipe) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean over the batch of what PPO wants small, and numbers about it. Advantages are taken as they are."""
    logits, values = net(*batch.inputs)
    logps = logits.log_softmax(dim=-1)
    entropy = -(logps.exp() * logps).sum(dim=-1).mean()
    moved = logps.gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1) - batch.logps
    ratio = moved.exp()
    clipped = ratio.clamp(1.0 - recipe.clip, 1.0 + recipe.clip)
    act = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages).mean()
    wrong = (values - batch.returns) ** 2
    if recipe.value_clip:
        near = batch.values + (values - batch.values).clamp(-recipe.value_clip, recipe.value_clip)
        wrong = torch.maximum(wrong, (near - batch.returns) ** 2)
    judge = 0.5 * wrong.mean()
    total = act + recipe.value * judge - recipe.entropy * entropy
    told = {"entropy": entropy.detach(), "kl": ((ratio - 1.0) - moved).mean().detach(), "value_loss": judge.detach()}
    return total, told


def accumulate(
    net: nn.Module, batch: Batch, recipe: Recipe, around: Callable[[], Any] | None = None
) -> tuple[float, dict[str, float]]:
    """Gradients of the loss over `batch`, in `recipe.pieces` of exact weight: equal to the whole but for rounding."""
    total, sums = 0.0, {"entropy": 0.0, "kl": 0.0, "value_loss": 0.0}
    for part in torch.arange(len(batch), device=batch.actions.device).chunk(recipe.pieces):
        weight = len(part) / len(batch)
        piece = batch if recipe.pieces == 1 else batch.rows(part)
        if around is None:
            found, told = loss(net, piece, recipe)
        else:
            with around():
                found, told = loss(net, piece, recipe)
        (found * weight).backward()
        total += float(found.detach()) * weight
        for name, value in told.items():
            sums[name] += float(value) * weight
    return total, sums


def normalised(batch: Batch) -> Batch:
    """Advantages with mean 0 and spread 1, over the whole batch, before it is cut into anything."""
    spread = batch.advantages.std() if len(batch) > 1 else torch.ones(())
    advantages = (batch.advantages - batch.advantages.mean()) / (spread + 1e-8)
    return Batch(batch.inputs, batch.actions, batch.logps, batch.values, advantages, batch.returns)


def update(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    recipe: Recipe,
    around: Callable[[], Any] | None = None,
    alive: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Some epochs over the batch; returns the means of what was seen in the last of them.

    `alive` is called before each minibatch: a sign of life where an update takes long.
    """
    if not len(batch):
        return {}
    batch = normalised(batch)
    told: dict[str, float] = {}
    for epoch in range(recipe.epochs):
        rows: list[dict[str, float]] = []
        for part in _minibatches(len(batch), recipe, batch.actions.device):
            alive()
            optimizer.zero_grad(set_to_none=True)
            value, numbers = accumulate(net, batch.rows(part), recipe, around)
            nn.utils.clip_grad_norm_(net.parameters(), recipe.norm)
            optimizer.step()
            rows.append({"loss": value, **numbers})
        told = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        if recipe.stop_at and told["kl"] > recipe.stop_at and epoch + 1 < recipe.epochs:
            break
    return told


def _minibatches(count: int, recipe: Recipe, device: torch.device) -> Iterator[Tensor]:
    """Parts of nearly equal size, drawn anew each epoch."""
    order = torch.randperm(count, device=device)
    yield from order.chunk(max(1, round(count / recipe.minibatch)))


def thinned(count: int, most: int) -> Tensor | None:
    """Which of so many samples to use, if not all."""
    return torch.randperm(count)[:most] if most and count > most else None
