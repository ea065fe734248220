"""A small, strict HTTP/1.1 server: one handler, limits on everything, and silence costs nobody anything.

    server = Server(handler, Limits(body=64 << 20), books)
    await server.start(sock)                    # handler(request, reply) for each request
    server.take(connected)                      # one that somebody else has accepted

A connection that says nothing is closed after a while; when there are too many, the ones that have been silent longest
go first, so that ten thousand of them do not keep a client out. Bodies need a Content-Length.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
           408: "Request Timeout", 411: "Length Required", 413: "Content Too Large", 415: "Unsupported Media Type",
           422: "Unprocessable Content", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
           501: "Not Implemented", 503: "Service Unavailable"}  # fmt: skip

MOST_KNOWN, MOST_KNOWN_HEAD = 256, 2048
READ = 64 << 10
"""Bytes that are read at once while it is not known how long a request is."""
KEPT = 32 << 20
"""Bytes of memory for bodies that are kept: fresh memory costs a large body more than reading it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much and how long."""

    head: int = 16 << 10
    body: int = 64 << 20
    connections: int = 512
    head_s: float = 10.0
    """From the first moment of a connection, or the last answer, to the end of a request's head."""
    body_s: float = 60.0
    pending: int = 256 << 20
    """Bytes of bodies that may be under way at once."""


