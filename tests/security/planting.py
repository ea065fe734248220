"""Things that somebody may plant in a run folder, and a place outside of it that has to stay as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

LINKS = ("link to a file", "link to a folder", "link to nowhere")
KINDS = (*LINKS, "hard link", "pipe", "socket", "device", "folder")
SECONDS = 30


def outside(root: Path) -> Path:
    """Somebody's own files: nothing we do in a run folder may reach them."""
    place = root / "outside"
    (place / "pictures" / "000001").mkdir(parents=True)
    (place / "shell start").write_text("export A=1\n")
    (place / "pictures" / "000001" / "cat.jpg").write_text("a cat")
    (place / "pictures" / "cat.jpg").write_text("a cat")
    for number in range(2, 6):
        (place / "pictures" / f"{number:06d}").mkdir()
        (place / "pictures" / f"{number:06d}" / "digest.json").write_text("{}")
    return place


def plant(kind: str, at: Path, place: Path) -> bool:
    """Put it there; False where this machine or this user cannot."""
    if kind == "link to a file":
        at.symlink_to(place / "shell start")
    elif kind == "link to a folder":
        at.symlink_to(place / "pictures")
    elif kind == "link to nowhere":
        at.symlink_to(place / "new")
    elif kind == "hard link":
        os.link(place / "shell start", at)
    elif kind == "pipe":
        os.mkfifo(at)
    elif kind == "socket":
        _socket(at)
    elif kind == "device":
        try:
            os.mknod(at, stat.S_IFCHR | 0o600, os.makedev(1, 7))  # /dev/full
        except PermissionError:
            return False
    else:
        at.mkdir()
        (at / "kept").write_text("somebody's")
    return True


def _socket(at: Path) -> None:
    """Its address may be a hundred bytes long; a path of a test is longer."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(at.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(at.name)
    finally:
        os.fchdir(before)
        os.close(before)


def seen(place: Path) -> dict[str, object]:
    """Everything below a folder: names, kinds, times and contents."""
    found: dict[str, object] = {}
    for path in sorted([place, *place.rglob("*")]):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_uid, content)
    return found


@contextlib.contextmanager
def in_time(what: str) -> Iterator[None]:
    """A pipe that is waited for is an error with a name, not a test that hangs."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{what}: still waiting after {SECONDS} s")

    if sys.platform == "win32":
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
