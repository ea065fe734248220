"""A message is sent when its own address took it, and never goes to another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from holdfast.monitor.notify_ways import Message, Ways, send

MESSAGE = Message("alert", "it needs you", "text", "calm-heron", "eeg", "FAILED", "")


@contextmanager
def server(code: int, location: str = "") -> Iterator[tuple[str, list[str]]]:
    """Answers everything with one code; and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(self.command)
            self.send_response(code)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            asked.append(self.command)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    made = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}/hook", asked
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_an_answer_that_points_elsewhere_is_no_success_and_is_not_followed(code: int) -> None:
    with server(200) as (elsewhere, followed), server(code, elsewhere) as (address, asked):
        (line,) = send(MESSAGE, Ways(webhook=address), sleep=lambda seconds: None)
    assert line == f"alert by webhook: 127.0.0.1 answered {code}"
    assert (asked, followed) == (["POST"], [])


@pytest.mark.parametrize(("code", "sent"), [(200, True), (204, True), (400, False), (404, False)])
def test_two_hundreds_are_success_and_nothing_else(code: int, sent: bool) -> None:
    with server(code) as (address, asked):
        (line,) = send(MESSAGE, Ways(webhook=address), sleep=lambda seconds: None)
    assert line.endswith(": sent") is sent and asked == ["POST"]
