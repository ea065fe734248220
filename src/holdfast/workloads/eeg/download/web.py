"""One request, and what its failure means: come back later, ask elsewhere, or give up.

    with web.get(url, start=4096) as answer:        # Range: bytes=4096-
        answer.start, answer.total                  # where the body begins, how long the whole thing is
        for chunk in answer.chunks(): ...           # Trouble if it breaks off

Trouble.kind is one of
    later      503, SlowDown, 500, 429, a broken connection: the same again after a while
    elsewhere  404, 403, 401: another mirror may have it
    changed    the part we have does not belong to what is there: from the beginning
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from holdfast import __version__

TIMEOUT = 30.0
"""Seconds of silence after which a connection counts as broken."""
CHUNK = 256 << 10
LATER, ELSEWHERE, CHANGED = "later", "elsewhere", "changed"


class Trouble(Exception):
    """A request that did not give what was asked for."""

    def __init__(self, kind: str, why: str, *, wait: float | None = None) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why
        self.wait = wait
        """Seconds, where the server said how long."""


class Answer:
    """The body of a file, or the rest of it."""

    def __init__(self, response: Any, start: int, total: int | None, tag: str) -> None:
        self._response = response
        self.start, self.total, self.tag = start, total, tag

    def chunks(self) -> Iterator[bytes]:
        try:
            while chunk := self._response.read(CHUNK):
                yield chunk
        except _BROKEN as error:
            raise Trouble(LATER, f"the connection broke: {_words(error)}") from error


_BROKEN = (OSError, http.client.HTTPException, ssl.SSLError)


@contextlib.contextmanager
def get(url: str, *, start: int = 0, tag: str = "", timeout: float = TIMEOUT) -> Iterator[Answer]:
    """Ask for a file from byte `start` on, if it is still the one of this tag."""
    headers = {"User-Agent": f"holdfast/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if tag:
            headers["If-Range"] = tag
    request = urllib.request.Request(url, headers=headers)
    try:
        response = _opener().open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(error, start) from None
    except _BROKEN as error:
        raise Trouble(LATER, f"no connection: {_words(error)}") from error
    except ValueError as error:
        raise Trouble(ELSEWHERE, f"not an address: {error}") from error
    with response:
        yield _answer(response, start)


def _answer(response: Any, start: int) -> Answer:
    tag = str(response.headers.get("ETag") or "")
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", str(response.headers.get("Content-Range") or ""))
        if match is None or int(match[1]) != start:
            raise Trouble(CHANGED, "the server sent another part than was asked for")
        return Answer(response, start, None if match[3] == "*" else int(match[3]), tag)
    length = str(response.headers.get("Content-Length") or "")
    return Answer(response, 0, int(length) if length.isdigit() else None, tag)


def _refused(error: urllib.error.HTTPError, start: int) -> Trouble:
    try:
        body = error.read(4096).decode("utf-8", "replace")
    except _BROKEN:
        body = ""
    code = re.search(r"<Code>([A-Za-z]{1,60})</Code>", body)
    why = f"HTTP {error.code}{f' {code[1]}' if code else ''}"
    if error.code == 416 and start:
        return Trouble(CHANGED, f"{why}: the part that is here is longer than the file")
    if error.code in (408, 425, 429) or error.code >= 500 or (code and code[1] in ("SlowDown", "RequestTimeout")):
        wait = str(error.headers.get("Retry-After") or "")
        return Trouble(LATER, why, wait=float(wait) if wait.isdigit() else None)
    return Trouble(ELSEWHERE, why)


class _OnlyOnward(urllib.request.HTTPRedirectHandler):
    """Buckets send you to their region; nobody is sent from HTTPS to plain HTTP."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Honours the proxy variables. A new one each time: they are cheap, and shared ones are not made for threads."""
    return urllib.request.build_opener(_OnlyOnward)


def _words(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    return str(reason if reason is not None else error) or type(error).__name__
