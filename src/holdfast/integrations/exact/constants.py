"""Large data that a script's set-up makes and that nobody changes: a checksum stands for it.

    constants = Constants()
    constants.mark(tensor)             # its checksum; None if it is new or was written to
    constants.settle()                 # after the first step: from here on, what is not known is new

torch counts how often a tensor is written to, but not what is written through `tensor.data` or `tensor.numpy()`, as
many averages of weights are. numpy does not count at all. So large tensors and arrays are read each time. Of a Dataset,
arrays are read in places, and tensors are taken as unchanged where torch has counted nothing.
"""

from __future__ import annotations

import weakref
import zlib
from typing import Any

import numpy as np
import torch

LARGE = 64 << 10
"""Bytes from which on it is worth asking."""
_PIECE = 64 << 10
_PIECES = 64


class Constants:
    """Of one process."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any, str]] = {}
        self._settled = False

    def settle(self) -> None:
        self._settled = True

    def mark(self, tensor: torch.Tensor, in_data: bool = False, path: str = "") -> str | None:
        """A checksum of a tensor that is as set-up left it, and where set-up left it.

        A batch that a loader had fetched ahead in the first step is no constant when it is the batch of the second.
        """
        if tensor.requires_grad or not tensor.is_leaf or torch.is_inference(tensor):
            return None
        now = (tensor._version, tensor.data_ptr(), tuple(tensor.shape))
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            before, sums, first = known[1]
            moved = bool(path and first) and path != first
            return known[2] if before == now and not moved and (sums is None or sums == _sums(tensor)) else None
        if self._settled:
            return None
        mark = f"{tuple(tensor.shape)} {tensor.dtype} {sum_of(tensor)}"
        about = (now, None, "") if in_data else (now, _sums(tensor), path)
        self._known[id(tensor)] = weakref.ref(tensor), about, mark
        return mark

    def mark_array(self, array: np.ndarray[Any, Any], in_data: bool) -> str | None:
        known = self._known.get(id(array))
        fixed = not array.flags.writeable
        if known is not None and known[0]() is array:
            if fixed:
                return known[2]
            return known[2] if mark_of(array, in_data) == known[2] else None
        if self._settled:
            return None
        mark = mark_of(array, in_data)
        self._known[id(array)] = weakref.ref(array), None, mark
        return mark


def _sums(tensor: torch.Tensor) -> list[int]:
    """Numbers that are others where the tensor holds others. They are computed where it is, at the speed of memory."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    flat = flat.clone() if flat.storage_offset() % 8 else flat
    whole = flat.numel() // (8 * _PIECES) * (8 * _PIECES)
    words = flat[:whole].view(torch.int64)
    told = [words.view(_PIECES, -1).sum(1), words[::2].sum().view(1)] if whole else []
    return torch.cat([*told, flat[whole:].to(torch.int64)]).tolist()


def mark_of(array: np.ndarray[Any, Any], in_data: bool) -> str:
    """A checksum of an array: of 64 places of it where it is a large one of a Dataset."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel(order="K")
    data = flat.view(np.uint8).data
    if not in_data or len(data) <= _PIECE * _PIECES:
        return f"{array.shape} {array.dtype} {zlib.crc32(data)}"
    crc = 0
    for piece in range(_PIECES):
        begin = piece * (len(data) - _PIECE) // (_PIECES - 1)
        crc = zlib.crc32(data[begin : begin + _PIECE], crc)
    return f"{array.shape} {array.dtype} {crc} in {_PIECES} places"


def sum_of(tensor: torch.Tensor) -> int:
    """A checksum of its bytes."""
    return zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
