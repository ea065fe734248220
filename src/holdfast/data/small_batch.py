"""A small batch goes through the pipe as bytes, and not through shared memory.

    room = widened(writer.fileno())          # bytes that the pipe holds; 0 where nobody can tell
    payload = packed(value, room)            # None: tensors that are too large for the pipe, or not plain
    value = pickle.loads(payload)            # the same tensors, in memory of their own

torch hands every tensor over in shared memory: a file is made for it, and its descriptor is fetched by a connection of
its own with a challenge and an answer, for which both processes need their interpreters several times. For a batch that
the pipe holds as a whole, that takes longer than copying it, and often longer than reading its samples.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from holdfast.data.batch import tensors_of

WIDE = 1 << 20
"""Bytes that Linux gives a pipe of anybody who asks (/proc/sys/fs/pipe-max-size)."""


def room_of_a_pipe() -> int:
    """How much a pipe can hold that is made here and now."""
    try:
        reader, writer = os.pipe()
    except OSError:
        return 0
    try:
        return widened(writer)
    finally:
        os.close(reader)
        os.close(writer)


def widened(fd: int) -> int:
    """The same pipe with more room, if there is more to be had. Returns how much it holds."""
    if sys.platform != "linux":
        return 0
    import fcntl

    ask, set_ = getattr(fcntl, "F_GETPIPE_SZ", 1032), getattr(fcntl, "F_SETPIPE_SZ", 1031)  # without names in 3.10 only
    try:
        return max(fcntl.fcntl(fd, ask), fcntl.fcntl(fd, set_, WIDE))
    except OSError:  # a user may have 64 MB of pipes
        try:
            return fcntl.fcntl(fd, ask)
        except OSError:
            return 0


class _OtherWay(Exception):
    """This batch goes through shared memory."""


class _Pickler(ForkingPickler):
    """Tensors as the bytes they are; all else as multiprocessing sends it."""

    def __init__(self, file: io.BytesIO, room: int) -> None:
        super().__init__(file, 5)
        self._room = room
        self._seen: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor:
            if isinstance(value, torch.Tensor | torch.UntypedStorage | torch.TypedStorage):
                raise _OtherWay
            return NotImplemented
        if not _is_plain(value) or value.data_ptr() in self._seen:
            raise _OtherWay
        self._room -= value.nbytes
        if self._room < 0:
            raise _OtherWay
        if value.nbytes:
            self._seen.add(value.data_ptr())
        data: Any = value.view(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(data), value.dtype, tuple(value.shape))


def packed(value: Any, room: int) -> bytes | None:
    """The batch as bytes; None if its tensors have to go another way. Beside tensors it may have more than fits."""
    if sum(each.numel() * each.element_size() for each in tensors_of(value)) > room:  # sparse ones have no `nbytes`
        return None
    file = io.BytesIO()
    try:
        _Pickler(file, room).dump(value)
    except _OtherWay:
        return None
    return file.getvalue()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Nothing but its bytes, dtype and shape, and no other tensor looks at the same memory."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
        return False
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """In memory that torch has made: where it begins may decide about the last bit of a product."""
    made = torch.empty(shape, dtype=dtype)
    if data:
        made.view(-1).view(torch.uint8).copy_(torch.frombuffer(data, dtype=torch.uint8))
    return made
