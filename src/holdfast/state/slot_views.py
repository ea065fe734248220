"""A slot seen as the tensors of one layout.

views = make_views(slot, plan)
copy_all(views.host, tensors)        # what is written there is in the slot
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.state import layout as layouts
from holdfast.state.protected import view_bytes
from holdfast.state.slots import HEADER, Slot

RNG = "holdfast.rng."


@dataclass(slots=True)
class Views:
    """A slot seen as tensors, for one layout."""

    plan: layouts.Layout
    device: list[Tensor]
    host: list[Tensor]
    rng: dict[str, Tensor]
    loss: Tensor
    data: Tensor
    """All bytes after the header."""
    meta: slice = field(default_factory=lambda: slice(0))


def make_views(slot: Slot, plan: layouts.Layout) -> Views:
    slot.memory[HEADER : HEADER + plan.data_start] = plan.header
    whole = torch.frombuffer(slot.memory, dtype=torch.uint8, offset=HEADER, count=plan.total_bytes)
    data = whole[plan.data_start :]
    meta = plan.span(layouts.META)
    extra = {e.name: view_bytes(data[e.start : e.stop], e.dtype, e.shape) for e in plan.extra}
    return Views(
        plan=plan,
        device=[view_bytes(data[e.start : e.stop], e.dtype, e.shape) for e in plan.live],
        host=[tensor for name, tensor in extra.items() if not name.startswith(RNG)],
        rng={name: tensor for name, tensor in extra.items() if name.startswith(RNG)},
        loss=whole[plan.span(layouts.LOSS)].view(torch.float32),
        data=data,
        meta=slice(HEADER + meta.start, HEADER + meta.stop),
    )
