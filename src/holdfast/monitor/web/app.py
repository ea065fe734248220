"""The addresses of the page: three pages, their data as JSON, a stream of news, files, and /metrics.

    /                          every run                       /r/calm-heron      one run
    /compare?runs=a,b          several in one picture          /static/…          scripts and styles
    /api/runs · /api/run/ID · /api/run/ID/series|log|events|file|world|picture|metrics.csv · /api/compare · /api/live
    /metrics                   for Prometheus                  /grafana.json      a dashboard for it

Everything is read-only. What a run folder holds leaves here as JSON or as a download, never as a page.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from holdfast.monitor import compare, export, payload, prometheus, scenes
from holdfast.monitor.logs import clean
from holdfast.monitor.places import open_inside
from holdfast.monitor.web import first
from holdfast.monitor.web.guard import POLICY
from holdfast.monitor.web.hub import Hub, Watched

PAGE_POLICY = POLICY.replace("style-src 'self'", f"style-src 'self' {first.STYLE_DIGEST}")
"""The page's own style stands in it, so that it can be painted at once."""
MOST_POINTS = 4000
MOST_TEXT = 1 << 18
MOST_COMPARED = 24
CALM = 0.5
"""Seconds between two messages to one page: what comes in between comes together."""
PULSE = 5.0
"""Seconds after which a stream says that it lives."""


