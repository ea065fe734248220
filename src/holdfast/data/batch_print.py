"""A fingerprint of a batch: a few dozen of its numbers, in a few microseconds.

    print_of(batch)                  # the same for the same batch, in any process; another for nearly every other one
    follow_up(before, print_of(b))   # of a sequence of batches

A loader that goes on in a new process is held against it: are these the batches that the old process had? Tensors on a
device are not waited for, so only their shapes count. Of objects of unknown kinds the type counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_NUMBERS = 64
"""Of each tensor, spread over it."""
_MEMBERS = 64
"""Of each container."""
_DEPTH = 6


def print_of(value: Any, depth: int = _DEPTH) -> int:
    """32 bits."""
    return _crc(value, depth, 0)


def follow_up(before: int, this: int) -> int:
    """Of all batches up to this one, in their order."""
    return zlib.crc32(this.to_bytes(4, "little"), before)


def _crc(value: Any, depth: int, crc: int) -> int:
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, crc)
    if isinstance(value, np.ndarray):
        return _of_array(value, crc)
    if isinstance(value, (str, int, float, complex, bool, type(None), np.generic)):
        return zlib.crc32(f"{type(value).__name__}{value!r}"[:512].encode("utf-8", "replace"), crc)
    if isinstance(value, (bytes, bytearray)):
        return zlib.crc32(value[:512], crc)
    crc = zlib.crc32(type(value).__name__.encode(), crc)
    if not depth:
        return crc
    if isinstance(value, Mapping):
        for key in list(value)[:_MEMBERS]:
            crc = _crc(value[key], depth - 1, _crc(key, 0, crc))
    elif isinstance(value, (list, tuple)):
        crc = zlib.crc32(len(value).to_bytes(8, "little"), crc)
        for item in value[:_MEMBERS]:
            crc = _crc(item, depth - 1, crc)
    elif isinstance(held := getattr(value, "__dict__", None), dict):  # a batch of a class of the script's own
        for item in list(held.values())[:_MEMBERS]:
            crc = _crc(item, depth - 1, crc)
    return crc


def _of_tensor(tensor: torch.Tensor, crc: int) -> int:
    crc = zlib.crc32(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), crc)
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return crc
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
    some = flat[:: max(1, flat.numel() // _NUMBERS)]
    return zlib.crc32(repr(some.tolist()).encode(), crc)


def _of_array(array: Any, crc: int) -> int:
    crc = zlib.crc32(f"{array.dtype}{array.shape}".encode(), crc)
    flat = array.reshape(-1)
    return zlib.crc32(repr(flat[:: max(1, flat.size // _NUMBERS)].tolist()).encode(), crc) if flat.size else crc
