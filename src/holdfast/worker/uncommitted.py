"""The steps since the last commit: how many, their losses, and whether all of their numbers were finite.

    steps = Uncommitted()
    steps.add(12, loss, norm)              # after a step; tensors stay on the device, nobody waits
    norm = steps.norm(parameters)          # at a commit: of the last gradient, and not finite if anything was not
    losses = steps.looked_at()
    steps.clear()

Losses are looked at one and all, but together, when they are committed. The norm of the gradients is computed in the
step that is committed; whether a gradient before it was finite shows in the parameters it went into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

MOST = 4096
"""Losses that are kept: of a script with more steps between two commits the newest."""


@dataclass(slots=True)
class Uncommitted:
    """Since the last commit."""

    count: int = 0
    """Steps, and loop bodies without one."""
    whole: bool = False
    """One of them was a transaction, which the next one can be taken back to."""
    losses: list[tuple[int, Tensor]] = field(default_factory=list)
    last: Tensor | None = None
    unseen: bool = False
    """The gradients of some are not in `last`."""

    def add(self, step: int, loss: Tensor | None, norm: Tensor | None) -> None:
        self.count += 1
        self.unseen = self.unseen or (loss is not None and norm is None) or self.last is not None
        self.last = norm
        if loss is None:
            return
        if len(self.losses) < MOST:
            self.losses.append((step, loss))

    def norm(self, parameters: Callable[[], Iterable[Tensor]] | None) -> Tensor | None:
        """Of the gradients of the last step. One that is not finite says so of any step since the last commit.

        `parameters` are looked at if some gradients were not; None where they were not finite from the start.
        """
        found = [0.0 * each for each in self._early()]
        if self.unseen and parameters is not None:
            found += [0.0 * each for each in norms(parameters())]
        if not found:
            return self.last
        home = found[0].device if self.last is None else self.last.device
        total = torch.stack([each.detach().float().to(home) for each in found]).sum()
        return total if self.last is None else self.last + total

    def _early(self) -> list[Tensor]:
        """The losses before the last one, which is committed by itself, as one number for each device."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for _, loss in self.losses[:-1]:
            by_device.setdefault(loss.device, []).append(loss.detach())
        return [torch.stack(each).sum() for each in by_device.values()]

    def looked_at(self) -> list[tuple[int, Tensor]]:
        """A snapshot has these numbers. Returns the losses: if one is not finite, somebody looks for the first."""
        losses, self.losses = self.losses, []
        self.last, self.unseen = None, False
        return losses

    def clear(self) -> None:
        """All of this is committed."""
        self.count, self.whole = 0, False


def norms(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Of parameters, one for each device they are on, without waiting."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for each in parameters:
        if each.is_floating_point() and each.numel():
            by_device.setdefault(each.device, []).append(each.detach())
    found = []
    for tensors in by_device.values():
        large = [each if each.dtype.itemsize >= 4 else each.float() for each in tensors]
        found.append(torch.nn.utils.get_total_norm(large))
    return found
