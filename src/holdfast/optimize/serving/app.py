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
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast.errors import UserError
from holdfast.optimize.bundle import Bundle
from holdfast.optimize.measure import percentile
from holdfast.optimize.post import apply
from holdfast.optimize.serving import bodies
from holdfast.optimize.serving.batching import Batcher, Full, NotFinite
from holdfast.optimize.serving.http import Answer, Cancel, Limits, Reply, Request, Server, told

PORT = 8377
RECENT = 4096
"""Requests whose latency /metrics speaks of."""


class App:
    """Answers requests about one bundle."""

    def __init__(self, bundle: Bundle, token: str, limits: Limits, *, most: int = 16) -> None:
        self.bundle, self.token, self.limits = bundle, token.encode(), limits
        self.post = bundle.manifest.get("post")
        finish = None if self.post is None else self._suppressed
        self.batcher = Batcher(bundle.engine(), most=most, finish=finish)
        self.server = Server(self.answer, limits, self.early)
        self.counts: Counter[int] = Counter()
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.names = [each["name"] for each in bundle.manifest["outputs"]]
        self.inputs = bundle.inputs

    def early(self, request: Request) -> Answer | None:
        """Refusals that need no body: a stranger's megabytes are not read."""
        if request.path == "/healthz":
            return None
        scheme, _, said = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(said.strip().encode("latin-1", "replace"), self.token):
            self.counts[401] += 1
            return told(401, "this needs the token that `holdfast serve` printed",
                        "send the header `Authorization: Bearer TOKEN`", **{"WWW-Authenticate": "Bearer"})  # fmt: skip
        if request.path == "/predict" and request.method != "POST":
            return told(405, "POST to /predict", Allow="POST")
        if request.path != "/predict" and request.method not in ("GET", "HEAD"):
            return told(405, "only GET here", Allow="GET")
        return None

    def _suppressed(self, outputs: Any) -> Any:
        return apply(self.post, outputs)

    def answer(self, request: Request, reply: Reply) -> Cancel | None:
        if request.path == "/predict":
            return self._predict(request, reply)
        if request.path == "/healthz":
            answer = Answer(200, b"ok\n", "text/plain")
        elif request.path == "/metrics":
            answer = Answer(200, self.metrics().encode(), "text/plain; version=0.0.4")
        elif request.path == "/":
            keys = ("name", "engine", "precision", "threads", "inputs", "outputs", "contract", "post", "made")
            about = {key: self.bundle.manifest.get(key) for key in keys}
            answer = Answer(200, json.dumps(about, indent=2).encode() + b"\n")
        else:
            answer = told(404, "there is nothing here", "there are /predict, /metrics, /healthz and /")
        self.counts[answer.status] += 1
        reply(answer)
        return None

    def _predict(self, request: Request, reply: Reply) -> Cancel | None:
        began = time.perf_counter()
        kind = request.headers.get("content-type", "")

        def done(found: Any) -> None:
            answer = self._told(found) if isinstance(found, Exception) else self._written(found, kind)
            if answer.status == 200:
                self.recent.append(time.perf_counter() - began)
            self.counts[answer.status] += 1
            reply(answer)

        try:
            arrays = bodies.read(request.body, kind, self.inputs, self.limits.body)
            waiting = self.batcher.put(self.bundle.check_inputs(arrays), done, asyncio.get_running_loop())
        except (bodies.BadBody, UserError, Full) as error:
            done(error)
            return None
        return waiting.drop

    def _written(self, outputs: Any, kind: str) -> Answer:
        return Answer(200, *bodies.write(outputs, self.names, kind, rows=self.post is not None))

    def _told(self, error: Exception) -> Answer:
        if isinstance(error, bodies.BadBody):
            return told(error.status, error.message, error.cause)
        if isinstance(error, UserError):
            return told(422, error.message, error.cause)
        if isinstance(error, Full):
            return told(503, "too many requests wait already", **{"Retry-After": "1"})
        if isinstance(error, NotFinite):
            return told(500, "the model answered NaN or infinity")
        # an engine's own failure: told, and the server goes on
        return told(500, "the engine failed on this input", f"{type(error).__name__}: {str(error)[:200]}")

    def metrics(self) -> str:
        """For Prometheus."""
        batcher, server = self.batcher, self.server
        lines = ["# TYPE holdfast_serve_requests_total counter"]
        lines += [
            f'holdfast_serve_requests_total{{status="{code}"}} {count}' for code, count in sorted(self.counts.items())
        ]
        recent = list(self.recent)
        if recent:
            lines.append("# TYPE holdfast_serve_latency_seconds summary")
            lines += [
                f'holdfast_serve_latency_seconds{{quantile="{q}"}} {percentile(recent, q):.6f}'
                for q in (0.5, 0.95, 0.99)
            ]
        for name, kind, value in (
            ("batches_total", "counter", batcher.batches),
            ("inputs_total", "counter", batcher.rows),
            ("engine_failures_total", "counter", batcher.failed),
            ("engine_busy_seconds_total", "counter", round(batcher.busy_s, 3)),
            ("waiting_inputs", "gauge", batcher.depth),
            ("connections", "gauge", server.open),
            ("connections_turned_away_total", "counter", server.turned_away),
        ):
            lines += [f"# TYPE holdfast_serve_{name} {kind}", f"holdfast_serve_{name} {value}"]
        return "\n".join(lines) + "\n"


def serve(
    bundle: Bundle,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = PORT,
    most: int = 16,
    limits: Limits | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until the process is asked to end."""
    limits = limits or Limits(connections=_connections())
    app = App(bundle, token, limits, most=most)
    app.batcher.engine.run([np.zeros((1, *each["shape"]), each["dtype"]) for each in bundle.inputs])  # warm
    listening = _listen(host, port)

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, stop.set)
        await app.server.start(listening)
        chosen = listening.getsockname()[1]
        say(f"serving {bundle.manifest['name']} at http://{host}:{chosen}/predict")
        await stop.wait()
        await app.server.close()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
    app.batcher.close()
    say(f"{app.batcher.rows} inputs answered in {app.batcher.batches} batches")


def _connections() -> int:
    """As many as there are descriptors for, with some to spare."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = min(4096, hard) if hard != resource.RLIM_INFINITY else 4096
        if soft < room:
            resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
            soft = room
        return max(16, min(1024, int(soft) - 64))
    except (ImportError, OSError, ValueError):
        return 256


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
