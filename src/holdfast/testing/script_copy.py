"""A copy of the folder that a script is started in: each run of an experiment begins with the same files.

    copies = Copies(Path.cwd(), leave=Path("runs"))      # UserError for a folder that is too large to be copied
    with copies.one() as folder:                         # the same path each time; removed afterwards
        ...                                              # the script runs there
        written = copies.written(folder)                 # {"out/ckpt.pt": Written}: new files and changed ones

The copy lies beside the folder, so that `../data` means the same. A virtual environment is linked; repositories of git
and caches are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.base.human import size

MOST_BYTES, MOST_FILES = 4 << 30, 100_000
LARGEST_TEXT = 4 << 20
"""Bytes of a file that is compared line by line."""
_LEFT_OUT = frozenset((".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "node_modules"))


@dataclass(frozen=True, slots=True)
class Written:
    """A file that a run has written."""

    sha256: str
    lines: tuple[str, ...] | None
    """Its lines if it is a text, else None."""


class Copies:
    """Of one folder."""

    def __init__(self, folder: Path, leave: Path) -> None:
        self.folder = folder.resolve()
        self.place = self.folder.parent / f".{self.folder.name or 'root'}.holdfast-chaos-{os.getpid()}"
        self._leave = leave.resolve()
        self._check()

    def _check(self) -> None:
        total = 0
        for files, path in enumerate(self._walk(self.folder), 1):
            total += path.lstat().st_size
            if files > MOST_FILES or total > MOST_BYTES:
                raise UserError(
                    f"{self.folder} is too large to be copied",
                    cause=f"each run begins with a copy of it: {size(MOST_BYTES)} and {MOST_FILES:,} files at most",
                    hints=["start it in a folder that holds the script alone, and name its data by absolute paths"],
                )
        if not os.access(self.folder.parent, os.W_OK):
            raise UserError(f"no copy of {self.folder} can be made beside it", cause="the folder above takes no files")

    def _walk(self, root: Path) -> Iterator[Path]:
        """All files but those that are left out."""
        for folder, names, files in os.walk(root):
            here = Path(folder)
            names[:] = [name for name in names if not self._left(here / name) and not _is_link(here / name)]
            for name in files:
                if not _is_link(here / name) and (here / name).is_file():
                    yield here / name

    def _left(self, path: Path) -> bool:
        return path.name in _LEFT_OUT or path == self._leave

    @contextlib.contextmanager
    def one(self) -> Iterator[Path]:
        self._remove()
        try:
            self._copy(self.folder, self.place)
            self._before = {str(path.relative_to(self.place)): _state(path) for path in self._walk(self.place)}
            yield self.place
        finally:
            self._remove()

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir()
        for entry in sorted(os.scandir(source), key=lambda each: each.name):
            path, new = Path(entry.path), target / entry.name
            if self._left(path):
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(path), new)
            elif entry.is_dir() and (path / "pyvenv.cfg").exists():
                os.symlink(path, new)
            elif entry.is_dir():
                self._copy(path, new)
            elif entry.is_file():
                shutil.copy2(path, new)

    def _remove(self) -> None:
        if self.place.is_dir():
            shutil.rmtree(self.place)

    def command(self, words: list[str]) -> list[str]:
        """The same command in the copy: a path below the folder becomes one below the copy."""
        here, there = str(self.folder), str(self.place)
        return [words[0], *(_moved(word, here, there) for word in words[1:])]

    def written(self, folder: Path) -> dict[str, Written]:
        found = {}
        for path in self._walk(folder):
            name = str(path.relative_to(folder))
            if self._before.get(name) != _state(path):
                found[name] = _read(path)
        return found


def _moved(word: str, here: str, there: str) -> str:
    head, equals, tail = word.rpartition("=")
    if tail == here or tail.startswith(here + os.sep):
        return f"{head}{equals}{there}{tail[len(here) :]}"
    return word


def _is_link(path: Path) -> bool:
    return path.is_symlink() or (path / "pyvenv.cfg").exists()


def _state(path: Path) -> tuple[int, int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns, about.st_ino


def _read(path: Path) -> Written:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    lines = None
    if path.stat().st_size <= LARGEST_TEXT:
        with contextlib.suppress(UnicodeDecodeError):
            text = path.read_bytes().decode()
            lines = tuple(text.splitlines()) if "\0" not in text else None
    return Written(digest.hexdigest(), lines)
