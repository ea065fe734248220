"""Messages between two of our processes: one JSON object a line, with file descriptors where the system can.

    channel.send({"fork": 3}, fds=[board, output])     # nursery, worker, keeper: blocking
    message, fds = channel.receive()
    for message in channel.pending(): ...              # supervisor: whatever has arrived, never waiting

The other end is our own child or parent over a socket pair, or over loopback with a token where descriptors
cannot be passed. Nothing here is ever unpickled.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

Message = dict[str, Any]
_CHUNK = 1 << 16
_MAX_LINE = 64 << 20
_MAX_FDS = 64
_COUNT = "descriptors"
"""The key that says how many come with a message."""


class Closed(ConnectionError):
    """The other process is gone."""


class Channel:
    """One end of a conversation."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()
        self._fds: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two ends of one conversation, both inheritable by descriptor."""
        left, right = socket.socketpair()
        return cls(left), cls(right)

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one message; raises `Closed` if nobody is there to read it."""
        if fds:
            message = {**message, _COUNT: len(fds)}
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            if fds and sys.platform != "win32":
                sent = socket.send_fds(self.sock, [data], list(fds))
                data = data[sent:]
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionError) as error:
            raise Closed(str(error)) from error

    def receive(self, timeout: float | None = None) -> tuple[Message, list[int]]:
        """Wait for one message and the descriptors that came with it."""
        self.sock.settimeout(timeout)
        try:
            while b"\n" not in self._buffer:
                self._read()
        finally:
            self.sock.settimeout(None)
        return self._next()

    def has_news(self) -> bool:
        """Whether a message has arrived, or begins to."""
        return bool(self._buffer) or bool(select.select([self.sock], [], [], 0)[0])

    def gone(self) -> bool:
        """Whether the other process has ended, or has closed its end. Nothing is read, and nobody waits."""
        self.sock.setblocking(False)
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True
        finally:
            if self.sock.fileno() >= 0:
                self.sock.setblocking(True)

    def pending(self) -> Iterator[Message]:
        """Every message that has arrived; raises `Closed` once the other end is gone and all is read."""
        self.sock.setblocking(False)
        gone: Closed | None = None
        try:
            while True:
                self._read()
        except (BlockingIOError, InterruptedError):
            pass
        except Closed as error:
            gone = error
        finally:
            if self.sock.fileno() >= 0:
                self.sock.setblocking(True)
        while b"\n" in self._buffer:
            message, fds = self._next()
            for fd in fds:
                os.close(fd)
            yield message
        if gone is not None:
            raise gone

    def mail(self) -> tuple[list[Message], bool]:
        """What has arrived, and whether the channel is closed or broken."""
        messages: list[Message] = []
        try:
            for message in self.pending():
                messages.append(message)
        except (Closed, OSError, ValueError):
            return messages, True
        return messages, False

    def close(self) -> None:
        self.sock.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _read(self) -> None:
        try:
            if hasattr(socket, "recv_fds") and self.sock.family == getattr(socket, "AF_UNIX", None):
                data, fds, _flags, _address = socket.recv_fds(self.sock, _CHUNK, _MAX_FDS)
                self._fds += fds
            else:
                data = self.sock.recv(_CHUNK)
        except ConnectionError as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("the other process closed the channel")
        self._buffer += data
        if len(self._buffer) > _MAX_LINE:
            raise Closed("the other process sent a line without end")

    def _next(self) -> tuple[Message, list[int]]:
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise Closed("the other process sent something that is not a message")
        count = int(message.pop(_COUNT, 0))  # one read may bring several messages, and the descriptors of a later one
        fds, self._fds = self._fds[:count], self._fds[count:]
        return message, fds


CONNECT_TIMEOUT = 120.0
"""Seconds until a child that was started on a busy machine has to be connected."""


def connect_back(port: int, token: str) -> Channel:
    """The child's half of `spawn`."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_TIMEOUT)
    sock.settimeout(None)
    channel = Channel(sock)
    channel.send({"token": token})
    return channel
