"""Tensors that ranks share out among themselves (DTensor, as FSDP2 makes them): each rank holds and saves its part.

    local(parameter)                # this rank's part, in the memory that the optimizer writes to; others as they are
    shard_of(parameter)             # Shard(index=1, count=4): the second of four parts
    like(stored, parameter)         # this rank's part of a tensor that is shared out as the parameter is

torch.distributed.tensor is not imported here: that takes time, and a process without such tensors never needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of so many, along the first axis."""

    index: int
    count: int


def is_shared_out(tensor: Any) -> bool:
    return type(tensor) is not Tensor and hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """The same object each time, as long as the tensor keeps its memory."""
    if not is_shared_out(tensor):
        return tensor
    with torch.no_grad():  # with gradients it would be a new tensor, with a way back to this one
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def shard_of(tensor: Tensor) -> Shard | None:
    """None for a tensor that this process holds whole."""
    if not is_shared_out(tensor):
        return None
    shared: Any = tensor
    for axis, placement in enumerate(shared.placements):
        if placement.is_shard():
            return Shard(shared.device_mesh.get_local_rank(axis), shared.device_mesh.size(axis))
    return None


def problem_of(tensor: Tensor) -> str:
    """Why its parts cannot be put together again; nothing for the usual way of FSDP2 and HSDP."""
    shared: Any = tensor
    split = [placement for placement in shared.placements if placement.is_shard()]
    known = all(placement.is_replicate() or placement.is_shard(0) for placement in shared.placements)
    if known and len(split) <= 1:
        return ""
    return f"a `DTensor` placed as {tuple(shared.placements)}; only parts along the first axis, once, can be saved"


def like(stored: Tensor, parameter: Tensor) -> Tensor:
    """A part that was stored, as a tensor that is shared out like the parameter; any other tensor as it is."""
    if not is_shared_out(parameter) or stored.shape != local(parameter).shape or stored.dim() == 0:
        return stored
    from torch.distributed.tensor import DTensor

    shared: Any = parameter
    made: Tensor = DTensor.from_local(
        stored, shared.device_mesh, shared.placements, run_check=False, shape=shared.shape, stride=shared.stride()
    )
    return made
