"""The addresses of a served bundle, and the server from start to Ctrl-C.

POST /predict     arrays as .npy, .npz or JSON; the answers in the same form
GET  /            what the model takes and gives              GET /metrics   Prometheus
GET  /healthz     "ok", without a token

serve(bundle, token="…", host="127.0.0.1", port=8377, say=print)
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from holdfast.base.errors import UserError
from holdfast.optimize import bodies
from holdfast.optimize.bundle import Bundle
from holdfast.optimize.post import apply
from holdfast.run.machine import descriptors, usable_cpus
from holdfast.serving.batching import Batcher, Done, Full, NotFinite, Tell, in_words
from holdfast.serving.books import WIDTH, Books, sample
from holdfast.serving.http import Cancel, Limits, Reply, Server
from holdfast.serving.messages import Answer, Request, told
from holdfast.serving.readers import Readers, possible, readers_for

PORT = 8377
SPARE = 100


@dataclass(frozen=True, slots=True)
class Written:
    """Outputs that are bytes already: .npy, or JSON where they are rows of boxes."""

    body: bytes


class Asks(Protocol):
    """A batcher, here or in another process."""

    def put(self, inputs: list[Any], done: Done, tell: Tell) -> Dropped: ...
    def ask_numbers(self, done: Callable[[dict[str, float]], None]) -> None: ...


class Dropped(Protocol):
    def drop(self) -> None: ...


class App:
    """Answers requests about one bundle."""

    def __init__(
        self, bundle: Bundle, token: str, limits: Limits, batcher: Asks, *, books: Books, everyone: Sequence[Books]
    ) -> None:
        self.bundle, self.token, self.limits, self.batcher = bundle, token.encode(), limits, batcher
        self.books, self.everyone = books, everyone
        """Its own, and those of all who read for the same engine."""
        self.rows = bundle.manifest.get("post") is not None
        self.server = Server(self.answer, limits, books, self.early)
        self.names = [each["name"] for each in bundle.manifest["outputs"]]
        self.inputs = bundle.inputs

    def early(self, request: Request) -> Answer | None:
        """Refusals that need no body: a stranger's megabytes are not read."""
        if request.path == "/healthz":
            if request.method not in ("GET", "HEAD"):
                return told(405, "only GET here", Allow="GET")
            if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
                return told(413, "no body is accepted here", "it is the one address that needs no token")
            return None
        scheme, _, said = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(said.strip().encode("latin-1", "replace"), self.token):
            self.books.answered(401)
            return told(401, "this needs the token that `holdfast serve` printed",
                        "send the header `Authorization: Bearer TOKEN`", **{"WWW-Authenticate": "Bearer"})  # fmt: skip
        if request.path == "/predict" and request.method != "POST":
            return told(405, "POST to /predict", Allow="POST")
        if request.path != "/predict" and request.method not in ("GET", "HEAD"):
            return told(405, "only GET here", Allow="GET")
        return None

    def answer(self, request: Request, reply: Reply) -> Cancel | None:
        if request.path == "/predict":
            return self._predict(request, reply)
        if request.path == "/healthz":
            answer = Answer(200, b"ok\n", "text/plain")
        elif request.path == "/metrics":
            self.batcher.ask_numbers(lambda numbers: self._answered(reply, _metrics(self.everyone, numbers)))
            return None
        elif request.path == "/":
            keys = ("name", "engine", "precision", "threads", "inputs", "outputs", "contract", "post", "made")
            about = {key: self.bundle.manifest.get(key) for key in keys}
            answer = Answer(200, json.dumps(about, indent=2).encode() + b"\n")
        else:
            answer = told(404, "unknown address", "there are /predict, /metrics, /healthz and /")
        self._answered(reply, answer)
        return None

    def _answered(self, reply: Reply, answer: Answer) -> None:
        self.books.answered(answer.status)
        reply(answer)

    def _predict(self, request: Request, reply: Reply) -> Cancel | None:
        began = time.perf_counter()
        kind = request.headers.get("content-type", "")

        def done(found: Any) -> None:
            answer = self._told(found) if isinstance(found, Exception) else self._written(found, kind)
            self.books.answered(answer.status, time.perf_counter() - began if answer.status == 200 else None)
            reply(answer)

        try:
            arrays = bodies.read(request.body, kind, self.inputs, self.limits.body)
            tell = asyncio.get_running_loop().call_soon_threadsafe
            waiting = self.batcher.put(self.bundle.check_inputs(arrays), done, tell)
        except (bodies.BadBody, UserError, Full) as error:
            done(error)
            return None
        return waiting.drop

    def _written(self, outputs: Any, kind: str) -> Answer:
        if not isinstance(outputs, Written):
            return Answer(200, *bodies.write(outputs, self.names, kind, rows=self.rows))
        if self.rows:
            return Answer(200, outputs.body)
        if bodies.is_npy(kind):
            return Answer(200, outputs.body, bodies.NPY)
        return Answer(200, *bodies.write(bodies.npys(outputs.body, len(self.names)), self.names, kind, rows=False))

    def _told(self, error: Exception) -> Answer:
        if isinstance(error, bodies.BadBody):
            return told(error.status, error.message, error.cause)
        if isinstance(error, UserError):
            return told(422, error.message, error.cause)
        if isinstance(error, Full):
            return told(503, "too many requests are waiting", **{"Retry-After": "1"})
        if isinstance(error, NotFinite):
            return told(500, "the model answered NaN or infinity")
        # an engine's own failure: told, and the server goes on
        return told(500, "the engine failed on this input", in_words(error))


