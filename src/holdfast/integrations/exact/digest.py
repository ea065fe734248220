"""A checksum of what is trained: two processes that do the same have the same after each step."""

from __future__ import annotations

import zlib

import torch

from holdfast.integrations.exact.constants import sum_of


def digest(optimizers: list[torch.optim.Optimizer]) -> str:
    """Of all parameters, in the order of their optimizers, and of torch's generator."""
    sums = [
        sum_of(param)
        for each in optimizers
        for group in each.param_groups
        for param in group["params"]
        if param.numel()
    ]
    crc = zlib.crc32(repr(sums).encode())
    return f"{zlib.crc32(torch.get_rng_state().numpy().data, crc):08x}"
