"""Who may see the page, and what a browser may do with it.

    guard = Guard(token, host="127.0.0.1", port=7878)
    app = guard.around(app)

Only with the token: it is in the address that is printed, or in `Authorization: Bearer`; a browser that was opened here
brings a code instead, which is good once. Both become a cookie, and none of them outlives the server. Only by a name of
this machine, so that no other page can reach it under a name of its own. The browser is told to run and load nothing
but our own files, to show it in no frame, and to tell nobody where it has been.
"""

from __future__ import annotations

import hmac
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.monitor.web.keys import Codes, fresh_token

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


class Guard:
    """Stands before the application."""

    def __init__(self, token: str, *, host: str, port: int) -> None:
        self.token = token
        self._session = fresh_token()
        self._codes = Codes()
        self.code = self._codes.fresh
        """One that lets a browser in, once."""
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
        said, code = (request.query_params.get(name) for name in ("token", "code"))
        if not request.url.path.startswith(("/api/", "/metrics")) and (said is not None or code is not None):
            return self._let_in(request, said or "", code or "")
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        shown = [bearer if scheme.lower() == "bearer" else "", said or ""]
        if self._has_cookie(request) or any(_same(each, self.token) for each in shown):
            return None
        return HTMLResponse(NO_TOKEN, 401, headers={"cache-control": "no-store"})

    def _let_in(self, request: Request, said: str, code: str) -> Response:
        """Keep what lets in as a cookie and out of the address, which ends up in histories and screenshots."""
        redeemed = self._codes.redeem(code)  # whoever brings it, it is used up
        if not (redeemed or _same(said, self.token) or self._has_cookie(request)):
            return HTMLResponse(NO_TOKEN, 401, headers={"cache-control": "no-store"})
        rest = [(key, value) for key, value in parse_qsl(request.url.query) if key not in ("token", "code")]
        path = request.scope.get("raw_path", b"/").decode("latin-1")
        path = "/" + path.lstrip("/\\")  # `//elsewhere` would be another machine
        answer = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, 303)
        answer.set_cookie(self.cookie, self._session, httponly=True, samesite="lax", path="/")
        answer.headers["cache-control"] = "no-store"
        return answer

    def _has_cookie(self, request: Request) -> bool:
        return _same(request.cookies.get(self.cookie, ""), self._session)


def _same(said: str, wanted: str) -> bool:
    return hmac.compare_digest(said.encode("utf-8", "replace"), wanted.encode())
