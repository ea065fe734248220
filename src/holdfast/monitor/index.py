"""What was read of a run, kept in the user's cache, so that the next process reads only what came since.

    kept = Index.of(run_folder)
    saved = kept.load()                  # None if there is none, or it is not for these files
    kept.save(header, parts)             # whole, replaced in one move; failing to is no error

    ~/.cache/holdfast/runs/3f2a….index   magic · length of the header · header (JSON) · columns, mapped when read

The run folder itself is never written to: it may be read-only, or somebody else's. The cache is private to its user,
and can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.files import in_folder, open_regular
from holdfast.base.folders import make_private

MAGIC = b"holdfast index 4\n"
KEEP, KEEP_DAYS = 200, 60
"""Runs whose index is kept, and for how long after it was last written."""
_MOST_HEADER = 64 << 20

Part = tuple[str, str, Callable[[Callable[[Any], Any]], int]]
"""A name, a typecode, and what writes its bytes."""


class Index:
    """The file that remembers one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, folder: Path) -> Index:
        key = sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:32]
        return cls(cache_folder() / "runs" / f"{key}.index")

    def load(self) -> tuple[dict[str, Any], dict[str, memoryview], mmap.mmap] | None:
        """The header, the columns by name, and the map they are in; None for anything that `save` did not write."""
        try:
            with open_regular(self.path) as file:
                if not _ours(file):
                    return None
                page = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return (*_parse(memoryview(page)), page)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def save(self, header: dict[str, Any], parts: Iterable[Part]) -> bool:
        """Write it whole beside the old one and put it in its place; False if that cannot be done."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            make_private(self.path.parent)
            with open(temporary, "xb", opener=_private) as file:
                _write(file, header, list(parts))
            os.replace(temporary, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        _clean(self.path.parent)
        return True


def cache_folder() -> Path:
    """Where this user keeps what can be made again."""
    said = os.environ.get("XDG_CACHE_HOME", "")
    if said and os.path.isabs(said):
        return Path(said) / "holdfast"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "holdfast" / "cache"
    try:
        home = Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"holdfast-cache-{os.getpid()}"
    return home / ("Library/Caches/holdfast" if sys.platform == "darwin" else ".cache/holdfast")


def _write(file: BinaryIO, header: dict[str, Any], parts: list[Part]) -> None:
    """The header comes first but knows the lengths: they are written into a space of fixed width at the end."""
    text = json.dumps(header).encode()
    file.write(MAGIC.ljust(24) + len(text).to_bytes(8, "little") + text)
    table: list[tuple[str, str, int, int]] = []
    for name, typecode, write in parts:
        file.write(bytes(-file.tell() % 8))
        begin = file.tell()
        write(file.write)
        table.append((name, typecode, begin, file.tell() - begin))
    listing = json.dumps(table).encode()
    file.write(listing + len(listing).to_bytes(8, "little"))


def _parse(page: memoryview) -> tuple[dict[str, Any], dict[str, memoryview]]:
    if bytes(page[: len(MAGIC)]) != MAGIC:
        raise ValueError("not an index")
    length = int.from_bytes(page[24:32], "little")
    listed = int.from_bytes(page[-8:], "little")
    if length > _MOST_HEADER or listed > _MOST_HEADER or 40 + length + listed > len(page):
        raise ValueError("not an index")
    header = json.loads(bytes(page[32 : 32 + length]))
    table = json.loads(bytes(page[len(page) - 8 - listed : -8]))
    if not isinstance(header, dict):
        raise ValueError("not an index")
    columns = {}
    for name, typecode, begin, count in table:
        if not 0 <= begin <= begin + count <= len(page) or typecode not in "qidIQB":
            raise ValueError("not an index")
        columns[str(name)] = page[begin : begin + count].cast(typecode)
    return header, columns


def _ours(file: BinaryIO) -> bool:
    """Nobody else may have put it there."""
    return not hasattr(os, "getuid") or os.fstat(file.fileno()).st_uid == os.getuid()


def _clean(folder: Path) -> None:
    """Old ones go, and those of runs that were looked at long ago."""
    there = sorted(in_folder(folder, "*.index"), key=lambda each: each[1].st_mtime, reverse=True)
    oldest = time.time() - KEEP_DAYS * 86400
    for at, (path, status) in enumerate(there):
        if at >= KEEP or status.st_mtime < oldest:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
