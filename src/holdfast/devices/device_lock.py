"""Locks that a dead process cannot keep: the kernel takes them back, so that none is ever stale.

alive = Alive(folder)
token = alive.hold()       # "I am here", for as long as this process lives
alive.is_held(token)       # asked by any other process, in any container, after any crash
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

from holdfast.base.files import read_json
from holdfast.base.folders import Folder, make_private, open_growing, remove
from holdfast.base.locks import identity, lives
from holdfast.base.locks import try_lock as try_lock


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
                make_private(self.folder)
                with Folder.at(self.folder) as folder, folder.create(token) as file:
                    fd = os.dup(file.fileno())
                    if try_lock(fd) is None:  # no locks here: what stands in it tells who we are
                        file.write(json.dumps(identity(os.getpid())).encode())
                        file.flush()
                if try_lock(fd) is not False:
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
            fd = open_growing(path, make=False)
        except OSError:
            return False
        try:
            free = try_lock(fd)
        finally:
            os.close(fd)
        said = read_json(path) if free is None else None
        return free is False or (said is not None and lives(said) is not False)

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
            remove(path)

    def _path(self, token: str) -> Path | None:
        """A token comes from a file that may have been edited: nothing but a name of ours is followed."""
        return self.folder / token if re.fullmatch(r"[0-9a-f]{16}", token) else None
