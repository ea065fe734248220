"""A late device, `pretend-late:0`: computes on the CPU, and its copies arrive during the next step, as CUDA's do.

    run_local(train, folder, settings, device="pretend-late:0")       # or a rung of a supervised run

What a CPU knows at once is known one step later here: whether a snapshot is whole, and whether the numbers of its step
were finite. Every copy arrives at its second look, or where somebody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.state import cuda_copies
from holdfast.state import layout as layouts
from holdfast.state.slot_views import Views
from holdfast.state.slots import Slot
from holdfast.state.taken_snapshot import Taken

NAME = "pretend-late"
DEVICE = torch.device("cpu", 1)
"""Where its tensors are: on the CPU for torch, and equal to no other device of ours."""
LOOKS = 2
"""How often somebody has to look for a copy until it has arrived."""


class LateEvent:
    """Something that is over later than it was asked for."""

    def __init__(self, arrive: Callable[[], None]) -> None:
        self._arrive: Callable[[], None] | None = arrive
        self._looks = 0

    def query(self) -> bool:
        self._looks += 1
        if self._looks >= LOOKS:
            self.synchronize()
        return self._arrive is None

    def synchronize(self) -> None:
        arrive, self._arrive = self._arrive, None
        if arrive is not None:
            arrive()


class LateCopies:
    """Copies that are under way until somebody waits, or looks twice.

    As on CUDA, what may change at any time is gathered when the copy begins; what only an optimizer changes is read
    when it arrives, and an optimizer waits for that.
    """

    def __init__(self) -> None:
        self._lazy: list[bool] = []

    def holds(self, tensor: Tensor) -> bool:
        return tensor.device.type == "cpu"

    def arrange(self, plan: layouts.Layout, lazy: list[bool]) -> None:
        self._lazy = lazy

    def copy(self, taken: Taken, views: Views, sources: list[Tensor], loss: Tensor | None, norm: Tensor | None) -> None:
        now = [each.detach() if lazy else each.detach().clone() for each, lazy in zip(sources, self._lazy, strict=True)]
        numbers = [
            (0, torch.tensor(layouts.NO_LOSS) if loss is None else loss.detach().float().clone()),
            (2, torch.tensor(0.0) if norm is None else norm.detach().float().clone()),
        ]

        def arrive() -> None:
            with torch.no_grad():
                for target, source in zip(views.device, now, strict=True):
                    target.copy_(source)
                for place, number in numbers:
                    views.loss[place].copy_(number)

        taken.event = LateEvent(arrive)
        taken.lazy = any(self._lazy)

    def guard(self, pending: list[Taken]) -> None:
        for taken in pending:
            if taken.lazy:
                taken.event.synchronize()

    def lock_pages(self, slot: Slot) -> None:
        return None

    def spent(self) -> float:
        return 0.0

    def make_room(self) -> bool:
        return False


cuda_copies.MAKERS[DEVICE] = LateCopies
