"""What happened to each file, one JSON object a line, in DATA/.holdfast/journal.jsonl. Several processes may write.

{"event": "verified", "path": "R5/…", "size": 45212208, "mtime_ns": 1763…, "sha256": "c6ff…", "time": "…"}
{"event": "retry", "path": "R5/…", "why": "HTTP 503 SlowDown", "at": 1048576}
{"event": "quarantined", "path": "R5/…", "why": "sha256 is not that of the manifest", "to": "…"}
{"event": "failed", "path": "R5/…", "why": "…"}
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.base import files

NAME = ".holdfast/journal.jsonl"


class Journal:
    """Appends; a line is one write, so that those of two processes do not mix."""

    def __init__(self, root: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._fd = os.open(root / NAME, flags, 0o600)
        self._lock = threading.Lock()

    def add(self, event: str, path: str, **facts: Any) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"event": event, "path": path, **facts, "time": now}).encode() + b"\n"
        with self._lock:
            os.write(self._fd, line)

    def close(self) -> None:
        os.fsync(self._fd)
        os.close(self._fd)


def entries(root: Path) -> Iterator[dict[str, Any]]:
    """Every line that makes sense."""
    try:
        with files.open_regular(root / NAME) as file:
            for line in file:
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(entry, dict):
                    yield entry
    except OSError:
        return
