"""Who may see the page, and what a browser may do with it.

    guard = Guard(token, host="127.0.0.1", port=7878)
    app = guard.around(app)

Only with the token: it is in the address that is printed, then in a cookie, or in `Authorization: Bearer`. Only by
a name of this machine, so that no other page can reach it under a name of its own. The browser is told to run and load
nothing but our own files, to show it in no frame, and to tell nobody where it has been.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.files import read_bounded
from holdfast.folders import make_private
from holdfast.monitor.index import cache_folder

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
NO_TOKEN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>holdfast</title>
<p>This page needs its token. Open the address that <code>holdfast watch --web</code> printed.</p></html>
"""
LOCAL = ("127.0.0.1", "localhost", "[::1]")


def token_of_this_user() -> str:
    """The same one each time, so that a bookmark and a scraper go on working; only its user can read it."""
    path = cache_folder() / "web-token"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        said = read_bounded(path, 200).decode().strip()
        if len(said) >= 32 and _mine(path):
            return said
    fresh = secrets.token_urlsafe(32)
    with contextlib.suppress(OSError):
        make_private(path.parent)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(fresh + "\n")
    return fresh


def _mine(path: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    seen = path.lstat()
    return seen.st_uid == os.getuid() and not seen.st_mode & 0o077


class Guard:
    """Stands before the application."""

    def __init__(self, token: str, *, host: str, port: int) -> None:
        self.token = token
        self.cookie = f"holdfast_{port}"
        self._names = {f"{name}:{port}" for name in (*LOCAL, host)} if host in (*LOCAL, "::1") else None

    def around(self, app: ASGIApp) -> ASGIApp:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            refusal = self._refuse(Request(scope))

            async def with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    there = {name for name, _ in message["headers"]}
                    message["headers"] += [
                        (name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in there
                    ]
                await send(message)

            await (refusal or app)(scope, receive, with_headers)

        return guarded

    def _refuse(self, request: Request) -> Response | None:
        """What to answer instead; None for those who may pass."""
        if self._names is not None and request.headers.get("host", "").lower() not in self._names:
            return PlainTextResponse("holdfast: not a name of this machine\n", 421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("holdfast: this page only reads\n", 405)
        if request.url.path.startswith("/static/") or request.url.path == "/healthz":
            return None
        said = request.query_params.get("token")
        if said is not None and not request.url.path.startswith(("/api/", "/metrics")):
            return self._let_in(request, said)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        shown = [request.cookies.get(self.cookie, ""), bearer if scheme.lower() == "bearer" else "", said or ""]
        if any(self._is_it(each) for each in shown):
            return None
        return HTMLResponse(NO_TOKEN, 401, headers={"cache-control": "no-store"})

    def _let_in(self, request: Request, said: str) -> Response:
        """Keep the token in a cookie and out of the address, which ends up in histories and screenshots."""
        if not self._is_it(said):
            return HTMLResponse(NO_TOKEN, 401, headers={"cache-control": "no-store"})
        rest = [(key, value) for key, value in parse_qsl(request.url.query) if key != "token"]
        path = request.scope.get("raw_path", b"/").decode("latin-1")
        path = "/" + path.lstrip("/\\")  # `//elsewhere` would be another machine
        answer = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, 303)
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="lax", path="/")
        answer.headers["cache-control"] = "no-store"
        return answer

    def _is_it(self, said: str) -> bool:
        return hmac.compare_digest(said.encode("utf-8", "replace"), self.token.encode())
