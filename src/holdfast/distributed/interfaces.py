"""Addresses of this machine: which network interface reaches another one. No torch.

    split("10.0.0.1:29400", 29400)     # ("10.0.0.1", 29400)
    interface_to("10.0.0.1")           # "eth0"; None where that cannot be found out
    listen("10.0.0.1", 29400)          # a socket that others can connect to

gloo would take the address that the machine's own name resolves to. That is often 127.0.1.1, which no other machine
can reach.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path

_SIOCGIFADDR = 0x8915
_BACKLOG = 64


def split(address: str, port: int) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT or [HOST]:PORT; ValueError if the port is none."""
    host, colon, number = address.rpartition(":")
    if not colon or (address.count(":") > 1 and not address.startswith("[")):
        return address.strip("[]"), port
    if not number.isdigit() or not 0 < int(number) < 65536:
        raise ValueError(f"`{number}` is no port")
    return host.strip("[]"), int(number)


def address_to(host: str) -> str | None:
    """The address of this machine from which packets to that host leave. Nothing is sent."""
    with contextlib.suppress(OSError):
        for family, kind, *_, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return None


def interface_to(host: str) -> str | None:
    own = address_to(host)
    if own is None:
        return None
    found = ipaddress.ip_address(own.partition("%")[0])
    if found.is_loopback:
        return "lo0" if sys.platform == "darwin" else "lo"
    if sys.platform != "linux":
        return None
    return _with_address4(own) if found.version == 4 else _with_address6(found)


def _with_address4(own: str) -> str | None:
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    return None


def _with_address6(own: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            if ipaddress.ip_address(bytes.fromhex(digits)) == own:
                return name
    return None


def listen(host: str, port: int) -> socket.socket:
    """Where other machines connect: at that address, or at all where this machine does not have it (NAT)."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        server = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # the port is taken: another address would not help
            raise
        server = socket.create_server(("", port), backlog=_BACKLOG)
    server.setblocking(False)
    os.set_inheritable(server.fileno(), False)
    return server
