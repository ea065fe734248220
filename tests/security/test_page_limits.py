"""The page of `watch --web` against connections that say nothing, or not enough: real sockets, few descriptors."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `monitor`")
pytest.importorskip("starlette", reason="needs the extra `monitor`")

from tests.monitor.serving import Page
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no ulimit")


@contextlib.contextmanager
def silent(port: int, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            found.append(sock)
            with contextlib.suppress(OSError):  # closed already, to make room
                sock.sendall(sent)
        yield found


@pytest.mark.all
def test_three_hundred_silent_connections_at_256_descriptors_lock_nobody_out(tmp_path: Path) -> None:
    page = Page(tmp_path, cache=tmp_path, descriptors=256)
    try:
        for sent in (b"", b"GET /api/runs HTTP/1.1\r\nHost: ", b"GET /static/all.js HTTP/1.1\r\n\r\n"):
            with silent(page.port, 300, sent):
                for _ in range(3):
                    assert page.ask("/api/runs")[0] == 200
        assert "Traceback" not in "\n".join(page.said) and "Too many open files" not in "\n".join(page.said)
    finally:
        page.close()
    assert page.process.returncode == 0


IMPATIENT = """
import sys
from pathlib import Path
from holdfast.monitor.web import serve
from holdfast.monitor.web.limits import Limits
serve(Path(sys.argv[1]), [], port=0, limits=Limits(connections=8, silent_s=1.0))
"""


@pytest.mark.all
def test_the_longest_silent_makes_room_and_all_of_them_end(tmp_path: Path) -> None:
    words = [sys.executable, "-c", IMPATIENT, str(tmp_path)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    ) as child:
        try:
            assert child.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)/\?token=(\S+)", child.stdout.readline())
            assert found
            port, token = int(found[1]), found[2]
            stream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            stream.request("GET", "/api/live?list=1", headers={"Authorization": f"Bearer {token}"})
            news = stream.getresponse()
            with silent(port, 20) as many:
                assert wait_until(lambda: closed(many[0]), 60), "the oldest one goes first"
                one = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                one.request("GET", "/healthz")
                assert one.getresponse().read() == b"ok\n"
                dripping = many[-1]

                def all_closed() -> bool:
                    with contextlib.suppress(OSError):
                        dripping.send(b"G")  # a byte now and then is no request
                    return all(map(closed, many))

                assert wait_until(all_closed, 60)
            time.sleep(0.1)
            assert news.readline() == b"retry: 1000\n", "whoever has asked something is not silent"
            stream.close()
        finally:
            child.terminate()


def closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
