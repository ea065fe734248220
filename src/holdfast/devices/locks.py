"""Locks that a dead process cannot keep: the kernel takes them back, so that none is ever stale.

try_lock(fd)               # True; False if another has it; None where the file system has no locks
alive = Alive(folder)
token = alive.hold()       # "I am here", for as long as this process lives
alive.is_held(token)       # asked by any other process, in any container, after any crash
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from pathlib import Path

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


def try_lock(fd: int) -> bool | None:
    """Take the lock of an open file, if it is free. It ends when the file is closed, by whatever end."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(fd, 1 << 20, os.SEEK_SET)  # far behind what is in the file: locked bytes cannot be read there
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


class Alive:
    """A file that is locked as long as its owner lives. A process number would not do: it is used again after a
    while, and means another process in another container."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = ""
        self._fd: int | None = None

    def hold(self) -> str:
        """The name of our sign of life; empty where there can be none."""
        if self._fd is None:
            token = os.urandom(8).hex()
            with contextlib.suppress(OSError):
                for folder in (self.folder.parent, self.folder):  # `mode` is not that of the parents made on the way
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                fd = os.open(self.folder / token, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                if try_lock(fd):
                    self.token, self._fd = token, fd
                else:
                    os.close(fd)
                    self.clear(token)
        return self.token

    def is_held(self, token: str) -> bool:
        """True while the process that holds it lives."""
        if token and token == self.token:
            return True
        path = self._path(token)
        if path is None:
            return False
        try:
            fd = os.open(path, os.O_RDWR)
        except OSError:
            return False
        try:
            return try_lock(fd) is False
        finally:
            os.close(fd)

    def release(self) -> None:
        """We go on living, but use nothing any more."""
        if self._fd is not None:
            token, fd = self.token, self._fd
            self.token, self._fd = "", None
            os.close(fd)
            self.clear(token)

    def clear(self, token: str) -> None:
        """Remove what a dead process left."""
        path = self._path(token)
        if path is not None and token != self.token:
            with contextlib.suppress(OSError):
                path.unlink()

    def _path(self, token: str) -> Path | None:
        """A token comes from a file that may have been edited: nothing but a name of ours is followed."""
        return self.folder / token if re.fullmatch(r"[0-9a-f]{16}", token) else None
