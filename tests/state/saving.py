"""Save and restore as a worker does, through the bytes of one slot. Shared by the tests of the state."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.state import layout as layouts
from holdfast.state.protected import Protected, view_bytes

CPU = torch.device("cpu")


def save(protected: Protected) -> bytearray:
    """A slot with the state as it is now."""
    layout = protected.layout()
    slot = bytearray(layout.total_bytes)
    slot[: layout.data_start] = layout.header
    whole = torch.frombuffer(slot, dtype=torch.uint8)
    with torch.no_grad():
        for entry, tensor in zip(layout.live, protected.tensors(), strict=True):
            assert tuple(tensor.shape) == entry.shape
            view_bytes(whole[layout.span(entry.name)], entry.dtype, entry.shape).copy_(tensor)
    slot[layout.span(layouts.META)] = layout.pack_meta(protected.meta_json({"step": 1}))
    return slot


def reader(slot: bytearray) -> Callable[[str], Tensor]:
    entries, data_start = layouts.parse_header(slot)
    by_name = {entry.name: entry for entry in entries}
    whole = torch.frombuffer(slot, dtype=torch.uint8)

    def read(name: str) -> Tensor:
        entry = by_name[name]
        return view_bytes(whole[data_start + entry.start : data_start + entry.stop], entry.dtype, entry.shape)

    return read


def load(protected: Protected, slot: bytearray) -> None:
    """Restore, then overwrite the slot: nothing may still refer to its memory."""
    protected.restore(reader(slot), layouts.read_meta(slot))
    slot[:] = b"\xff" * len(slot)
