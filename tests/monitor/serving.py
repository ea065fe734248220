"""`holdfast watch --web` as people run it: another process, an address with a token, and somebody who asks."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest


class Page:
    """A server that was started, and how to ask it."""

    def __init__(self, root: Path, *words: str, cache: Path, descriptors: int = 0) -> None:
        pytest.importorskip("starlette", reason="needs the extra `monitor`")
        pytest.importorskip("uvicorn", reason="needs the extra `monitor`")
        argv = [sys.executable, "-m", "holdfast.cli.main", "watch", "--web", "--no-browser", "--folder", str(root)]
        if descriptors:
            argv = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *argv]
        self.process = subprocess.Popen(
            [*argv, *(words if "--port" in words else (*words, "--port", "0"))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        )
        self.said: list[str] = []
        ready = threading.Event()
        threading.Thread(target=self._listen, args=(ready,), daemon=True).start()
        assert ready.wait(100), f"it said {self.said}"
        found = re.search(r"http://\S+", "\n".join(self.said))
        assert found, f"it said {self.said}"
        self.address = found[0]
        parts = urlsplit(self.address)
        self.host, self.port, self.token = parts.hostname or "", parts.port or 0, parts.query.partition("token=")[2]
        self.base = f"http://{self.host}:{self.port}"

    def _listen(self, ready: threading.Event) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if "Ctrl-C" in line:
                ready.set()
        ready.set()

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """An answer to exactly this path: nothing is made nicer on the way."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=100)
        headers = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.request(method, path, headers={"Authorization": f"Bearer {self.token}", **headers})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, data

    def json(self, path: str) -> Any:
        status, _, data = self.ask(path)
        assert status == 200, data
        return json.loads(data)

    @contextlib.contextmanager
    def news(self, query: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The stream of a page: kinds and data, as they come."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=100)
        connection.request("GET", f"/api/live?{query}", headers={"Authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.getheader("content-type", "").startswith("text/event-stream")

        def messages() -> Iterator[tuple[str, Any]]:
            kind = ""
            while line := answer.readline().decode():
                if line.startswith("event: "):
                    kind = line[7:].strip()
                elif line.startswith("data: "):
                    yield kind, json.loads(line[6:])

        try:
            yield messages()
        finally:
            connection.close()

    def close(self) -> None:
        """Ctrl-C, as a person would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT if sys.platform != "win32" else signal.SIGTERM)
        try:
            self.process.wait(100)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
