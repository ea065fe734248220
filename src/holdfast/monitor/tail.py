"""Read a file of lines that somebody appends to: only what is new, whole lines only, whatever the file turns into.

    tail = Tail(path)
    for begin, lines in tail.read(): ...     # bytes without their ends, and where the first of them begins
    tail.replaced                            # True if this is another file than last time: forget what it said

Half a line is left for the next time. A line longer than LONGEST is no line of ours and is passed over. Links, pipes
and devices are not opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.files import number, open_regular, whole

CHUNK = 1 << 20
LONGEST = 1 << 18
_HEAD = 512
"""Bytes at the beginning that must stay the same for a file to be the same one."""


class Tail:
    """How far a file was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        """Bytes that were read and are not looked at again."""
        self.size = 0
        """Bytes there were at the last look."""
        self.replaced = False
        self.problem: str | None = None
        """Why it cannot be read, in words; None for a file that is readable or not there yet."""
        self._head = b""
        self._stamp: tuple[int, ...] = ()
        self._skipping = False

    @property
    def behind(self) -> int:
        """Bytes that are there and not read; half a line counts too."""
        return max(0, self.size - self.offset)

    def changed(self) -> bool:
        """Whether a look inside is worth it: one stat, nothing more."""
        try:
            seen = os.lstat(self.path)
        except FileNotFoundError:
            stamp: tuple[int, ...] = ()
            self.problem = None
        except OSError as error:
            stamp = (-1,)
            self.problem = str(error.strerror or error)
        else:
            stamp = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)
        return stamp != self._stamp

    def read(self) -> Iterator[tuple[int, list[bytes]]]:
        """Lines that are new, some at a time; the caller may stop at any point and come back."""
        self.replaced = False
        try:
            file = open_regular(self.path, buffering=0)
        except FileNotFoundError:
            self.problem = None
            self._forget(self.offset > 0)
            return
        except OSError as error:
            self.problem = str(error.strerror or error)
            return
        with file:
            self.problem = None
            yield from self._read(file)

    def _read(self, file: BinaryIO) -> Iterator[tuple[int, list[bytes]]]:
        seen = os.fstat(file.fileno())
        self.size = seen.st_size
        if self.offset > self.size or (self.offset and _head(file, len(self._head)) != self._head):
            self._forget(True)
            self.size = seen.st_size
        if len(self._head) < _HEAD:
            self._head = _head(file, min(_HEAD, self.size))
        while self.offset < self.size:
            file.seek(self.offset)
            data = file.read(min(CHUNK, self.size - self.offset))
            end = data.rfind(b"\n") + 1
            if not end:
                if len(data) <= LONGEST:
                    break
                self._skipping = True
                self.offset += len(data)
                continue
            begin = self.offset
            self.offset += end
            lines = data[: end - 1].split(b"\n")
            if self._skipping:
                self._skipping = False
                begin += len(lines[0]) + 1
                del lines[0]
            yield begin, lines
        if not self.behind or self.behind <= LONGEST:
            self._stamp = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)

    def last_lines(self, most: int) -> list[bytes]:
        """Whole lines at the end of the file as it is now, at most so many bytes, wherever reading stands."""
        try:
            with open_regular(self.path, buffering=0) as file:
                end = os.fstat(file.fileno()).st_size
                file.seek(max(0, end - most))
                data = file.read(most)
        except OSError:
            return []
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
        return lines if end <= most else lines[1:]

    def _forget(self, replaced: bool) -> None:
        self.replaced = replaced
        self.offset = self.size = 0
        self._head, self._stamp, self._skipping = b"", (), False

    # -- for the index -------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {"offset": self.offset, "head_bytes": len(self._head), "head": sha256(self._head).hexdigest()}

    def go_on_from(self, saved: dict[str, Any]) -> bool:
        """Take up where another process stopped; False if the file is not the one it read."""
        try:
            with open_regular(self.path, buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                head = _head(file, whole(saved.get("head_bytes")))
        except OSError:
            return not number(saved.get("offset"))
        offset = whole(saved.get("offset"))
        if offset > size or sha256(head).hexdigest() != saved.get("head"):
            return False
        self.offset, self.size, self._head = offset, size, head
        return True


def _head(file: BinaryIO, count: int) -> bytes:
    file.seek(0)
    return file.read(min(count, _HEAD))
