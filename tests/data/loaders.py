"""Loaders for tests: data that draw random numbers, acts that end or hang a child, and what is left of the children.

    pytestmark = [POSIX, TIDY]
    loader = record(make(At(11, os.abort)), events)    # sample 11 ends the child that reads it
    assert torch.equal(values(loader), undisturbed)    # two epochs, as they are without children

No child is called stuck for being slow on a busy machine: the limit is a minute. A test about limits moves the clock:

    hurry(loader, lambda: done.exists())               # the fixture: a second for each look, while that is true

The fixtures `events`, `undisturbed` and `nothing_left_behind`, which TIDY asks for, are in conftest.py.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from holdfast.data.loader import Batch, Loader
from holdfast.data.loader_pool import Patience

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
TIDY = pytest.mark.usefixtures("nothing_left_behind")
LENGTH, SIZE = 37, 4
Event = tuple[str, dict[str, Any]]


class Augmented(Dataset[torch.Tensor]):
    """Each sample draws from all three generators, as augmentation does."""

    def __init__(self, length: int = LENGTH, seconds: float = 0.0) -> None:
        self.length = length
        self.seconds = seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        drawn = [torch.rand(()).item(), np.random.standard_normal(), random.gauss(0, 1)]
        return torch.tensor([index, *drawn], dtype=torch.float64)


class At(Augmented):
    """Does something once, or always, at one sample. What was done is remembered in a file."""

    def __init__(self, index: int, act: Callable[[], None], memory: Path | None = None) -> None:
        super().__init__()
        self.index, self.act, self.memory = index, act, memory

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.index and not (self.memory and self.memory.exists()):
            if self.memory:
                self.memory.touch()
            self.act()
        return super().__getitem__(index)


def leave() -> None:
    os._exit(3)


def hang() -> None:
    threading.Event().wait()


class Clock:
    """The time that a loader reads: it stands nearly still, and goes on a second at each look while `hurry` is true."""

    sleep = staticmethod(time.sleep)

    def __init__(self, hurry: Callable[[], object]) -> None:
        self.hurry = hurry
        self.ahead = 0.0

    def monotonic(self) -> float:
        self.ahead += 1.0 if self.hurry() else 0.0
        return time.monotonic() / 100 + self.ahead


class Hanging:
    """An act that hangs, and says so: `hanging.now()` while a child is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self) -> None:
        (self.folder / str(os.getpid())).touch()
        hang()

    def now(self) -> bool:
        return any(_is_there(int(entry.name)) for entry in self.folder.iterdir())


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


made: weakref.WeakSet[Loader] = weakref.WeakSet()
"""Those that are still there, for a test that fails before it closes its own."""


def make(dataset: Any = None, workers: int = 2, **more: Any) -> Loader:
    loader = Loader(dataset or Augmented(), SIZE, shuffle=True, seed=5, num_workers=workers, **more)
    loader._pool.patience = Patience(floor_s=60.0)
    made.add(loader)
    return loader


def record(loader: Loader, events: list[Event]) -> Loader:
    loader.on_event = lambda name, details: events.append((name, details))
    return loader


def values(loader: Loader, epochs: int = 2, each: Callable[[Batch], None] = lambda batch: None) -> torch.Tensor:
    rows = []
    for epoch in range(epochs):
        for batch in loader.batches(epoch, 0):
            each(batch)
            assert batch.value[:, 0].tolist() == batch.samples.tolist()
            rows.append(batch.value)
    return torch.cat(rows)


def children() -> set[int]:
    """The children of this process, zombies too; but not the one multiprocessing keeps for spawning."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(") ")[2].split()[1])
            if parent == os.getpid() and b"resource_tracker" not in entry.with_name("cmdline").read_bytes():
                found.add(int(entry.parent.name))
        except OSError:
            continue
    return found
