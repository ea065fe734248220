"""Files of a data set, which anybody may have made: opened without waiting, and unpacked only as far as there is room.

    with open_file(path) as file: ...         # a pipe or a device is an OSError with words; links are followed
    check_room(packed, unpacked)              # TooLarge: a few bytes that become more than any such file holds
    with open_npz(path) as arrays: ...        # an .npz whose arrays are as large as they should be

A pipe that nobody writes to would be waited for, and an archive of some megabytes can fill every memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base import processes
from holdfast.base.human import size

ALWAYS = 512 << 20
"""Bytes that a file may become, however small it is."""
TIMES = 64
"""What is packed more tightly than this is no measurement: noise does not pack."""
SHARE = 0.5
"""Of the memory that is free."""


class TooLarge(ValueError):
    """It would become too large; says how large."""


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a plain file, also through links, for reading."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(path, flags)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"{_kind(mode)}, not a file", str(path))
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """All of a plain file; OSError if there is more than `most` of it."""
    with open_file(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {size(most)}", str(path))
    return data


def room_for(packed: int) -> int:
    """Bytes that a file of `packed` bytes may become in memory."""
    free = processes.available_memory()
    most = max(ALWAYS, TIMES * packed)
    return most if free is None else min(most, max(1 << 20, int(SHARE * free)))


def check_room(packed: int, unpacked: int) -> None:
    """TooLarge if it would be more than there is room for."""
    if unpacked > room_for(packed):
        raise TooLarge(f"its {size(packed)} unpack to {size(unpacked)} or more, which is too much")


@contextlib.contextmanager
def open_npz(path: str | os.PathLike[str]) -> Iterator[Any]:
    """What numpy reads of an .npz, or the array of an .npy. ValueError for what is neither, or would be too large."""
    import numpy as np

    try:
        with open_file(path) as file:
            packed = os.fstat(file.fileno()).st_size
            if zipfile.is_zipfile(file):
                file.seek(0)
                with zipfile.ZipFile(file) as archive:
                    check_room(packed, sum(each.file_size for each in archive.infolist()))
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            yield loaded
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from None
    except MemoryError:
        raise TooLarge(f"{Path(path).name} claims more than there is memory") from None


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))
    return next((name for is_one, name in kinds if is_one(mode)), "a device")
