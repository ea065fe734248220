"""What the script's files held at its last commit, put aside before a new process runs the set-up again.

asides = Asides(run_folder / "written")
asides.note(sequence, {"/home/me/log.csv": 4711})      # at each commit
asides.put(sequence)                                   # before a process starts that is led back to that commit
asides.found                                           # {path: the copy of it}: what that process is told
asides.used()                                          # it has put them back
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

from holdfast.base.files import remove
from holdfast.base.folders import Folder

COMMITS = 32


class Asides:
    """Of one run."""

    def __init__(self, folder: Path) -> None:
        self.found: dict[str, str] = {}
        self._folder = folder
        self._sizes: dict[int, dict[str, int]] = {}
        self._for: int | None = None
        """The commit whose files are aside and were not put back yet: the set-up may have emptied the originals."""

    def note(self, sequence: int, sizes: Any) -> None:
        if isinstance(sizes, dict):
            self._sizes[sequence] = {str(path): int(size) for path, size in sizes.items()}
        while len(self._sizes) > COMMITS:
            del self._sizes[next(iter(self._sizes))]

    def put(self, sequence: int) -> None:
        if self._for == sequence:
            return
        self.found = {}
        remove(self._folder)
        noted = max((each for each in self._sizes if each <= sequence), default=None)  # a script's last commit is not
        known = self._sizes[noted] if noted is not None else {}
        if known:
            with Folder.at(self._folder.parent) as run, run.below(self._folder.name, make=True) as folder:
                for number, (path, size) in enumerate(known.items()):
                    with contextlib.suppress(OSError):
                        folder.replace(str(number), _cut(path, size))
                        self.found[path] = str((self._folder / str(number)).absolute())
        self._for = sequence

    def used(self) -> None:
        self._for = None


def _cut(path: str, size: int) -> bytes:
    """The first bytes of one of the script's files, which has no others afterwards."""
    fd = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(fd, "r+b") as source:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is not a file")
        content = source.read(size)
        source.truncate(len(content))
    return content
