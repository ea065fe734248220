"""How questions travel from those that read to the process that computes: inputs in shared memory, the rest in frames.

layout = Layout(bundle.inputs)
at = arena.take(layout.bytes(rows))                # None: there is no room
layout.views(memory, at, rows)                     # an array for each input, in that memory
frame(QUESTION, 7, WHERE.pack(at, rows))           # bytes
for kind, number, payload in frames.feed(data): …
"""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUESTION, NUMBERS, ANSWER, NOT_FINITE, FULL, FAILED = range(6)
_HEAD = struct.Struct("<IBI")
WHERE = struct.Struct("<QI")
_ALIGNED = 64


class Layout:
    """Where the inputs of a question lie, one after the other."""

    def __init__(self, inputs: Sequence[dict[str, Any]]) -> None:
        self._each = [(tuple(each["shape"]), np.dtype(each["dtype"])) for each in inputs]

    def bytes(self, rows: int) -> int:
        return sum(_aligned(rows * math.prod(shape) * kind.itemsize) for shape, kind in self._each)

    def views(self, memory: Any, at: int, rows: int) -> list[NDArray[Any]]:
        found = []
        for shape, kind in self._each:
            numbers = rows * math.prod(shape)
            found.append(np.frombuffer(memory, kind, numbers, at).reshape(rows, *shape))
            at += _aligned(numbers * kind.itemsize)
        return found


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class Arena:
    """A piece of memory, lent in pieces: always the first that fits, so that little of it is ever touched."""

    def __init__(self, begin: int, size: int) -> None:
        self._free = [(begin, size)]

    def take(self, size: int) -> int | None:
        for place, (at, there) in enumerate(self._free):
            if there >= size:
                self._free[place : place + 1] = [(at + size, there - size)] if there > size else []
                return at
        return None

    def give(self, at: int, size: int) -> None:
        place = bisect.bisect(self._free, (at, size))
        self._free.insert(place, (at, size))
        for left in (place, place - 1):  # what touches becomes one
            if 0 <= left < len(self._free) - 1:
                (begin, long), (following, more) = self._free[left : left + 2]
                if begin + long == following:
                    self._free[left : left + 2] = [(begin, long + more)]


def frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload), kind, number) + payload


class Frames:
    """Frames out of a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEAD.size:
            length, kind, number = _HEAD.unpack_from(self._buffer, at)
            until = at + _HEAD.size + length
            if len(self._buffer) < until:
                break
            yield kind, number, bytes(self._buffer[at + _HEAD.size : until])
            at = until
        del self._buffer[:at]
