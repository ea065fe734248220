"""What goes over the wire: requests as they are understood, answers as they are written.

parsed(b"GET / HTTP/1.1\\r\\nHost: x")          # Request; Refused with the answer if it is none
head_of(told(404, "unknown address"), close=False) + answer.body
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
           408: "Request Timeout", 411: "Length Required", 413: "Content Too Large", 415: "Unsupported Media Type",
           422: "Unprocessable Content", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
           501: "Not Implemented", 503: "Service Unavailable"}  # fmt: skip


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


def full() -> Answer:
    return told(503, "too much is under way already", **{"Retry-After": "1"})


def head_of(answer: Answer, close: bool) -> bytes:
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


def parsed(head: bytes) -> Request:
    try:
        first, *rest = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        pairs = [line.split(":", 1) for line in rest]
        headers = {name.lower(): value.strip() for name, value in pairs}
    except ValueError:
        raise Refused(told(400, "this is not an HTTP request")) from None
    if (
        version not in ("HTTP/1.1", "HTTP/1.0")
        or len(pairs) > 100
        or len(headers) < len(pairs)
        or not target.startswith("/")
    ):
        raise Refused(told(400, "this HTTP request is not understood here"))
    if any(not name or name != name.strip() for name, _ in pairs):
        raise Refused(told(400, "a header has no proper name"))
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return Request(method, target.partition("?")[0], headers)
