"""`holdfast serve` as a process, and questions for it."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

TOKEN = "a-token-for-the-tests"
HEAD = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-npy"}


class Served:
    def __init__(self, child: subprocess.Popen[str], port: int) -> None:
        self.child, self.port = child, port
        self.said = ""
        """What it had printed when it ended."""

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, HEAD if headers is None else headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def error(self, body: bytes, **headers: str) -> tuple[int, str]:
        status, said = self.ask("POST", "/predict", body, {**HEAD, **headers})
        return status, json.loads(said)["error"]


@contextlib.contextmanager
def serving(made: Path, readers: int, *more: str) -> Iterator[Served]:
    words = [sys.executable, "-m", "holdfast.cli.main", "serve", str(made), "--port", "0", "--max-body", "100KB"]
    with subprocess.Popen(
        [*words, "--readers", str(readers), *more],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "HOLDFAST_SERVE_TOKEN": TOKEN},
    ) as child:  # fmt: skip
        assert child.stdout is not None
        line = child.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:(\d+)/predict", line)
        assert match, line
        served = Served(child, int(match[1]))
        try:
            yield served
        finally:
            child.terminate()
            served.said = child.stdout.read()
            child.wait(100)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()
