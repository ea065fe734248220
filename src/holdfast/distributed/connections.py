"""The connections of a rank to the others, as descriptors: which there are, which have ended, and how to end them.

    before = connections()
    ...                                     # gloo builds a group
    own = connections() - before
    any(has_ended(*each) for each in own)   # a rank is gone
    hang_up(own)                            # nobody waits for this rank any more

A descriptor goes with the inode of its socket, because the number may belong to another file later.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable


def connections() -> frozenset[tuple[int, int]]:
    """Every connection of this process, where the system lists them."""
    found = set()
    for folder in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError, ValueError):
                    status = os.fstat(int(name))
                    if stat.S_ISSOCK(status.st_mode):
                        with socket.socket(fileno=os.dup(int(name))) as own:
                            own.getpeername()  # OSError for the one that listens: gloo ends the process if it ends
                        found.add((int(name), status.st_ino))
            break
    return frozenset(found)


def ends(sockets: Iterable[tuple[int, int]], *, far: bool = False) -> dict[tuple[int, int], str]:
    """The address of this end of each connection, or of the other one."""
    found = {}
    for fd, inode in sockets:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as own:
            if own.family in (socket.AF_INET, socket.AF_INET6):  # ranks have no others to each other
                host, port = (own.getpeername() if far else own.getsockname())[:2]
                found[fd, inode] = f"{host} {port}"
    return found


def has_ended(fd: int, inode: int) -> bool:
    try:
        if os.fstat(fd).st_ino != inode:
            return True
        with socket.socket(fileno=os.dup(fd)) as own:
            return own.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def hang_up(sockets: Iterable[tuple[int, int]]) -> None:
    """gloo cannot end an exchange that is under way, here or in other ranks (torch 2.12). The end of a connection can.

    A descriptor that is another file by now is left alone.
    """
    for fd, inode in sockets:
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == inode:
                with socket.socket(fileno=os.dup(fd)) as own:
                    own.shutdown(socket.SHUT_RDWR)
