"""A bucket on the loopback that does to a downloader what real ones do, and worse.

    with Bucket({"NeurIPS25/R5_mini_L100_bdf/README": b"..."}, page=3) as bucket:
        bucket.base                                  # http://127.0.0.1:54321
        bucket.harm(key, Drop(after=1000), times=2)  # the next two bodies of this object break off
        bucket.requests                              # (key, range) of every request, in order

It answers S3's ListObjectsV2 with pages, and GET with ranges and entity tags, as anonymous users get them.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class Drop:
    """The connection is reset after some bytes of the body."""

    after: int


@dataclass(frozen=True)
class Truncate:
    """The body ends early, politely, in spite of what its header says."""

    after: int


@dataclass(frozen=True)
class Refuse:
    """An error of S3."""

    status: int
    code: str
    retry_after: int | None = None


@dataclass(frozen=True)
class Corrupt:
    """One byte of the body is another one."""

    at: int


@dataclass(frozen=True)
class Lie:
    """The header announces another size, and the body has it."""

    by: int


@dataclass(frozen=True)
class NoRanges:
    """The whole body comes, whatever was asked for."""


@dataclass(frozen=True)
class Slow:
    """The body stops in the middle until the bucket is told to go on."""

    after: int


Harm = Drop | Truncate | Refuse | Corrupt | Lie | NoRanges | Slow


class Bucket:
    def __init__(self, objects: Mapping[str, bytes], *, page: int = 1000) -> None:
        self.objects = dict(objects)
        self.page = page
        self.listed_sizes: dict[str, int] = {}
        """Sizes that the list tells instead of the true ones."""
        self.multipart: set[str] = set()
        """Objects whose tag is no md5."""
        self.requests: list[tuple[str, str]] = []
        self.go_on = threading.Event()
        self._harms: dict[str, list[Harm]] = defaultdict(list)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Bucket:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def harm(self, key: str, harm: Harm, times: int = 1) -> None:
        """What happens to the next requests of this object; `list` is the list itself."""
        self._harms[key] += [harm] * times

    def next_harm(self, key: str) -> Harm | None:
        with self._lock:
            return self._harms[key].pop(0) if self._harms[key] else None

    def gets(self, key: str) -> int:
        return sum(1 for each, _ in self.requests if each == key)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        bucket = self

        class Handler(_Handler):
            place = bucket

        return Handler


class _Handler(BaseHTTPRequestHandler):
    place: Bucket
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        key = unquote(url.path).lstrip("/")
        self.place.requests.append((key or "list", self.headers.get("Range", "")))
        harm = self.place.next_harm(key or "list")
        if isinstance(harm, Refuse):
            self._refuse(harm)
        elif not key:
            self._list(parse_qs(url.query), harm)
        elif key not in self.place.objects:
            self._refuse(Refuse(404, "NoSuchKey"))
        else:
            self._object(key, self.place.objects[key], harm)

    def _refuse(self, harm: Refuse) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{harm.code}</Code></Error>".encode()
        self.send_response(harm.status)
        if harm.retry_after is not None:
            self.send_header("Retry-After", str(harm.retry_after))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _list(self, query: dict[str, list[str]], harm: Harm | None) -> None:
        prefix, only_here = query.get("prefix", [""])[0], "delimiter" in query
        after = query.get("continuation-token", [""])[0]
        keys = [key for key in sorted(self.place.objects) if key.startswith(prefix) and key > after]
        keys = [key for key in keys if not only_here or "/" not in key.removeprefix(prefix)]
        shown = keys[: self.place.page]
        more = len(keys) > len(shown)
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{self._size(key)}</Size><ETag>{escape(self._tag(key))}</ETag></Contents>"
            for key in shown
        )
        token = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if more else ""
        name = "http://s3.amazonaws.com/doc/2006-03-01/"
        truncated = str(more).lower()
        body = (
            f'<?xml version="1.0"?><ListBucketResult xmlns="{name}"><IsTruncated>{truncated}</IsTruncated>'
            f"{entries}{token}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self._send(body, {"Content-Length": str(len(body))}, harm)

    def _size(self, key: str) -> int:
        return self.place.listed_sizes.get(key, len(self.place.objects[key]))

    def _tag(self, key: str) -> str:
        md5 = hashlib.md5(self.place.objects[key], usedforsecurity=False).hexdigest()
        return f'"{md5}-3"' if key in self.place.multipart else f'"{md5}"'

    def _object(self, key: str, body: bytes, harm: Harm | None) -> None:
        if isinstance(harm, Corrupt):
            body = body[: harm.at] + bytes([body[harm.at] ^ 0x55]) + body[harm.at + 1 :]
        if isinstance(harm, Lie):
            body = body[: harm.by] if harm.by < 0 else body + b"x" * harm.by
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and not isinstance(harm, NoRanges) else 0
        if start and start >= len(body):
            self._refuse(Refuse(416, "InvalidRange"))
            return
        self.send_response(206 if start else 200)
        headers = {"ETag": self._tag(key), "Content-Length": str(len(body) - start), "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        self._send(body[start:], headers, harm)

    def _send(self, body: bytes, headers: dict[str, str], harm: Harm | None) -> None:
        for name, value in headers.items():
            self.send_header(name, value)
        if isinstance(harm, Truncate):
            self.send_header("Connection", "close")
        self.end_headers()
        try:
            if isinstance(harm, (Drop, Truncate)):
                self.wfile.write(body[: harm.after])
                self.wfile.flush()
                if isinstance(harm, Drop):
                    reset = struct.pack("ii", 1, 0)  # no lingering: the other side gets a reset
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                self.close_connection = True
            elif isinstance(harm, Slow):
                self.wfile.write(body[: harm.after])
                self.wfile.flush()
                self.place.go_on.wait(60)
                self.wfile.write(body[harm.after :])
            else:
                self.wfile.write(body)
        except OSError:  # whoever asked went away
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        return