def build(hub: Hub) -> Starlette:
    """The application over a hub; who may use it is decided in guard.py."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        hub.start()
        yield
        hub.close()

    web = _Web(hub)
    routes = [
        Route("/", web.list_page),
        Route("/r/{ident}", web.run_page),
        Route("/compare", web.compare_page),
        Route("/healthz", web.health),
        Route("/metrics", web.prometheus),
        Route("/grafana.json", web.grafana),
        Route("/api/runs", web.runs),
        Route("/api/run/{ident}", web.run),
        Route("/api/run/{ident}/series", web.series),
        Route("/api/run/{ident}/log", web.log),
        Route("/api/run/{ident}/events", web.events),
        Route("/api/run/{ident}/text", web.text),
        Route("/api/run/{ident}/file", web.file),
        Route("/api/run/{ident}/world", web.world),
        Route("/api/run/{ident}/picture", web.picture),
        Route("/api/run/{ident}/metrics.csv", web.csv),
        Route("/api/compare", web.compare),
        Route("/api/live", web.live),
        Route("/static/all.js", web.script),
        Mount("/static", StaticFiles(directory=first.STATIC)),
    ]
    return Starlette(routes=routes, lifespan=life)


class _Web:
    """The answers. Those that read files are plain functions: they run beside the loop."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._live = 0

    def list_page(self, request: Request) -> Response:
        return _html(first.of_list(self.hub.listing(), str(self.hub.places.root), _theme(request)))

    def run_page(self, request: Request) -> Response:
        ident = request.path_params["ident"]
        try:
            with self.hub.run(ident) as each:
                return _html(first.of_run(self._head(each), payload.body(each.run), _theme(request)))
        except (KeyError, OSError):
            return _html(first.of_nothing(ident, _theme(request)))

    def compare_page(self, request: Request) -> Response:
        names = request.query_params.get("runs", "").split(",")[:MOST_COMPARED]
        return _html(first.of_some(self.hub.some(names), _theme(request)))

    def script(self, request: Request) -> Response:
        """All scripts as one file; kept by the browser for as long as its address is that of this version."""
        mine = request.query_params.get("v") == first.SCRIPT.version
        keep = "max-age=31536000, immutable" if mine else "no-cache"
        return Response(first.SCRIPT.text, headers={"cache-control": keep}, media_type="text/javascript")

    def health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    def runs(self, request: Request) -> Response:
        return _json({"schema": 1, **self.hub.listing(), "folder": str(self.hub.places.root)})

    def run(self, request: Request) -> Response:
        return self._about(request, lambda each: {"head": self._head(each), "body": payload.body(each.run)})

    def _head(self, each: Watched) -> dict[str, Any]:
        head = {**payload.head(each.run, each.ident), "version": each.version}
        each.run.books.release()
        return head

    def series(self, request: Request) -> Response:
        asked = request.query_params
        keys = asked.getlist("key")[:128]
        points = int(_number(asked.get("points"), 800, 10, MOST_POINTS))
        low, high = _bound(asked.get("from")), _bound(asked.get("to"))
        by = "time" if asked.get("by") == "time" else "step"

        def answer(each: Watched) -> dict[str, Any]:
            made = each.cached(
                ("series", tuple(keys), points, low, high, by),
                lambda: payload.series(each.run, keys, points, low, high, by),
            )
            return {"version": each.version, "series": made}

        return self._about(request, answer)

    def log(self, request: Request) -> Response:
        lines = int(_number(request.query_params.get("lines"), 400, 1, 5000))
        return self._about(request, lambda each: {"lines": each.run.log_tail(lines)})

    def events(self, request: Request) -> Response:
        before = _bound(request.query_params.get("before"))
        last = int(_number(request.query_params.get("last"), 200, 1, 1000))
        at = None if before is None else int(before)
        return self._about(
            request,
            lambda each: {"events": payload.events(each.run, last, at), "total": each.run.books.event_count},
        )

    def text(self, request: Request) -> Response:
        """The beginning of a file as JSON, to be looked at in the page."""
        path = request.query_params.get("path", "")

        def answer(each: Watched) -> dict[str, Any]:
            with open_inside(each.run.path, path) as file:
                data = file.read(MOST_TEXT + 1)
            lines = data[:MOST_TEXT].decode(errors="replace").split("\n")
            return {"path": path, "text": "\n".join(map(clean, lines)), "cut": len(data) > MOST_TEXT}

        return self._about(request, answer)

    def file(self, request: Request) -> Response:
        """A file to keep: never shown by the browser, whatever is in it."""
        path = request.query_params.get("path", "")
        try:
            with self.hub.run(request.path_params["ident"]) as each:
                folder = each.run.path
            file = open_inside(folder, path)
        except KeyError:
            return _json({"error": "no such run"}, 404)
        except OSError as error:
            return _json({"error": str(error.strerror or error)}, 404)
        size = os.fstat(file.fileno()).st_size

        def chunks() -> Iterator[bytes]:
            with file:
                left = size
                while left > 0 and (part := file.read(min(1 << 20, left))):
                    left -= len(part)
                    yield part

        return StreamingResponse(chunks(), headers=_to_keep(path.rpartition("/")[2], size))

    def world(self, request: Request) -> Response:
        return self._about(request, lambda each: {"world": scenes.world(each.run.world)})

    def picture(self, request: Request) -> Response:
        """A film or an image, to be seen: it is one by its first bytes, and the browser is told not to guess."""
        try:
            with self.hub.run(request.path_params["ident"]) as each:
                folder = each.run.path
            kind, data = scenes.read_picture(folder, request.query_params.get("path", ""))
        except (KeyError, OSError):
            return _json({"error": "no such picture"}, 404)
        policy = "default-src 'none'; sandbox"
        return Response(data, 200, {"cache-control": "no-cache", "content-security-policy": policy}, kind)

    def csv(self, request: Request) -> Response:
        try:
            with self.hub.run(request.path_params["ident"]) as each:
                names = [name for name in request.query_params.getlist("name") if name in each.run.curves]
                made = export.csv_text(each.run, names or None)
        except KeyError:
            return _json({"error": "no such run"}, 404)
        return StreamingResponse(made, headers=_to_keep(f"{each.run.name}.csv"))

    def compare(self, request: Request) -> Response:
        idents = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_COMPARED]
        keys = request.query_params.getlist("key")[:8]
        points = int(_number(request.query_params.get("points"), 600, 10, MOST_POINTS))
        found, parts = [], {}
        for ident in idents:
            try:
                with self.hub.run(ident) as each:
                    found.append(each.cached("side", partial(compare.side, each.run, each.ident)))
                    made = partial(payload.series, each.run, keys, points)
                    parts[each.ident] = each.cached(("compared", tuple(keys), points), made)
            except KeyError:
                continue
        return _json({"schema": 1, **compare.together(found), "series": parts})

    def prometheus(self, request: Request) -> Response:
        text = prometheus.exposition(self.hub.live_runs())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    def grafana(self, request: Request) -> Response:
        """The dashboard for these metrics, to be imported."""
        return Response(prometheus.DASHBOARD.read_bytes(), headers=_to_keep("holdfast-grafana.json"))

    async def live(self, request: Request) -> Response:
        """News as server-sent events: `run` with the head of a run that changed, `runs` with the list."""
        if self._live >= 64:
            return _json({"error": "too many pages are open"}, 503)
        wanted = request.query_params.getlist("run")[:MOST_COMPARED]
        idents = frozenset(await run_in_threadpool(self._known, wanted))
        return StreamingResponse(
            self._news(request, idents, "list" in request.query_params),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    def _known(self, wanted: list[str]) -> list[str]:
        found = []
        for ident in wanted:
            try:
                with self.hub.run(ident) as each:
                    found.append(each.ident)
            except KeyError:
                continue
        return found

    async def _news(self, request: Request, idents: frozenset[str], listing: bool) -> AsyncIterator[bytes]:
        loop, bell = asyncio.get_running_loop(), asyncio.Event()
        listener = self.hub.listen(idents, listing, lambda: loop.call_soon_threadsafe(bell.set))
        self._live += 1
        try:
            yield b"retry: 1000\n\n"
            while not self.hub.closing:
                bell.clear()
                news, listener.news = listener.news, set()
                for ident in news:
                    yield await run_in_threadpool(self._told, ident)
                if news:
                    await asyncio.sleep(CALM)
                if not listener.news:
                    try:
                        await asyncio.wait_for(bell.wait(), PULSE)
                    except asyncio.TimeoutError:
                        yield b": here\n\n"
        finally:
            self._live -= 1
            self.hub.leave(listener)

    def _told(self, ident: str) -> bytes:
        if not ident:
            return _message("runs", self.hub.listing())
        try:
            with self.hub.run(ident) as each:
                return _message("run", self._head(each))
        except KeyError:
            return _message("gone", {"id": ident})

    def _about(self, request: Request, answer: Any) -> Response:
        """An answer about one run, or words why there is none."""
        try:
            with self.hub.run(request.path_params["ident"]) as each:
                made = answer(each)
        except KeyError:
            return _json({"error": "no such run"}, 404)
        except OSError as error:
            return _json({"error": str(error.strerror or error)}, 404)
        return _json({"schema": 1, **made})


def _theme(request: Request) -> str:
    return request.cookies.get("holdfast_theme", "")


def _html(text: str) -> Response:
    headers = {"cache-control": "no-store", "content-security-policy": PAGE_POLICY}
    return Response(text.encode("utf-8", "replace"), 200, headers, "text/html; charset=utf-8")


def _json(data: dict[str, Any], status: int = 200) -> Response:
    text = json.dumps(data, separators=(",", ":"))  # ASCII: halves of characters in a name stay harmless
    return Response(text, status, {"cache-control": "no-store"}, "application/json")


def _message(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _to_keep(name: str, size: int | None = None) -> dict[str, str]:
    headers = {
        "content-type": "application/octet-stream",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "content-security-policy": "default-src 'none'; sandbox",
        "cache-control": "no-store",
    }
    return headers if size is None else {**headers, "content-length": str(size)}


def _number(said: str | None, default: float, low: float, high: float) -> float:
    found = _bound(said)
    return default if found is None else max(low, min(high, found))


def _bound(said: str | None) -> float | None:
    try:
        found = float(said) if said else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None
