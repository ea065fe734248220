"""One process at a time: a lock on a file that the system gives back when its holder dies, however that is.

with locking.held(folder / "lock"): ...        # Busy if another process has it
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path


class Busy(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def held(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Take the lock, within `wait` seconds."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(path, flags, 0o600)
    try:
        until = time.monotonic() + wait
        while not _taken(fd, last=time.monotonic() >= until):
            time.sleep(0.2)
        yield
    finally:
        os.close(fd)


def _taken(fd: int, *, last: bool) -> bool:
    try:
        _take(fd)
    except Busy:
        if last:
            raise
        return False
    return True


def _take(fd: int) -> None:
    if sys.platform == "win32":
        _take_windows(fd)
        return
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy from None


def _take_windows(fd: int) -> None:
    import importlib

    msvcrt = importlib.import_module("msvcrt")
    try:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    except OSError:
        raise Busy from None
