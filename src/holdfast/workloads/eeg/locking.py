"""One process at a time: a lock on a file that the system gives back when its holder dies, however that is.

with locking.held(folder / "lock"): ...        # Busy if another process has it
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.base.locks import Lock


class Busy(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def held(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Take the lock, within `wait` seconds."""
    lock, until = Lock(path), time.monotonic() + wait
    while not lock.take():
        if time.monotonic() >= until:
            raise Busy
        time.sleep(0.2)
    try:
        yield
    finally:
        lock.release()
