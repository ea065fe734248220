"""The files that a script writes to: after a restart they hold what they held at the last commit.

    files.sizes(writers)                   # at a commit: {path: bytes}, buffers are written out first
    files.put_back(asides, writers)        # at the place of that commit, in a process that ran the set-up again

Files that are open for writing are found, and those that the script opened to append to and closed again. The
supervisor puts the content of each aside before it starts a new process, because the set-up of a script may
open its log with "w" and so empty it. A file that is written whole and closed is left alone: it is written again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR
_NOT = ("/dev/", "/proc/", "/sys/", "/memfd:")
_LARGEST = 256 << 20
"""Bytes of a file that is put aside; a larger one is not."""


def sizes(writers: Iterable[Any]) -> dict[str, int]:
    """How much each file that the script adds to holds now."""
    for each in writers:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            each.flush()
    found = {*_open_for_writing(), *_appended()}
    ours = [os.path.join(os.path.abspath(each), "") for each in _our_folders()]
    known = {}
    for path in sorted(found):
        if _left_alone(path) or path.startswith(tuple(ours)):
            continue
        with contextlib.suppress(OSError):
            about = os.stat(path)
            if stat.S_ISREG(about.st_mode) and about.st_size <= _LARGEST:
                known[path] = about.st_size
    return known


def _left_alone(path: str) -> bool:
    """No file of the script: a device, or shared memory, which lies directly in /dev/shm.

    A folder there may well be the one that the script was started in.
    """
    if path.startswith("/dev/shm/"):
        return "/" not in path.removeprefix("/dev/shm/")
    return path.startswith(_NOT)


def _our_folders() -> list[str]:
    hook = os.environ.get("HOLDFAST_HOOK", "")
    return [os.path.dirname(hook)] if hook else []


def _open_for_writing() -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                path = os.readlink(f"/proc/self/fd/{name}")
                if not path.startswith("/") or _left_alone(path):
                    continue
                flags = Path(f"/proc/self/fdinfo/{name}").read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & _WRITES:
                    found.append(path)
    return found


def _appended() -> list[str]:
    """What the hook saw being opened to append to."""
    return list(getattr(sys.modules.get("_holdfast_exact"), "_appended", ()))


def put_back(asides: dict[str, Any], writers: Iterable[Any]) -> None:
    """Each file holds again what was put aside of it; objects that write to it go on at its end."""
    known = list(writers)
    for each in known:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            each.flush()
    for path, aside in asides.items():
        with contextlib.suppress(OSError):
            content = Path(str(aside)).read_bytes()
            with open(path, "r+b" if os.path.exists(path) else "wb") as file:
                file.write(content)
                file.truncate()
    for each in known:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if os.path.abspath(str(each.name)) in asides and each.writable():
                each.seek(0, os.SEEK_END)
