"""What a rank says to the agent of its machine: lines of JSON in a file of its process. No torch.

    post(job, 2, Agreed(step=12, look={…}))       # the rank; a few in a minute, on probation one in a step
    mail = Mail(job, 2, 4711)
    for message in mail.news(): ...               # the agent: what has come since the last time

Ranks have no connection to the agent. Most of what they say goes to the run folder; this is what decides whether a
device is trusted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.distributed.job import Job
from holdfast.run.messages import Agreed, Blind, Message, Suspicion, heard

OF_TRUST = (Agreed, Suspicion, Blind)


def post(job: Job, seat: int, message: Message) -> None:
    """A folder that is full or gone is no reason for a rank to end."""
    with contextlib.suppress(OSError), open(_path(job, seat, os.getpid()), "a", encoding="utf-8") as file:
        file.write(json.dumps(message.to_json(), default=str) + "\n")


class Mail:
    """Of one process of a rank."""

    def __init__(self, job: Job, seat: int, pid: int) -> None:
        self._path = _path(job, seat, pid)
        self._at = 0

    def news(self) -> Iterator[Message]:
        """Whole lines; the rest of one that is being written comes the next time."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                found = file.read()
        except OSError:
            return
        lines = found[: found.rfind(b"\n") + 1]
        self._at += len(lines)
        yield from heard(_objects(lines))

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)


def _objects(lines: bytes) -> Iterator[dict[str, Any]]:
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):
            read = json.loads(line)
            if isinstance(read, dict):
                yield read


def _path(job: Job, seat: int, pid: int) -> Path:
    return job.path / f"mail-{seat}-{pid}.jsonl"
