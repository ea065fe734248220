"""A file of lines that outlives its disk: what cannot be written now is kept, within bounds, and written later.

    lines = LineFile(path)
    lines.append('{"event": "fault"}', durable=True)      # never raises: a full disk is not the run's fault
    lines.flush()                                         # True once everything is in the file
    lines.problem                                         # why it is not, or None

The folder may be full, read-only, moved away or deleted while we write. A line that was written in part is finished
when there is room; a file that is another one now gets the whole line. Nothing is ever written in a place that somebody
has taken away: it comes back where it was, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.files import open_regular
from holdfast.base.folders import Folder, open_growing

MOST = 16 << 20
"""Bytes kept while they cannot be written: days of a usual journal."""
LONGEST = 1 << 20
"""Bytes of a line that is read."""


def objects(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects among lines that somebody appended; torn and foreign ones are passed over."""
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def bounded_lines(file: BinaryIO, longest: int = LONGEST) -> Iterator[bytes]:
    """The lines of a file that may be anybody's. One that is longer is none of ours and is passed over, not kept."""
    whole = True
    while line := file.readline(longest + 1):
        ends = line.endswith(b"\n")
        if whole and (ends or len(line) <= longest):
            yield line
        whole = ends


class LineFile:
    """Appended lines, in order, once each."""

    def __init__(self, path: Path, *, most: int = MOST) -> None:
        self.path = path
        self.problem: OSError | None = None
        """Why the last attempt did not write everything."""
        self.dropped = 0
        """Lines that were too many to keep; the oldest go first."""
        self._most = most
        self._fd: int | None = None
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._begun = 0
        """Bytes of the first waiting line that are in the file already."""
        self._durable = False

    @property
    def waiting(self) -> int:
        """Lines that are not in the file yet."""
        return len(self._waiting)

    def append(self, line: str, *, durable: bool = False) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        self._waiting.append(data)
        self._bytes += len(data)
        self._durable = self._durable or durable
        self.flush()
        self._shed()

    def flush(self) -> bool:
        """Write what waits; False if some of it still does."""
        if not self._waiting and not self._durable:
            return True
        try:
            fd = self._open()
            while self._waiting:
                self._write_first(fd)
            if self._durable:
                os.fsync(fd)
        except OSError as error:
            self.problem = error
            return False
        self._durable = False
        self.problem = None
        return True

    def move(self, path: Path) -> None:
        """Go on elsewhere, with all that was written here: what a deleted file held can still be read from it."""
        old, self._fd, self._begun = self._fd, None, 0
        with contextlib.suppress(OSError):
            if old is None:
                with open_regular(self.path, buffering=0) as file:
                    old = os.dup(file.fileno())
            self._copy(old, path)
        if old is not None:
            os.close(old)
        self.path = path
        self._durable = True
        self.flush()

    def close(self) -> None:
        self.flush()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        """The file that has our name now: ours may have been moved away, deleted, or replaced."""
        if self._fd is not None and self._is_ours(self._fd):
            return self._fd
        fd = open_growing(self.path)  # where the folder is gone, this fails, and ours stays open
        try:
            _end_line(fd)
        except OSError:
            os.close(fd)
            raise
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._begun = fd, 0
        return fd

    def _is_ours(self, fd: int) -> bool:
        try:
            there = os.lstat(self.path)
        except FileNotFoundError:
            return False
        ours = os.fstat(fd)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def _write_first(self, fd: int) -> None:
        line = self._waiting[0]
        self._begun += os.write(fd, line[self._begun :])
        if self._begun == len(line):
            self._waiting.popleft()
            self._bytes -= len(line)
            self._begun = 0

    def _shed(self) -> None:
        """Give up the oldest; a line that is in the file in part stays, to be finished."""
        while self._bytes > self._most and len(self._waiting) > 2:
            first = self._waiting.popleft()
            old = self._waiting.popleft() if self._begun else first
            if self._begun:
                self._waiting.appendleft(first)
            self._bytes -= len(old)
            self.dropped += 1

    def _copy(self, fd: int, path: Path) -> None:
        with Folder.at(path.parent) as folder, folder.create(path.name) as file:
            at = 0
            while chunk := os.pread(fd, 1 << 20, at) if hasattr(os, "pread") else _read_at(fd, at):
                file.write(chunk)
                at += len(chunk)


def _end_line(fd: int) -> None:
    """One that was cut off by a power cut is ended first, or it would swallow ours."""
    size = os.lseek(fd, 0, os.SEEK_END)
    if size:
        os.lseek(fd, size - 1, os.SEEK_SET)
        if os.read(fd, 1) != b"\n":
            os.write(fd, b"\n")


def _read_at(fd: int, at: int) -> bytes:
    os.lseek(fd, at, os.SEEK_SET)
    return os.read(fd, 1 << 20)