def _metrics(everyone: Sequence[Books], numbers: dict[str, float]) -> Answer:
    """For Prometheus."""
    lines = Books.told(everyone)
    for name, value in numbers.items():
        lines += sample(name, "counter" if name.endswith("_total") else "gauge", value)
    return Answer(200, "\n".join([*lines, ""]).encode(), "text/plain; version=0.0.4")


def serve(
    bundle: Bundle,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = PORT,
    most: int = 16,
    limits: Limits | None = None,
    readers: int | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until the process is asked to end. So many other processes read requests (None: as many as help)."""
    if readers and not possible():
        raise UserError("this system has no way to hand connections to other processes", hints=["--readers 0"])
    limits = limits or Limits(connections=_connections())
    post, engine = bundle.manifest.get("post"), bundle.engine()
    batcher = Batcher(engine, most=most, finish=None if post is None else lambda outputs: apply(post, outputs))
    engine.run([np.zeros((1, *each["shape"]), each["dtype"]) for each in bundle.inputs])  # warm
    front, beside = _front(bundle, batcher, token, limits, readers, say)
    listening = _listen(host, port)

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, stop.set)
        try:
            await front.start(listening)
            chosen = listening.getsockname()[1]
            say(f"serving {bundle.manifest['name']} at http://{host}:{chosen}/predict{beside}")
            await stop.wait()
        finally:
            await front.close()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
    batcher.close()
    say(f"{batcher.rows} inputs answered in {batcher.batches} batches")


def _front(
    bundle: Bundle, batcher: Batcher, token: str, limits: Limits, readers: int | None, say: Callable[[str], None]
) -> tuple[Readers | Server, str]:
    """Who reads requests, and how that is said."""
    count = readers_for(bundle, usable_cpus() or 1) if readers is None else readers
    if count:
        try:
            front = Readers(bundle, batcher, token, limits, count=count, say=say)
            return front, f", {'1 process reads' if count == 1 else f'{count} processes read'} requests"
        except OSError as error:
            if readers:
                raise UserError(f"{readers} readers are not possible here", cause=str(error)) from None
            say(f"one process does everything, as there is no memory to share here: {error}")
    books = Books(np.zeros(WIDTH))
    return App(bundle, token, limits, batcher, books=books, everyone=[books]).server, ""


def _connections() -> int:
    """As many as there are descriptors for, with some to spare: for files, and for a burst of new ones."""
    return max(16, min(1024, descriptors(4096) - SPARE))


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except (OSError, OverflowError) as error:
        listening.close()
        cause = str(getattr(error, "strerror", None) or error)
        raise UserError(f"cannot listen at {host}:{port}", cause=cause, hints=["choose another `--port`"]) from None
    return listening
