"""The job in a worker that runs out of the machine's memory once, really: by a limit, or by asking for too much."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Any

import torch
from job import Job

import holdfast


def train(session: holdfast.Session, *, epochs: int = 3, how: str = "limit", step: int = 5) -> None:
    job = Job(session)
    done = session.run.folder / "exhausted"
    for _ in session.epochs(epochs):
        job.diary.draw()
        for batch in session.batches(job.data):
            if session.step_count + 1 == step and not done.exists():
                done.touch()
                exhaust(how)
            job.step(batch)
        job.evaluate()
        job.diary.draw()


def exhaust(how: str) -> None:
    if how == "limit":  # torch's allocator meets the limit of the process
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + (64 << 20), hard))
        torch.ones(1 << 28)
    elif how == "python":
        bytearray(1 << 60)
    elif how == "cgroup":  # the kernel ends the largest process of the group: this one
        held: list[Any] = []
        while True:
            held.append(torch.ones(1 << 24))


def _address_space() -> int:
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 8 << 30
