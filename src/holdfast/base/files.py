"""Files that others may have written, and files that must really be on the disk.

    with open_regular(path) as file: ...      # never a link, a pipe or a device: those are an OSError with words
    read_bounded(path, 1 << 20)               # never more than was asked for
    flush_to_disk(fd); forget_cached(fd)      # what is read after this comes from the disk, where the system lets us
    write_json(path, data)                    # replaced whole, never half, by the rules of folders.py
    read_json(path)                           # an object, or None for anything else
    in_folder(folder, "*.json")               # what is there, while others put files in and take them away

A run folder can come from anybody. A link in it may lead out of it, a named pipe may never answer and a device may
never end: whoever reads a run folder he does not own reads it through here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.folders import kind as _kind
from holdfast.base.folders import remove as remove
from holdfast.base.folders import write_whole

MAX_JSON = 16 << 20
"""Bytes of a JSON file of ours; a longer one is not read."""

_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def kind_of(path: Path) -> str | None:
    """What stands there instead of a file: "a link", "a folder", …; None for a file, OSError if nothing is there."""
    return _kind(path.lstat().st_mode)


def open_regular(path: Path, *, buffering: int = -1) -> BinaryIO:
    """Open a plain file for reading."""
    kind = kind_of(path)  # Windows has no O_NOFOLLOW, and Linux would name a link "too many levels of symbolic links"
    if kind is not None:
        raise OSError(errno.EINVAL, f"{kind}, not a file")
    fd = os.open(path, _OPEN)
    try:
        kind = _kind(os.fstat(fd).st_mode)
        if kind is not None:
            raise OSError(errno.EINVAL, f"{kind}, not a file")
        return open(fd, "rb", buffering=buffering)
    except OSError:
        os.close(fd)
        raise


def read_bounded(path: Path, limit: int) -> bytes:
    """All of a plain file; OSError if there is more than `limit` of it."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes")
    return data


def flush_to_disk(fd: int) -> None:
    """Not before this returns is it on the disk. macOS means that only if it is asked in its own way."""
    if sys.platform == "darwin":
        import fcntl

        with contextlib.suppress(OSError):  # not every file system there has it
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)


def begin_to_flush(fd: int, start: int, size: int) -> None:
    """Let the disk begin with these bytes, without a wait: else it begins when somebody waits for all of them."""
    if sys.platform == "linux" and hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, start, size, os.POSIX_FADV_DONTNEED)


def forget_cached(fd: int) -> None:
    """Ask the system to drop its copy in memory, so that what is read next is what the disk gives."""
    if sys.platform == "linux" and hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    elif sys.platform == "darwin":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_NOCACHE, 1)


# JSON -----------------------------------------------------------------------------------------------------


def write_json(path: Path, data: dict[str, Any], *, durable: bool = True) -> None:
    """Replace a file whole: a reader sees the old one or the new one."""
    text = json.dumps(data, indent=2, default=str) + "\n"
    write_whole(path, text.encode(errors="backslashreplace"), durable=durable)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file we may not have written; None if it is anything else."""
    try:
        data = json.loads(read_bounded(path, MAX_JSON))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def whole(value: object, default: int = 0) -> int:
    """A count from a file we may not have written: anything that is not one is `default`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else default


def number(value: object, default: float = 0.0) -> float:
    """The same for an amount, which is finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return default
    return float(value) if abs(value) < 1e300 else default


def in_folder(folder: Path, pattern: str = "*") -> Iterator[tuple[Path, os.stat_result]]:
    """What is in a folder that others write to: what goes while one looks, be it the folder itself, is not in it."""
    try:
        found = sorted(folder.glob(pattern))
    except OSError:
        return
    for path in found:
        try:
            status = path.stat()
        except OSError:
            continue
        yield path, status


def sync_folder(path: Path) -> None:
    """Make renames inside a folder durable, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def private(path: str, flags: int) -> int:
    """For `open`: a new file is its owner's alone."""
    return os.open(path, flags, 0o600)
