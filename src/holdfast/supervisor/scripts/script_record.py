"""What a script printed, kept in the run folder: all of it, or the beginning and the end of very much.

    record = Record(run.path / "output.log", most=64 << 20)
    record.write(data)               # never raises: a full disk costs the record, not the run
    record.last_words()              # the end of what the process that runs now has printed, as text
    record.process_begins()

A script may print megabytes a second for a week. When the file has half of what it may have, it becomes
`output.1.log` and a new one begins: the newest half is always there, and never more than the whole.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

from holdfast.base.folders import Folder, open_growing

TAIL = 64 << 10
LAST_LINES = 200


class Record:
    """One run's output on disk, and its end in memory."""

    def __init__(self, path: Path, most: int = 64 << 20) -> None:
        self.path = path
        self.half = max(1, most // 2)
        self.bytes = 0
        """Printed by all processes of the run."""
        self.of_process = 0
        """Printed by the one that runs now."""
        self._tail = bytearray()
        self._file: IO[bytes] | None = None
        self._size = 0
        self._open()

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            fd = open_growing(self.path)
            self._file = open(fd, "ab", buffering=0)  # noqa: SIM115 - open for the run's life
            self._size = os.fstat(fd).st_size

    def write(self, data: bytes) -> None:
        self.bytes += len(data)
        self.of_process += len(data)
        self._tail += data
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]
        if self._file is None:
            return
        try:
            if self._size >= self.half:
                self._turn()
            self._size += self._file.write(data) or 0
        except OSError:  # the next chunk may find room again
            return

    def hidden(self, data: bytes) -> None:
        """Printed, and not shown because it was shown before: only the last words of a process need it."""
        self.of_process += len(data)
        self._tail += data
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]

    def _turn(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        with Folder.at(self.path.parent) as folder:
            folder.rename(self.path.name, "output.1.log")
        self._open()

    def process_begins(self) -> None:
        """What is printed from here on is the new process's."""
        self._tail.clear()
        self.of_process = 0

    def last_words(self) -> str:
        text = bytes(self._tail[-TAIL:]).decode(errors="replace")
        return "\n".join(text.splitlines()[-LAST_LINES:])

    def tail(self, size: int = 4096) -> str:
        return bytes(self._tail[-size:]).decode(errors="replace")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
