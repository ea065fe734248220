"""A bundle served by starlette and uvicorn instead of holdfast's own HTTP server; everything behind HTTP is the same.

    HOLDFAST_SERVE_TOKEN=… python asgi_serve.py BUNDLE [auto|h11|httptools]

`benchmarks/serving.py` (part stacks) compares it with `holdfast serve --readers 0`: one process each.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.responses import Response
from starlette.routing import Route

from holdfast.optimize import bundle as bundles
from holdfast.serving.app import App
from holdfast.serving.batching import Batcher
from holdfast.serving.books import WIDTH, Books
from holdfast.serving.http import Limits
from holdfast.serving.messages import Answer, Request


def application(app: App) -> Starlette:
    """The same addresses; starlette routes, uvicorn reads and writes."""

    async def answer(asked: Asked) -> Response:
        request = Request(asked.method, asked.url.path, dict(asked.headers))
        refused = app.early(request)
        if refused is not None:
            return _response(refused)
        request.body = bytearray(await asked.body())
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        app.answer(request, answered.set_result)
        return _response(await answered)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


def _response(answer: Answer) -> Response:
    return Response(bytes(answer.body), answer.status, media_type=answer.kind)


def main() -> None:
    opened = bundles.open_bundle(Path(sys.argv[1]))
    engine = opened.engine()
    engine.run([np.zeros((1, *each["shape"]), each["dtype"]) for each in opened.inputs])
    books = Books(np.zeros(WIDTH))
    token = os.environ["HOLDFAST_SERVE_TOKEN"]
    batcher = Batcher(engine, most=16)
    app = App(opened, token, Limits(), batcher, books=books, everyone=[books])
    # asyncio turns Nagle's delay off only where the protocol is named; without it an answer waits 40 ms for an ACK.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1024)
    print(f"serving at http://127.0.0.1:{listening.getsockname()[1]}/predict", flush=True)
    options: Any = {"http": sys.argv[2] if len(sys.argv) > 2 else "auto", "log_level": "error", "access_log": False}
    uvicorn.Server(uvicorn.Config(application(app), **options)).run(sockets=[listening])
    batcher.close()


if __name__ == "__main__":
    main()
