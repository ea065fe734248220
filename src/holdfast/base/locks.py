"""Locks that a dead process cannot keep. One rule for all of them: the run's, the ledger's, the planner's, the data's.

    lock = Lock(run / "lock")
    lock.take()                       # True; False if another process has it
    lock.fd                           # a child that inherits it holds the lock beside us, and after us
    lock.share(child.pid)             # the same where a claim stands in
    lock.stand_in                     # True where the file system has no locks
    lock.release()
    is_held(run / "lock")             # asked by anybody

The kernel takes a lock back from the dead, so none is ever stale. Some file systems have none (Lustre without `-o
flock`, some FUSE): there a claim stands in, a file `lock.0123456789abcdef` that names a process by number, start,
machine and boot. A claim whose process is gone counts for nothing and is removed. Whoever wants the lock puts
his claim down first and looks around after that: of two who come at once at least one sees the other and steps back.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

from holdfast.base.files import read_json
from holdfast.base.folders import Folder

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_FAR = 1 << 20
"""Behind what is in the file: locked bytes cannot be read on Windows."""


def try_lock(fd: int) -> bool | None:
    """Take the lock of an open file: True; False if another has it; None where the file system has no locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(fd, _FAR, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


class Lock:
    """One lock, held by this process or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd: int | None = None
        self.stand_in = False
        """Whether a claim of ours does the work."""
        self.without_locks = False
        """Whether the file system has none."""
        self._claims: list[str] = []

    def open(self) -> None:
        """The file alone, without its lock: for a process whose parent holds that. OSError if it cannot be."""
        if self.fd is None:
            with Folder.at(self.path.parent) as folder:
                self.fd = folder.grow(self.path.name)

    def take(self, words: str = "") -> bool:
        """Take it if it is free; `words` tell others who has it. OSError if the file is not one of ours."""
        self.open()
        assert self.fd is not None
        taken = try_lock(self.fd)
        self.without_locks = taken is None
        if taken is None:
            taken = self._claim()
            self.stand_in = taken
        if not taken:
            self.release()
            return False
        with contextlib.suppress(OSError):  # a full disk may leave it without words, but it is held
            os.truncate(self.fd, 0)
            os.write(self.fd, f"{words or f'pid {os.getpid()}'}\n".encode())
        return True

    def share(self, pid: int) -> None:
        """Another process holds it beside us, and after us. Where there are locks it has inherited `fd`."""
        if self.stand_in:
            with contextlib.suppress(OSError):
                self._claims.append(_put_claim(self.path, identity(pid)))

    def release(self) -> None:
        """Let go. Who inherited it has it still."""
        fd, self.fd = self.fd, None
        for name in self._claims[:1]:  # the others are removed when those who hold them are gone
            _withdraw(self.path, name)
        self._claims, self.stand_in = [], False
        if fd is not None:
            os.close(fd)

    def _claim(self) -> bool:
        mine = _put_claim(self.path, identity(os.getpid()))
        if claimants(self.path, but=mine):
            _withdraw(self.path, mine)
            return False
        self._claims = [mine]
        return True


def is_held(path: Path) -> bool:
    """True while a living process holds the lock. A lock file that is not there is not made."""
    try:
        with Folder.at(path.parent) as folder:
            try:
                fd = folder.grow(path.name, make=False)
            except OSError:  # a read-only copy, or somebody else's
                with folder.read(path.name) as file:
                    return _asked(path, file.fileno())
    except OSError:
        return False
    try:
        return _asked(path, fd)
    finally:
        os.close(fd)


def _asked(path: Path, fd: int) -> bool:
    free = try_lock(fd)
    return bool(claimants(path)) if free is None else not free


def holder(path: Path) -> str:
    """What whoever has the lock says of itself; empty if nothing."""
    try:
        with Folder.at(path.parent) as folder, folder.read(path.name) as file:
            said = file.read(200).decode(errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in said)


# Claims ---------------------------------------------------------------------------------------------------


def claimants(path: Path, but: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Claims whose processes live, or may live as nobody can tell from here: file name and what it says.

    Those of the dead are removed on the way.
    """
    found = []
    with contextlib.suppress(OSError), Folder.at(path.parent) as folder:
        for name in folder.names():
            if name == but or not re.fullmatch(re.escape(path.name) + r"\.[0-9a-f]{16}", name):
                continue
            said = read_json(path.with_name(name))
            if said is not None and lives(said) is False:
                folder.discard(name)
            else:
                found.append((name, said or {}))
    return found


def identity(pid: int) -> dict[str, Any]:
    """What tells a process from every other, also from a later one of the same number."""
    from holdfast.base import processes

    return {"pid": pid, "host": _host(), "boot": processes.boot_id(), "started": _started(pid)}


def lives(said: dict[str, Any]) -> bool | None:
    """Whether the process of an identity lives; None for one of another machine or container."""
    from holdfast.base import processes

    pid, boot = said.get("pid"), said.get("boot")
    if said.get("host") != _host() or not isinstance(pid, int):
        return None
    if boot != processes.boot_id() or not processes.exists(pid):
        return False
    info = processes.inspect(pid)
    return _started(pid) == said.get("started") and (info is None or info.state not in "ZX")


def _host() -> str:
    """A machine, or a container: process numbers mean something only within one."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _started(pid: int) -> str | None:
    from holdfast.base import processes

    info = processes.inspect(pid)
    if info is not None:
        return str(info.started)
    if sys.platform != "darwin":
        return None
    import subprocess

    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _put_claim(path: Path, said: dict[str, Any]) -> str:
    """Whole at once: nobody sees a claim that names nobody yet."""
    name = f"{path.name}.{os.urandom(8).hex()}"
    with Folder.at(path.parent) as folder:
        folder.replace(name, json.dumps(said).encode())
        folder.sync()
    return name


def _withdraw(path: Path, name: str) -> None:
    with contextlib.suppress(OSError), Folder.at(path.parent) as folder:
        folder.discard(name)
