"""Which runs a page may show, and which bytes of them: nothing outside of the run folders, whatever a name says.

    places = Places(root, named)         # the runs below a folder, and those named on the command line
    places.ids()                         # names of folders; a link to elsewhere is not one of them
    places.path("windows-…-calm-heron")  # or KeyError
    open_inside(folder, "faults/01/README.txt")     # a plain file below the folder, reached through no link

A run folder may come from anybody. A link in it may lead to your keys, a name in it may be `../..` or markup.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.monitor.jsonfile import names_in, read_json
from holdfast.run.folder import name_of

MOST_RUNS = 500
"""That a list shows: the newest ones."""
MOST_FILES = 400
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class Places:
    """The runs a page may show."""

    def __init__(self, root: Path, named: list[Path] | None = None) -> None:
        self.root = Path(os.path.realpath(root))
        self._named = {path.name: path for path in (Path(os.path.realpath(each)) for each in named or [])}
        self._created: dict[str, tuple[int, str]] = {}
        """When each run began, with the number of its folder: another folder may get the same name later."""
        self.left_out = 0
        """Runs that were too old for the list when it was last made."""

    def ids(self) -> list[str]:
        """Folder names, the oldest first. Those that were named are always there, of the others the newest."""
        named = [name for name in self._named if _sayable(name)]
        below = [
            name
            for name in names_in(self.root)
            if name not in self._named and _sayable(name) and self._is_run(self.root / name)
        ]
        self._created = known = {name: self._began(name) for name in (*named, *below)}
        age = {name: created for name, (_, created) in known.items()}
        below.sort(key=lambda name: (age[name], name))
        room = max(0, MOST_RUNS - len(named))
        self.left_out = max(0, len(below) - room)
        return sorted([*named, *below[self.left_out :]], key=lambda name: (age[name], name))

    def _began(self, name: str) -> tuple[int, str]:
        """The number of the folder, and when the run began, as run.json says; that is read once."""
        path = self._named.get(name, self.root / name)
        try:
            number = path.lstat().st_ino
        except OSError:
            number = 0
        known = self._created.get(name)
        if known is not None and known[0] == number and known[1]:
            return known
        return number, str(read_json(path / "run.json").get("created") or "")

    def paths(self) -> dict[str, Path]:
        """Every run that `ids` names, with one look at the folder of the runs."""
        return {ident: self._named.get(ident, self.root / ident) for ident in self.ids()}

    def path(self, ident: str) -> Path:
        """By the folder's name, or by the run's: the newest of that name. KeyError for anything else.

        A run that is too old for the list is found as well: somebody may have kept its address.
        """
        if ident in self._named:
            return self._named[ident]
        if _one_name(ident) and self._is_run(self.root / ident):
            return self.root / ident
        below = (name for name in names_in(self.root) if name_of(Path(name)) == ident)
        same = [name for name in below if _sayable(name) and name not in self._named and self._is_run(self.root / name)]
        same += [name for name in self._named if name_of(Path(name)) == ident]
        if not same:
            raise KeyError(ident)
        newest = max(same, key=lambda name: (self._began(name)[1], name))
        return self._named.get(newest, self.root / newest)

    @staticmethod
    def _is_run(path: Path) -> bool:
        try:
            if not stat.S_ISDIR(path.lstat().st_mode):
                return False
            return stat.S_ISREG((path / "run.json").lstat().st_mode)
        except OSError:
            return False


def open_inside(folder: Path, relative: str) -> BinaryIO:
    """A plain file below `folder`; OSError for anything that is not one, or is reached through a link."""
    parts = relative.split("/")
    if not relative or any(part in ("", ".", "..") or "\0" in part or "\\" in part or ":" in part for part in parts):
        raise OSError(errno.EINVAL, "not a path inside of the run")
    fd = _walk(folder, parts) if os.open in os.supports_dir_fd else _step_by_step(folder, parts)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a file")
        return open(fd, "rb")
    except OSError:
        os.close(fd)
        raise


def _walk(folder: Path, parts: list[str]) -> int:
    """From folder to folder by descriptor, so that none can be swapped for a link between two looks."""
    at = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        for part in parts[:-1]:
            below = os.open(part, _FLAGS | getattr(os, "O_DIRECTORY", 0), dir_fd=at)
            os.close(at)
            at = below
        return os.open(parts[-1], _FLAGS, dir_fd=at)
    finally:
        os.close(at)


def _step_by_step(folder: Path, parts: list[str]) -> int:
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise OSError(errno.ELOOP, "a link")
    return os.open(path, _FLAGS | getattr(os, "O_BINARY", 0))


def files_of(folder: Path) -> list[dict[str, Any]]:
    """Every plain file of a run, with its size: three folders deep, no links, as many as a person would read."""
    found: list[dict[str, Any]] = []

    def look(path: Path, prefix: str, deep: int) -> None:
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            if len(found) >= MOST_FILES or not _sayable(entry.name):
                continue
            try:
                if entry.is_dir(follow_symlinks=False) and deep < 3:
                    look(Path(entry.path), f"{prefix}{entry.name}/", deep + 1)
                elif entry.is_file(follow_symlinks=False):
                    found.append({"path": f"{prefix}{entry.name}", "bytes": entry.stat(follow_symlinks=False).st_size})
            except OSError:
                continue

    look(folder, "", 0)
    return found


def _one_name(ident: str) -> bool:
    """The name of something in a folder, and not a way out of it."""
    return bool(ident) and not any(each in ident for each in "/:\0") and _sayable(ident)


def _sayable(name: str) -> bool:
    """A name that can be written in JSON and in an address."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return not name.startswith(".") and "\\" not in name
