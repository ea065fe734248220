"""What a descriptor of a process is, and which processes hold its other end.

ends = Ends()                              # one look at the machine; a later one needs a new object
ends.name(pid, 5)                          # "pipe:[4711]", "socket:[815]", "/dev/pts/3", "anon_inode:[eventfd]"
ends.across(pid, 5, writing=False)         # Across: pids at the other end, or that it leads out of sight
ends.watched(pid, epoll)                   # the descriptors an epoll waits for
ends.holder_of_lock(pid)                   # who holds the file lock that this process waits for
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass

_ACCESS, _WRITE_ONLY, _READ_WRITE = 0o3, 0o1, 0o2
_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Across:
    """The other end of a pipe or a socket."""

    pids: frozenset[int] = frozenset()
    outside: bool = False
    """It leads to another machine, or to a process that cannot be seen."""
    words: str = ""
    listens: bool = False


class Ends:
    """Descriptors of a family of processes, read once and only where somebody asks.

    Nobody else has to be looked at: whoever waits for an end that no member holds waits for somebody outside.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._holders: dict[str, list[tuple[int, int]]] | None = None
        self._unix: dict[int, int] | None = None
        self._tcp: dict[str, tuple[str, str, str]] | None = None

    def name(self, pid: int, fd: int) -> str:
        try:
            return os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            return ""

    def is_fifo(self, pid: int, fd: int) -> bool:
        try:
            return stat.S_ISFIFO(os.stat(f"/proc/{pid}/fd/{fd}").st_mode)
        except OSError:
            return False

    def is_terminal(self, pid: int, fd: int) -> bool:
        return self.name(pid, fd).startswith(("/dev/pts/", "/dev/tty", "/dev/console"))

    # -- the other end -------------------------------------------------------------------------------------

    def across(self, pid: int, fd: int, *, writing: bool) -> Across:
        name = self.name(pid, fd)
        if name.startswith("pipe:"):
            return self._pipe(name, writing)
        if name.startswith("socket:"):
            return self._socket(pid, name)
        return Across(outside=True, words=name)

    def _pipe(self, name: str, writing: bool) -> Across:
        wanted = set()
        for pid, flags in self._who_holds(name):
            mode = flags & _ACCESS
            if mode == _READ_WRITE or (mode == _WRITE_ONLY) != writing:
                wanted.add(pid)
        # A read from a pipe that nobody writes to returns at once: whoever does not show must be out of sight.
        return Across(frozenset(wanted), outside=not wanted, words="a pipe")

    def _socket(self, pid: int, name: str) -> Across:
        inode = name[8:-1]
        connection = self._connections(pid).get(inode)
        if connection is not None:
            return self._tcp_peer(connection)
        if self._unix is None:
            self._unix = unix_peers()
        peer = self._unix.get(int(inode)) if inode.isdigit() else None
        if peer is None:
            return Across(outside=True, words="a socket", listens=int(inode or 0) in _listening_unix(pid))
        holders = {each for each, _ in self._who_holds(f"socket:[{peer}]")}
        return Across(frozenset(holders), outside=not holders, words="a socket")

    def _tcp_peer(self, connection: tuple[str, str, str]) -> Across:
        local, remote, state = connection
        if state == _LISTEN:
            return Across(outside=True, words=f"a connection on port {int(local.rpartition(':')[2], 16)}", listens=True)
        assert self._tcp is not None
        for inode, (theirs, ours, _) in self._tcp.items():
            if (theirs, ours) == (remote, local):
                holders = {each for each, _ in self._who_holds(f"socket:[{inode}]")}
                if holders:
                    return Across(frozenset(holders), words="a socket of its own")
        return Across(outside=True, words=f"a socket ({_address(remote)})")

    def _connections(self, pid: int) -> dict[str, tuple[str, str, str]]:
        if self._tcp is None:
            self._tcp = {}
            for name in ("tcp", "tcp6"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
                    for line in file.readlines()[1:]:
                        words = line.split()
                        if len(words) > 9:
                            self._tcp[words[9]] = (words[1], words[2], words[3])
        return self._tcp

    def _who_holds(self, name: str) -> list[tuple[int, int]]:
        """(pid, flags) of every descriptor with this name."""
        if self._holders is None:
            self._holders = {}
            for pid in self._pids:
                self._note(pid)
        return self._holders.get(name, [])

    def _note(self, pid: int) -> None:
        assert self._holders is not None
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                name = self.name(pid, int(fd))
                if name.startswith(("pipe:", "socket:")):
                    flags = _flags(pid, fd) if name.startswith("pipe:") else 0
                    self._holders.setdefault(name, []).append((pid, flags))

    # -- others --------------------------------------------------------------------------------------------

    def watched(self, pid: int, fd: int) -> list[tuple[int, bool]]:
        """(descriptor, is it only written to?) of each that an epoll looks after."""
        found = re.findall(r"^tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)", _info(pid, fd), re.M)
        return [(int(number), int(events, 16) & 5 == 4) for number, events in found]

    def process_of(self, pid: int, fd: int) -> int | None:
        """The process a pidfd stands for."""
        match = re.search(r"^Pid:\s*(\d+)", _info(pid, fd), re.M)
        return int(match[1]) if match else None

    def holder_of_lock(self, pid: int) -> int | None:
        """The process whose file lock this one waits for; None if it cannot be seen."""
        holder: int | None = None
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open("/proc/locks", encoding="ascii") as file:
                lines = file.readlines()
            for line in lines:
                words = line.split()
                waits = "->" in words
                number = int(words[5 if waits else 4])
                if waits and number == pid:
                    return holder
                if not waits:
                    holder = number if number > 0 else None
        return None


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if len(host) == 8:
        host = socket.inet_ntoa(struct.pack("<I", int(host, 16)))
    elif len(host) == 32:
        packed = b"".join(struct.pack("<I", int(host[at : at + 8], 16)) for at in range(0, 32, 8))
        host = f"[{socket.inet_ntop(socket.AF_INET6, packed)}]"
    return f"{host}:{int(port, 16)}"


def _info(pid: int, fd: int | str) -> str:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def _flags(pid: int, fd: str) -> int:
    match = re.search(r"^flags:\s*([0-7]+)", _info(pid, fd), re.M)
    return int(match[1], 8) if match else _READ_WRITE


def _listening_unix(pid: int) -> set[int]:
    """Sockets of a path or a name that accept connections."""
    found = set()
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="replace") as file:
            lines = file.readlines()[1:]
        for line in lines:
            words = line.split()
            if len(words) > 6 and int(words[3], 16) & 0x10000:
                found.add(int(words[6]))
    return found


def unix_peers() -> dict[int, int]:
    """The other end of each connected socket of this machine, by inode; empty where the kernel does not tell."""
    peers: dict[int, int] = {}
    if sys.platform != "linux" or not hasattr(socket, "AF_NETLINK"):
        return peers
    with contextlib.suppress(OSError, struct.error), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as link:
        link.settimeout(1.0)
        ask = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 4, 0xFFFFFFFF, 0xFFFFFFFF)
        link.send(struct.pack("=IHHII", 16 + len(ask), 20, 0x301, 1, 0) + ask)
        while _read_peers(link.recv(1 << 16), peers):
            pass
    return peers


def _read_peers(data: bytes, peers: dict[int, int]) -> bool:
    """One answer of the kernel; False if it was the last."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind in (2, 3) or length < 16:  # an error, or the end
            return False
        inode, part = struct.unpack_from("=I", data, at + 20)[0], at + 32
        while part + 8 <= at + length:
            size, what = struct.unpack_from("=HH", data, part)
            if what == 2:
                peers[inode] = struct.unpack_from("=I", data, part + 4)[0]
            part += max(4, (size + 3) & ~3)
        at += (length + 3) & ~3
    return True
