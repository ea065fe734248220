"""What lets somebody into the page: never among the arguments of a process, which all users of the machine can read."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `monitor`")
pytest.importorskip("starlette", reason="needs the extra `monitor`")

from holdfast.base import processes
from holdfast.monitor.web import keys
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="this system has no /proc")
NOBODY = 65534


@dataclass
class Opened:
    """A page that has just opened a browser."""

    child: subprocess.Popen[bytes]
    address: str
    browser: int
    cache: Path

    @property
    def token(self) -> str:
        return self.address.partition("token=")[2]

    def ask(self, path: str, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(self.address).port or 0, timeout=60)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """`holdfast watch --web` in a terminal, on a machine with a screen; the browser stays until the test is over."""
    browser = tmp_path / "browser"
    pid = tmp_path / "pid"
    browser.write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}; while :; do sleep 0.2; done\n")
    browser.chmod(0o755)
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "holdfast.cli.main", "watch", "--web", "--port", "0", "--folder", str(tmp_path)]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "DISPLAY": ":9", "BROWSER": str(browser)}
    child = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    said = b""
    try:
        while b"Ctrl-C" not in said:
            said += os.read(ours, 4096)
        found = re.search(rb"http://\S+", said.replace(b"\r", b""))
        assert found, said
        assert wait_until(pid.exists, 60)
        yield Opened(child, found[0].decode(), int(pid.read_text()), tmp_path / "cache" / "holdfast")
    finally:
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGKILL)
        child.send_signal(signal.SIGINT)
        child.wait(100)
        os.close(ours)


def seen_by_another(pid: int) -> str:
    """The arguments of a process as another user of the machine reads them."""
    who = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}
    done = subprocess.run(["cat", f"/proc/{pid}/cmdline"], capture_output=True, check=True, **who)  # type: ignore[call-overload]
    return str(done.stdout.decode().replace("\0", " "))


@pytest.mark.all
def test_no_secret_is_among_the_arguments(opened: Opened) -> None:
    shown = seen_by_another(opened.browser)
    pids = [opened.child.pid, *processes.children(opened.child.pid)]
    for text in (shown, *map(seen_by_another, pids)):
        assert text.strip() and opened.token not in text and "token=" not in text and "code=" not in text
    place = re.search(r"file://\S+", shown)
    assert place, "it is the name of a file"
    door = Path(url2pathname(urlsplit(place[0]).path))
    assert door.stat().st_mode & 0o777 == 0o600 and door.parent.stat().st_mode & 0o777 == 0o700
    text = door.read_text()
    assert opened.token not in text and '<meta name="referrer" content="no-referrer">' in text

    target = re.search(r'url=(http://\S+?)"', text)
    assert target
    parts = urlsplit(target[1])
    way = f"{parts.path}?{parts.query}"
    first = opened.ask(way)
    assert (first.status, first.getheader("location")) == (303, "/")
    assert first.getheader("referrer-policy") == "no-referrer" and first.getheader("cache-control") == "no-store"
    cookie = first.getheader("set-cookie", "").partition(";")[0]
    assert opened.ask("/api/runs", Cookie=cookie).status == 200
    assert opened.token not in cookie, "a cookie that leaks is no token"
    assert opened.ask(way).status == 401, "a code is good once"
    assert opened.ask("/api/runs", Authorization=f"Bearer {parts.query.partition('code=')[2]}").status == 401

    kept = list(opened.cache.glob("web-token-*"))
    assert [each.stat().st_mode & 0o777 for each in kept] == [0o600]
    assert kept[0].read_text().strip() == opened.token, "for scrapers"
    opened.child.send_signal(signal.SIGINT)
    assert opened.child.wait(100) == 0
    assert not list(opened.cache.glob("web-token-*")) and not list(opened.cache.glob("open-*")), "and they end with it"


def test_a_code_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(keys.time, "monotonic", lambda: now[0])
    codes = keys.Codes()
    first, second = codes.fresh(), codes.fresh()
    assert not codes.redeem("") and not codes.redeem(first[:-1]) and not codes.redeem("ä")
    now[0] += keys.CODE_S - 1
    assert codes.redeem(first) and not codes.redeem(first)
    now[0] += 2
    assert not codes.redeem(second) and not codes.redeem(second)


@pytest.mark.all
def test_every_server_has_a_token_of_its_own(tmp_path: Path) -> None:
    """What somebody has learnt of one is worth nothing at the next, at the same port and for the same user."""
    from tests.monitor.serving import Page

    first = Page(tmp_path, cache=tmp_path)
    cookie = first.ask(f"/?token={first.token}", Authorization="")[1]["set-cookie"].partition(";")[0]
    assert first.ask("/api/runs", Authorization="", Cookie=cookie)[0] == 200
    first.close()
    second = Page(tmp_path, "--port", str(first.port), cache=tmp_path)
    try:
        assert second.token != first.token
        assert second.ask("/api/runs", Authorization=f"Bearer {first.token}")[0] == 401
        cookie = cookie.replace(f"_{first.port}=", f"_{second.port}=")
        assert second.ask("/api/runs", Authorization="", Cookie=cookie)[0] == 401
        assert second.ask("/api/runs")[0] == 200
    finally:
        second.close()


def test_a_file_that_others_put_there_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "open").write_text("theirs")
    (tmp_path / "holdfast" / "web-token-7878").symlink_to(tmp_path / "open")
    kept = keys.Kept("secret", 7878)
    assert (tmp_path / "open").read_text() == "theirs"
    assert (tmp_path / "holdfast" / "web-token-7878").stat().st_mode & 0o777 == 0o600
    kept.remove()
    assert not list((tmp_path / "holdfast").iterdir())


@pytest.mark.all
def test_the_token_of_a_server_of_bundles_is_no_argument_of_its_readers(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra `optimize`")
    pytest.importorskip("onnx", reason="needs the extra `optimize`")
    from holdfast.serving.readers import possible
    from tests.optimize import small
    from tests.optimize.serving import TOKEN, serving

    with serving(small.make(tmp_path), 1 if possible() else 0) as served:
        pids = [served.child.pid, *processes.children(served.child.pid)]
        assert len(pids) == 1 + possible()
        assert not any(TOKEN in seen_by_another(pid) for pid in pids)
