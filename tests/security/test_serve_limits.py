"""`holdfast serve` against clients that take and do not give: real sockets, real processes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra `optimize`")
pytest.importorskip("onnx", reason="needs the extra `optimize`")

from holdfast.base import processes
from holdfast.serving.books import WIDTH, Books
from holdfast.serving.http import Limits, Reply, Server
from holdfast.serving.messages import Answer, Request
from tests.optimize import small
from tests.optimize.serving import TOKEN, Served, npy, serving
from tests.waiting import wait_until

MANY = 8 << 20
X = np.ones((2, 6), np.float32)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It takes bodies of 8 MiB, and 32 MiB of them at once."""
    with serving(small.make(tmp_path_factory.mktemp("made")), 0, "--max-body", "8MiB") as found:
        yield found


@contextlib.contextmanager
def connected(port: int, count: int, sent: bytes = b"", **options: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = socket.socket()
            for name, value in options.items():
                sock.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
            sock.settimeout(60)
            sock.connect(("127.0.0.1", port))
            found.append(stack.enter_context(sock))
            sock.sendall(sent)
        yield found


def post(length: int, path: str = "/predict", token: str = TOKEN) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/x-npy\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize(
    "head",
    [
        post(MANY, "/healthz", "none"),
        post(MANY, "/healthz"),
        b"GET /healthz HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % MANY,
        b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT /healthz HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % MANY,
        post(MANY, "/predict", "none"),
        b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n" % (TOKEN.encode(), MANY),
    ],
)
def test_a_body_that_nobody_needs_is_refused_at_once(served: Served, head: bytes) -> None:
    """More of them than there is memory for: each is told off at its head, and nobody else waits."""
    with connected(served.port, 6, head) as many:
        assert served.ask("POST", "/predict", npy(X))[0] == 200
        for sock in many:
            assert re.match(rb"HTTP/1.1 (401|405|413) ", sock.recv(1000))
            while sock.recv(1000):
                pass  # and it is closed
    assert served.ask("GET", "/healthz", headers={}) == (200, b"ok\n")


def test_what_is_announced_and_does_not_come_takes_no_memory(served: Served) -> None:
    before = held(served)
    with connected(served.port, 16, post(MANY) + b"some") as many:
        assert served.ask("POST", "/predict", npy(X))[0] == 200, "four of them were all that fitted"
        assert held(served) - before < 60_000_000
        many[0].sendall(npy(X))  # one of them goes on, and is waited for
        assert served.ask("GET", "/healthz", headers={})[0] == 200


@pytest.mark.all
def test_bodies_that_stop_half_way_make_room(served: Served) -> None:
    """They have filled all of the memory there is; a client with a question gets its answer long before they end."""
    large = npy(np.ones((100_000, 6), np.float32))
    with connected(served.port, 4, post(MANY) + bytes(MANY - 1)) as many:
        assert wait_until(lambda: status(served, large) == 200, 100)
        told = [sock.recv(100) for sock in many if select.select([sock], [], [], 0)[0]]
        assert told and all(each.startswith(b"HTTP/1.1 408 ") for each in told)


@pytest.mark.all
def test_a_client_that_does_not_read_is_not_read_from(served: Served) -> None:
    """It asks and asks; beyond what the system itself keeps for it, nothing is taken. Then it reads, and all comes."""
    question = npy(np.ones((20_000, 6), np.float32))
    whole, most, sent, before = post(len(question)) + question, 300, 0, held(served)
    with connected(served.port, 1, SO_RCVBUF=1 << 16) as (sock,):
        sock.setblocking(False)
        while sent < most * len(whole) and select.select([], [sock], [], 5)[1]:
            at = sent % len(whole)
            sent += sock.send(whole[at : at + (1 << 16)])
        assert sent < most * len(whole), "it took everything, and kept the answers"
        assert held(served) - before < 80_000_000
        assert served.ask("POST", "/predict", npy(X))[0] == 200
        sock.settimeout(60)
        rest = whole[sent % len(whole) :]
        threading.Thread(target=sock.sendall, args=(rest,), daemon=True).start()
        assert answers(sock, sent // len(whole) + 1) == sent // len(whole) + 1


def status(served: Served, body: bytes) -> int:
    """Of its answer; 0 if it was closed while it was still asking."""
    with contextlib.suppress(OSError):
        return served.ask("POST", "/predict", body)[0]
    return 0


def answers(sock: socket.socket, wanted: int) -> int:
    found = 0
    with sock.makefile("rb") as file:
        while found < wanted and file.readline().startswith(b"HTTP/1.1 200 "):
            length = 0
            while (line := file.readline().strip().lower()) != b"":
                length = int(line[16:]) if line.startswith(b"content-length: ") else length
            found += len(file.read(length)) == length
    return found


def held(served: Served) -> int:
    seen = processes.inspect(served.child.pid)
    return 0 if seen is None else seen.rss_bytes


# The same server with little patience -----------------------------------------------------------------------------


@contextlib.contextmanager
def impatient(limits: Limits, answer: bytes) -> Iterator[tuple[Server, int]]:
    """Answers everything with the same bytes."""

    def handler(request: Request, reply: Reply) -> None:
        reply(Answer(200, answer))

    loop = asyncio.new_event_loop()
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(handler, limits, Books(np.zeros(WIDTH)))
    loop.run_until_complete(server.start(listening))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server, listening.getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(100)
        loop.close()


GET = b"GET / HTTP/1.1\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"


@pytest.mark.all
@pytest.mark.parametrize("asked", [GET, LAST, GET * 50])
def test_who_never_reads_its_answer_is_closed(asked: bytes) -> None:
    with (
        impatient(Limits(answer_s=0.3), bytes(32 << 20)) as (server, port),
        connected(port, 3, asked, SO_RCVBUF=1 << 16),
    ):
        assert wait_until(lambda: server.counts._row.sum() > 0 and not server.connections, 60)  # type: ignore[attr-defined]
        assert server.pending == 0


@pytest.mark.all
@pytest.mark.parametrize("more", [b"", b"." * 100])
def test_a_body_that_stands_still_is_told_off(more: bytes) -> None:
    limits: Any = Limits(still_s=0.3)
    with impatient(limits, b"ok") as (server, port), connected(port, 1, post(MANY) + more) as (sock,):
        assert sock.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert wait_until(lambda: not server.connections and not server.pending and not server.arriving, 60)


@pytest.mark.all
def test_a_large_body_in_pieces_arrives_whole() -> None:
    """It grows as it comes, over several steps, and the memory is counted back to nothing."""
    seen: list[bytes] = []

    def handler(request: Request, reply: Reply) -> None:
        seen.append(bytes(request.body))
        reply(Answer(200, b"ok"))

    with impatient(Limits(), b"") as (server, port), connected(port, 1) as (sock,):
        server.handler = handler
        for number in range(3):  # the memory of the first serves the others
            body = np.random.default_rng(number).bytes(5_000_001 - number % 2)
            sock.sendall(post(len(body)) + body)
            assert sock.recv(1000).startswith(b"HTTP/1.1 200 ") and seen[-1] == body
        assert server.pending == 0
