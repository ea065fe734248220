"""The one way into a run folder for whoever writes or deletes there: by descriptors, and never through a link.

    with Folder.at(run) as folder: ...                     # the run folder itself may be reached as its user likes
    with Folder.at(run / "faults" / "01", inner=2) as ...  # its last two parts may not be links
    folder.below("checkpoints", make=True)                 # a folder in it
    folder.create("state.safetensors")                     # a new file: it must not be there
    folder.grow("journal.jsonl")                           # a file that grows: plain, with one name, of our own
    folder.replace("run.json", data, durable=True)         # whole, never half
    folder.rename(old, new), folder.remove(name)

A run folder can come from anybody. `checkpoints` may be a link to somebody's pictures, `journal.jsonl` a link to the
file a shell starts with, `lock` a pipe. What is not what it should be is an OSError with words. Files are 0600 and
folders 0700 whatever the umask says. Where a system has no descriptors for folders (Windows), each name is looked at
before it is used and compared after it was opened: a link that was there before us is refused all the same.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

BY_DESCRIPTOR = (
    {os.open, os.stat, os.mkdir, os.unlink, os.rmdir, os.rename} <= os.supports_dir_fd
    and os.listdir in os.supports_fd
    and hasattr(os, "O_NOFOLLOW")
    and hasattr(os, "O_DIRECTORY")
)
DEEPEST = 40
"""Folders within each other that are removed; ours are three deep."""
_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_numbers = itertools.count()


def kind(mode: int) -> str | None:
    """What a mode stands for: "a link", "a folder", …; None for a plain file."""
    if stat.S_ISREG(mode):
        return None
    return next((name for is_one, name in _KINDS if is_one(mode)), "something else")


class Folder:
    """One open folder. What is done with a name in it is done in this very folder, wherever its path leads by now."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def at(cls, path: Path, *, inner: int = 0, make: bool = False) -> Folder:
        """The folder at a path. Its last `inner` parts are those below the run folder: none of them may be a link."""
        parts = path.parts[-inner:] if inner else ()
        base = Path(*path.parts[: len(path.parts) - len(parts)])
        folder = cls(base, None)
        if sys.platform != "win32" and BY_DESCRIPTOR:
            folder = cls(base, os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts:
            with folder as above:
                folder = above.below(part, make=make)
        return folder

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    # -- folders -------------------------------------------------------------------------------------------

    def below(self, name: str, *, make: bool = False) -> Folder:
        """A folder in this one; made if it is not there."""
        if make:
            with contextlib.suppress(FileExistsError):
                self.make(name)
        found = self.kind(name)
        if found != "a folder":
            raise NotADirectoryError(errno.ENOTDIR, f"{name} is {found or 'a file'}, not a folder")
        fd = None
        if sys.platform != "win32" and self._fd is not None:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _PLAIN, dir_fd=self._fd)
        return Folder(self.path / name, fd)

    def make(self, name: str) -> None:
        """A new folder, its owner's alone."""
        os.mkdir(self._place(name), 0o700, dir_fd=self._fd)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path if self._fd is None else self._fd))

    def sync(self) -> None:
        """Make renames in it durable, where the system lets a folder be flushed."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)

    # -- files ---------------------------------------------------------------------------------------------

    def status(self, name: str) -> os.stat_result:
        """Of the name itself: a link is not followed."""
        return os.stat(self._place(name), dir_fd=self._fd, follow_symlinks=False)

    def kind(self, name: str) -> str | None:
        """What stands there instead of a plain file; None for a plain file, OSError if nothing is there."""
        return kind(self.status(name).st_mode)

    def read(self, name: str, *, buffering: int = -1) -> BinaryIO:
        """A plain file, for reading."""
        return open(self._opened(name, os.O_RDONLY), "rb", buffering=buffering)

    def create(self, name: str) -> BinaryIO:
        """A new file for writing; FileExistsError if there is anything of this name, be it a link to nowhere."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN
        return open(os.open(self._place(name), flags, 0o600, dir_fd=self._fd), "wb")

    def change(self, name: str) -> BinaryIO:
        """A plain file that is there, for reading and writing."""
        return open(self._opened(name, os.O_RDWR), "r+b")

    def grow(self, name: str, *, make: bool = True, empty: bool = False) -> int:
        """A descriptor of a file that is appended to: a plain one, that has no other name and is ours."""
        fd = self._opened(name, os.O_RDWR | os.O_APPEND, make=make)
        try:
            self._check_ours(name, os.fstat(fd))
            if empty:
                os.truncate(fd, 0)
        except OSError:
            os.close(fd)
            raise
        return fd

    def replace(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """A file, whole: a reader sees the old one or the new one. A link of this name goes, and leads nowhere."""
        temporary = f".{name}.{os.getpid()}-{next(_numbers)}.tmp"
        self.discard(temporary)
        try:
            with self.create(temporary) as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            self.rename(temporary, name)
        except BaseException:
            self.discard(temporary)
            raise

    def rename(self, old: str, new: str, into: Folder | None = None) -> None:
        """Give something another name, here or in another folder; a file of that name is replaced."""
        there = into or self
        os.replace(self._place(old), there._place(new), src_dir_fd=self._fd, dst_dir_fd=there._fd)

    def link(self, name: str, second: str) -> None:
        """Give a file another name beside the one it has. OSError where the file system knows no such thing."""
        if self.kind(name) is not None:
            raise OSError(errno.EINVAL, "not a plain file")
        there = {} if self._fd is None else {"src_dir_fd": self._fd, "dst_dir_fd": self._fd}
        os.link(self._place(name), self._place(second), **there, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        os.unlink(self._place(name), dir_fd=self._fd)

    def remove(self, name: str, *, deep: int = 0) -> None:
        """Whatever it is, with all that is in it; a link is removed and not followed. OSError for what stays."""
        if self.kind(name) != "a folder":
            self.unlink(name)
            return
        if deep >= DEEPEST:
            raise OSError(errno.ELOOP, "too many folders within each other")
        with self.below(name) as inner:
            for each in inner.names():
                inner.remove(each, deep=deep + 1)
        os.rmdir(self._place(name), dir_fd=self._fd)

    def discard(self, name: str) -> None:
        """The same, if it can be done."""
        with contextlib.suppress(OSError):
            self.remove(name)

    # -- within --------------------------------------------------------------------------------------------

    def _place(self, name: str) -> str:
        """How the system calls it: beside a descriptor by its name alone, else by its whole path."""
        if name in ("", ".", "..") or "/" in name or "\0" in name or os.sep in name:
            raise OSError(errno.EINVAL, "not a name in a folder")
        return name if self._fd is not None else str(self.path / name)

    def _opened(self, name: str, flags: int, *, make: bool = False) -> int:
        """A plain file by descriptor: looked at before, as opening a device or a pipe may do something, and after."""
        with contextlib.suppress(FileNotFoundError):
            _check_plain(name, self.status(name).st_mode)
        flags |= _PLAIN | _NONBLOCK | (os.O_CREAT if make else 0)
        fd = os.open(self._place(name), flags, 0o600, dir_fd=self._fd)
        try:
            opened = os.fstat(fd)
            _check_plain(name, opened.st_mode)
            if self._fd is None and not os.path.samestat(opened, self.status(name)):
                raise OSError(errno.ELOOP, f"{name} is another file than it was")
            if sys.platform != "win32" and _NONBLOCK:
                os.set_blocking(fd, True)  # its children get it as their output
        except OSError:
            os.close(fd)
            raise
        return fd

    def _check_ours(self, name: str, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            raise OSError(
                errno.EMLINK,
                f"{name} has a second name (a hard link) elsewhere, and writing here would change that file",
            )
        if not hasattr(os, "geteuid") or status.st_uid == os.geteuid():
            return
        above = os.stat(self.path if self._fd is None else self._fd)
        if status.st_uid != above.st_uid:  # some file systems give everything to one user: then the folder, too
            raise PermissionError(errno.EPERM, f"{name} belongs to another user")


def _check_plain(name: str, mode: int) -> None:
    found = kind(mode)
    if found is not None:
        raise OSError(errno.EINVAL, f"{name} is {found}, not a file")


# By path --------------------------------------------------------------------------------------------------


def make_private(path: Path) -> None:
    """A folder and all those above it that are missing, each its owner's alone."""
    if not path.is_dir():
        if path.parent != path:
            make_private(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, data: bytes, *, durable: bool = False, inner: int = 0) -> None:
    """Replace a file whole. `inner`: how many folders lie between the run folder and the file."""
    with Folder.at(path.parent, inner=inner) as folder:
        folder.replace(path.name, data, durable=durable)


def open_growing(path: Path, *, make: bool = True, empty: bool = False, inner: int = 0) -> int:
    """A descriptor of a file that is appended to."""
    with Folder.at(path.parent, inner=inner) as folder:
        return folder.grow(path.name, make=make, empty=empty)


def remove(path: Path, *, inner: int = 0) -> None:
    """Whatever it is, if it can be done; a link is removed and not followed."""
    with contextlib.suppress(OSError), Folder.at(path.parent, inner=inner) as folder:
        folder.remove(path.name)