@dataclass(slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | bytearray = b""
    """Lent: it is used again once the request is answered."""
    length: int = 0
    close: bool = False
    """Whether its client wants the connection to end with the answer."""


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


def told(status: int, message: str, cause: str | None = None, **headers: str) -> Answer:
    """An error as JSON."""
    data = {"error": message} | ({"cause": cause} if cause else {})
    return Answer(status, json.dumps(data).encode() + b"\n", headers=headers)


class Refused(Exception):
    """What cannot be understood; the connection ends with this answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


Reply = Callable[[Answer], None]
Cancel = Callable[[], None]
Handler = Callable[[Request, Reply], "Cancel | None"]
"""Answers at once or later, once, in the loop's own thread; what it returns is called if the client leaves before."""
Early = Callable[[Request], Answer | None]


class Counts(Protocol):
    """Who is told of connections."""

    def opened(self) -> None: ...
    def closed(self) -> None: ...
    def turned_away(self) -> None: ...


class Server:
    """Listens, and keeps its connections within limits."""

    def __init__(self, handler: Handler, limits: Limits, counts: Counts, early: Early = lambda request: None) -> None:
        self.handler, self.limits, self.counts, self.early = handler, limits, counts, early
        self.silent: OrderedDict[Connection, None] = OrderedDict()
        """Connections between requests, the one that has been so longest first."""
        self.connections: set[Connection] = set()
        self.pending = 0
        self.room = memoryview(bytearray(READ))
        """Where connections read heads to, one after the other."""
        self.bodies = Bodies()
        self.heads: dict[bytes, Request] = {}
        """Heads that were understood and let in: a client sends the same one every time."""
        self._server: asyncio.AbstractServer | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._taking: set[asyncio.Task[Any]] = set()

    async def start(self, sock: socket.socket | None = None) -> None:
        """Listen, or wait for what is given to `take`."""
        loop = asyncio.get_running_loop()
        if sock is not None:
            self._server = await loop.create_server(lambda: Connection(self, loop), sock=sock, backlog=1024)
        self._sweep(loop)

    def take(self, sock: socket.socket) -> None:
        """A connection that is made already."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        task = loop.create_task(loop.connect_accepted_socket(lambda: Connection(self, loop), sock))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Whoever is too late is told so: looked at now and then, as a timer for each would cost more."""
        now = loop.time()
        for each in [each for each in self.connections if each.deadline < now]:
            each.late()
        self._sweeping = loop.call_later(min(1.0, self.limits.head_s / 4), self._sweep, loop)

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._server is not None:
            self._server.close()
        for each in list(self.connections):
            each.end()

    def admit(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.counts.opened()
        self.silent[connection] = None
        if len(self.connections) > self.limits.connections:
            self.counts.turned_away()
            oldest = next(iter(self.silent), connection)
            oldest.end()

    def forget(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            self.counts.closed()
        self.silent.pop(connection, None)

    def understood(self, head: bytes) -> Request:
        """The request that a head announces, without its body; Refused if it is not taken."""
        known = self.heads.get(head)
        if known is not None:
            return known
        request = _parsed(head)
        refusal = self.early(request)
        if refusal is not None:
            raise Refused(refusal)
        request.length = self._length(request)
        request.close = request.headers.get("connection", "").lower() == "close"
        if len(head) <= MOST_KNOWN_HEAD:
            if len(self.heads) >= MOST_KNOWN:
                self.heads.clear()
            self.heads[head] = request
        return request

    def _length(self, request: Request) -> int:
        if "transfer-encoding" in request.headers:
            raise Refused(told(501, "send a Content-Length", "chunked bodies are not taken"))
        text = request.headers.get("content-length")
        if text is None:
            if request.method == "POST":
                raise Refused(told(411, "send a Content-Length"))
            return 0
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise Refused(told(400, "Content-Length is no number"))
        if int(text) > self.limits.body:
            raise Refused(told(413, "the body is too large", f"{text} bytes, {self.limits.body} are taken"))
        return int(text)


class Bodies:
    """Memory for large bodies, used again by the next one of its length."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = self._left = most
        self._free: dict[int, list[bytearray]] = {}

    def take(self, length: int) -> bytearray:
        """Holds anything; whoever takes it fills all of it."""
        free = self._free.get(length)
        if not free:
            return bytearray(length)
        self._left += length
        return free.pop()

    def give(self, body: bytearray) -> None:
        """Nobody reads it any more."""
        if not READ <= len(body) <= self._most:
            return
        if len(body) > self._left:  # of lengths that nobody asks for any more
            self._free, self._left = {}, self._most
        self._left -= len(body)
        self._free.setdefault(len(body), []).append(body)


class Connection(asyncio.BufferedProtocol):
    """One client. Requests are answered in the order they come."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.loop = server, loop
        self.transport: Any = None
        self.buffer = bytearray()
        self.request: Request | None = None
        self.body = bytearray()
        self.wanted = self.filled = 0
        self.busy = False
        self.deadline = math.inf
        self.cancel: Cancel | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.deadline = self.loop.time() + self.server.limits.head_s
        self.server.admit(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._let_go()
        self.server.forget(self)
        cancel, self.cancel = self.cancel, None
        if cancel is not None:
            cancel()

    def end(self) -> None:
        """Close it now."""
        self.server.forget(self)
        if self.transport is not None:
            self.transport.abort()

    def late(self) -> None:
        """It took too long for the next piece."""
        if self.request is not None or self.buffer:
            self._send(told(408, "the request took too long to arrive"), close=True)
        else:
            self.end()

    def get_buffer(self, sizehint: int) -> memoryview:
        """A body is read to its place at once."""
        return memoryview(self.body)[self.filled : self.wanted] if self._in_body() else self.server.room

    def buffer_updated(self, count: int) -> None:
        if self._in_body():
            self.filled += count
        else:
            self.buffer += self.server.room[:count]
            if self.busy:
                if len(self.buffer) > self.server.limits.head:  # pipelined faster than answered
                    self.transport.pause_reading()
                return
        self._go_on()

    def _in_body(self) -> bool:
        return self.request is not None and self.filled < self.wanted

    def _go_on(self) -> None:
        try:
            if self.request is None and not self._head():
                return
        except Refused as refused:
            self._send(refused.answer, close=True)
            return
        if self.filled < self.wanted:
            return
        request, self.request = self.request, None
        assert request is not None
        body, self.body, self.filled = self.body, bytearray(), 0
        self.busy, self.deadline = True, math.inf
        mine = Request(request.method, request.path, request.headers, body, request.length, request.close)
        answered = False

        def reply(answer: Answer) -> None:
            nonlocal answered
            answered = True
            self._let_go()
            self.server.bodies.give(body)
            self.busy, self.cancel = False, None
            self._send(answer, close=request.close, head=request.method == "HEAD")

        try:
            cancel = self.server.handler(mine, reply)
        except Exception as error:  # a bug of ours must not take the connection's neighbours along
            reply(told(500, "the server failed", type(error).__name__))
            return
        if not answered:
            self.cancel = cancel

    def _head(self) -> bool:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0 or end > self.server.limits.head:
            if len(self.buffer) > self.server.limits.head:
                raise Refused(told(431, "the head of the request is too long"))
            return False
        head = bytes(memoryview(self.buffer)[:end])
        del self.buffer[: end + 4]
        self.server.silent.pop(self, None)
        request = self.server.understood(head)
        self.wanted = request.length
        self.request = request
        self.server.pending += self.wanted
        if self.server.pending > self.server.limits.pending:
            raise Refused(told(503, "too much is under way already", **{"Retry-After": "1"}))
        self.body = self.server.bodies.take(self.wanted)
        self.filled = min(len(self.buffer), self.wanted)
        self.body[: self.filled] = memoryview(self.buffer)[: self.filled]
        del self.buffer[: self.filled]
        if self.filled < self.wanted:
            self.deadline = self.loop.time() + self.server.limits.body_s
            if request.headers.get("expect", "").lower() == "100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _let_go(self) -> None:
        self.server.pending -= self.wanted
        self.wanted = 0

    def _send(self, answer: Answer, *, close: bool = False, head: bool = False) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.write(_head_of(answer, close) + (b"" if head else answer.body))
        if close:
            self.deadline = math.inf
            self.server.forget(self)
            self.transport.close()
            return
        self.server.silent[self] = None
        self.deadline = self.loop.time() + self.server.limits.head_s
        if self.buffer:
            self.transport.resume_reading()
            self.loop.call_soon(self._again)

    def _again(self) -> None:
        """What was sent before its answer came; not at once, or many in a row would be as deep as they are many."""
        if not self.busy and self.buffer and not self.transport.is_closing():
            self._go_on()


def _head_of(answer: Answer, close: bool) -> bytes:
    more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items()) if answer.headers else ""
    return b"%bContent-Length: %d\r\n\r\n" % (_beginning(answer.status, answer.kind, close, more), len(answer.body))


@functools.lru_cache(64)
def _beginning(status: int, kind: str, close: bool, more: str) -> bytes:
    """All of an answer's head but the length of its body."""
    lines = (
        f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\nContent-Type: {kind}\r\nCache-Control: no-store\r\n"
        f"X-Content-Type-Options: nosniff\r\n{more}"
    )
    return (lines + ("Connection: close\r\n" if close else "")).encode("latin-1", "replace")


def _parsed(head: bytes) -> Request:
    try:
        first, *rest = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        pairs = [line.split(":", 1) for line in rest]
        headers = {name.lower(): value.strip() for name, value in pairs}
    except ValueError:
        raise Refused(told(400, "this is no HTTP request")) from None
    if (
        version not in ("HTTP/1.1", "HTTP/1.0")
        or len(pairs) > 100
        or len(headers) < len(pairs)
        or not target.startswith("/")
    ):
        raise Refused(told(400, "this is no HTTP request that is understood here"))
    if any(not name or name != name.strip() for name, _ in pairs):
        raise Refused(told(400, "a header has no proper name"))
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return Request(method, target.partition("?")[0], headers)
