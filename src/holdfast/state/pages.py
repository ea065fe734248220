"""Large memory in pieces, which several threads take at once: one alone is slower than a good disk.

with hands() as pool:
    all(pool.map(look, pieces(0, size)))            # look((start, stop))
advise(memory, POPULATE_READ, start, stop)          # what the system is to do with its pages; 0, or an error number
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PIECE = 256 << 20
"""Bytes that one thread takes at once."""
MOST_HANDS = 4
REMOVE = 9
"""Give them back to the system."""
POPULATE_READ, POPULATE_WRITE = 22, 23
"""Find, clear and map them now, as if they were read or written, without changing what they hold (Linux 5.14)."""


def hands() -> ThreadPoolExecutor:
    """At most four threads, and a quarter of the cores: the script computes at the same time."""
    return ThreadPoolExecutor(max(1, min(MOST_HANDS, (os.cpu_count() or 1) // 4)))


def pieces(start: int, stop: int) -> list[tuple[int, int]]:
    return [(at, min(stop, at + PIECE)) for at in range(start, stop, PIECE)]


def adviser(advice: int) -> Callable[[int, int], int] | None:
    """A call with address and size that gives an error number, or 0; other threads run meanwhile. None off Linux."""
    if sys.platform != "linux":
        return None
    madvise: Any = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def call(at: int, size: int) -> int:
        return ctypes.get_errno() if madvise(at, size, advice) else 0

    return call


def advise(memory: Any, advice: int, start: int, stop: int) -> int:
    """For the pages of `memory` from `start`, which begins one, to `stop`."""
    call = adviser(advice)
    if call is None:
        return errno.ENOSYS
    held = ctypes.c_char.from_buffer(memory)
    try:
        at = ctypes.addressof(held)
        with hands() as pool:
            return max(pool.map(lambda piece: call(at + piece[0], piece[1] - piece[0]), pieces(start, stop)), default=0)
    finally:
        del held
