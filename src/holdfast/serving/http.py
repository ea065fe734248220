"""A small, strict HTTP/1.1 server: one handler, limits on everything, and silence costs nobody anything.

    server = Server(handler, Limits(body=64 << 20), books)
    await server.start(sock)                    # handler(request, reply) for each request
    server.take(connected)                      # one that somebody else has accepted

A connection that says nothing is closed after a while; when there are too many, the ones that have been silent longest
go first, so that ten thousand of them do not keep a client out. Bodies need a Content-Length, and memory is taken for
them as they come, not as they are announced; where it runs out, the slowest body gives up its own. A client that does
not read its answers is not read from either, and is closed after a while.

Why not uvicorn, which serves the page: with the same engine and batcher it gave 64 % as many answers a second to small
requests and 68 % to large ones, with httptools, and 40 and 56 % with h11 (`benchmarks/bench.py --parts stacks`).
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.serving.memory import READ, Bodies
from holdfast.serving.messages import Answer, Refused, Request, full, head_of, parsed, told

MOST_KNOWN, MOST_KNOWN_HEAD = 256, 2048
STEP = 1 << 20
"""Bytes that are lent to a body at first; each time it has filled them, as many again."""
SLOW_AFTER, SLOW = 1.0, 1 << 20
"""A body that has been under way for so many seconds and comes at fewer bytes a second makes room for others."""
BURST = 8
"""Connections that are accepted in one turn of the loop; some turns pass before the limit on them sees them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much and how long."""

    head: int = 16 << 10
    body: int = 64 << 20
    connections: int = 512
    head_s: float = 10.0
    """From the first moment of a connection, or the last answer, to the end of a request's head."""
    body_s: float = 60.0
    still_s: float = 10.0
    """Without a byte of a body that is under way."""
    answer_s: float = 60.0
    """In which a client takes the answer that it has been sent."""
    pending: int = 256 << 20
    """Bytes of memory that bodies may hold at once."""


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
        self.arriving: dict[Connection, None] = {}
        """Connections whose bodies are under way."""
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
            self._server = await loop.create_server(lambda: Connection(self, loop), sock=sock, backlog=BURST)
            sock.listen(1024)  # so many may wait in the system's own queue, which costs no descriptors
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
        for each in [each for each in self.connections if each.overdue(now)]:
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

    def lend(self, size: int) -> bool:
        """Count memory for bodies, if there is room; those that come too slowly give theirs up for it."""
        while self.pending + size > self.limits.pending:
            now = next(iter(self.arriving)).loop.time() if self.arriving else 0.0
            slow = [each for each in self.arriving if each.pace(now) < SLOW]
            if not slow:
                return False
            min(slow, key=lambda each: each.pace(now)).give_way()
        self.pending += size
        return True

    def understood(self, head: bytes) -> Request:
        """The request that a head announces, without its body; Refused if it is not taken."""
        known = self.heads.get(head)
        if known is not None:
            return known
        request = parsed(head)
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
            raise Refused(told(400, "Content-Length is not a number"))
        if int(text) and request.method != "POST":
            raise Refused(told(413, "no body is accepted here", f"{request.method} has none"))
        if int(text) > self.limits.body:
            raise Refused(told(413, "the body is too large", f"{text} bytes, {self.limits.body} are taken"))
        return int(text)


class Connection(asyncio.BufferedProtocol):
    """One client. Requests are answered in the order they come."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.loop = server, loop
        self.transport: Any = None
        self.buffer = bytearray()
        self.request: Request | None = None
        self.body = bytearray()
        self.wanted = self.filled = self.lent = 0
        self.began = 0.0
        self.seen = 0
        """Bytes of the body that were there at the last look, and since when there have been no more."""
        self.since = 0.0
        self.busy = False
        self.full = False
        """Whether its client has more to read than it takes."""
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
        self._let_go()
        self.server.forget(self)
        if self.transport is not None:
            self.transport.abort()

    def overdue(self, now: float) -> bool:
        if self.filled != self.seen or not self._in_body():
            self.seen, self.since = self.filled, now
        return now > self.deadline or now - self.since > self.server.limits.still_s

    def pace(self, now: float) -> float:
        """Bytes a second of its body; of one that has only begun, as many as one likes."""
        return self.filled / (now - self.began) if now - self.began > SLOW_AFTER else math.inf

    def give_way(self) -> None:
        """Its body came so slowly that its memory is needed elsewhere."""
        self._let_go()
        self._send(told(408, "the body comes too slowly, and its memory is needed"), close=True)

    def pause_writing(self) -> None:
        """Its client does not read: nothing more is taken from it until it does."""
        self.full = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.full = False
        if self.transport.is_closing():
            return
        if not self.busy:
            self.deadline = self.loop.time() + self.server.limits.head_s
        self.transport.resume_reading()
        if self.buffer:
            self.loop.call_soon(self._again)

    def late(self) -> None:
        """It took too long for the next piece, or to read the last one."""
        if self.full or self.transport.is_closing():
            self.end()
        elif self.request is not None or self.buffer:
            self._send(told(408, "the request took too long to arrive"), close=True)
        else:
            self.end()

    def get_buffer(self, sizehint: int) -> memoryview:
        """A body is read to its place at once."""
        if self._in_body() and (self.filled < len(self.body) or self._grow()):
            return memoryview(self.body)[self.filled :]
        return self.server.room

    def _grow(self) -> bool:
        """Room for more of a large body: what is announced and never comes takes no memory from others."""
        more = min(len(self.body), self.wanted - len(self.body))
        if not self.server.lend(more):
            self._send(full(), close=True)
            return False
        self.lent += more
        self.body += bytes(more)
        return True

    def buffer_updated(self, count: int) -> None:
        if self.transport.is_closing():
            return
        if self._in_body():
            self.filled += count
        else:
            self.buffer += self.server.room[:count]
            if self.busy or self.full:
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
        self.server.arriving.pop(self, None)
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
        if self.wanted and not self._lend():
            raise Refused(full())
        self.filled = min(len(self.buffer), self.wanted)
        self.body[: self.filled] = memoryview(self.buffer)[: self.filled]
        del self.buffer[: self.filled]
        if self.filled < self.wanted:
            self.began = self.since = self.loop.time()
            self.deadline = self.began + self.server.limits.body_s
            self.server.arriving[self] = None
            if request.headers.get("expect", "").lower() == "100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _lend(self) -> bool:
        """Memory for the beginning of a body; for all of it where some of that length is kept."""
        size = self.wanted if self.wanted <= STEP or self.server.bodies.kept(self.wanted) else STEP
        if not self.server.lend(size):
            return False
        self.lent = size
        self.body = self.server.bodies.take(size)
        return True

    def _let_go(self) -> None:
        self.server.arriving.pop(self, None)
        self.server.pending -= self.lent
        self.lent = self.wanted = 0

    def _send(self, answer: Answer, *, close: bool = False, head: bool = False) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.write(head_of(answer, close) + (b"" if head else answer.body))
        if close:
            self._let_go()
            self.request, self.body = None, bytearray()
            self.transport.close()
        limits = self.server.limits
        self.server.silent[self] = None  # those that do not take their answer, too, go first when there are too many
        self.deadline = self.loop.time() + (limits.answer_s if close or self.full else limits.head_s)
        if self.buffer and not close and not self.full:
            self.transport.resume_reading()
            self.loop.call_soon(self._again)

    def _again(self) -> None:
        """What was sent before its answer came; not at once, or many in a row would be as deep as they are many."""
        if not self.busy and not self.full and self.buffer and not self.transport.is_closing():
            self._go_on()
