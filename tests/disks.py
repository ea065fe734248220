"""Real disks that fail: a small one that fills up, one that turns read-only.

    with small_disk(tmp_path / "disk", "2m") as disk:
        fill(disk); ...; make_room(disk)
    with read_only(folder): ...

They are mounts of their own (tmpfs, bind), so they need the right to mount; where there is none the test is skipped
with that reason. Only what was mounted here is unmounted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

FILLER = "filler"


def _mount(*words: object) -> None:
    command = shutil.which("mount")
    if command is None:
        pytest.skip("there is no mount command here")
    done = subprocess.run([command, *map(str, words)], capture_output=True, text=True, timeout=100)
    if done.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A tmpfs of `size` at `path`."""
    path.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", path)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=100)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """The folder as a file system that turned read-only: files that are open stay writable, as on Linux."""
    _mount("--bind", path, path)
    try:
        _mount("-o", "remount,bind,ro", path)
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=100)


def fill(disk: Path) -> None:
    """Not one byte is left."""
    fd = os.open(disk / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(fd, b"x" * size)
        with pytest.raises(OSError) as full:
            os.write(fd, b"x")
        assert full.value.errno == errno.ENOSPC
    finally:
        os.close(fd)


def make_room(disk: Path) -> None:
    (disk / FILLER).unlink()
