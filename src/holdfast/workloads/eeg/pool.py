"""Work on many recordings by several processes; one that dies of a recording takes nothing else with it.

    for item, result in pool.ordered(work, items, workers=2):       # in the order of the items
        ...                                                         # result is Died where its process was ended

Results come in the order of the items, whoever is ready first, so what is made of them does not depend on how many
processes there were. At most a few wait at a time, and there are no more processes than memory has room for: memory and
disk are bounded. With one worker the work is done here.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any, TypeVar

from holdfast.base import interpreter
from holdfast.run import machine

Item = TypeVar("Item")
_lock = threading.Lock()
_AHEAD = 4
"""Items that may be begun or wait for their turn, for each worker: recordings are not all of one length."""
_ROOM = 0.7
"""The part of the memory that is free which all workers together may take."""


class Died:
    """The process that worked on an item was ended, twice, by whatever ended it."""


def usual_workers(each_bytes: float = 0.0) -> int:
    """The processors this process may use; fewer if memory has no room for as many workers of `each_bytes`."""
    limits = machine.limits()
    workers = max(1, min(machine.usable_cpus() or 1, round(limits["cpus"] or 1e9)))
    known = [room for room in (machine.memory()["available_bytes"], limits["memory_bytes"]) if room is not None]
    if each_bytes > 0 and known:
        workers = min(workers, max(1, int(_ROOM * min(known) / each_bytes)))
    return workers


def ordered(
    work: Callable[[Item], Any], items: Sequence[Item], workers: int | None = None, *, each_bytes: float = 0.0
) -> Iterator[tuple[Item, Any]]:
    """Each item with what `work` returned for it. `each_bytes` is the memory that a worker needs."""
    workers = min(len(items), usual_workers(each_bytes) if workers is None else workers)
    if workers <= 1:
        for item in items:
            yield item, work(item)
        return
    waiting: deque[tuple[Item, Future[Any]]] = deque()
    rest = deque(items)
    executor = _executor(workers)
    try:
        while rest or waiting:
            while rest and len(waiting) < _AHEAD * workers:
                item = rest.popleft()
                waiting.append((item, executor.submit(work, item)))
            item, future = waiting.popleft()
            try:
                yield item, future.result()
            except BrokenProcessPool:
                # Whoever ended it is among those that were begun: each of them again, one at a time.
                executor.shutdown(wait=False, cancel_futures=True)
                begun = [item, *(each for each, _ in waiting)]
                waiting.clear()
                yield from _one_by_one(work, begun)
                executor = _executor(workers)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _one_by_one(work: Callable[[Item], Any], items: Sequence[Item]) -> Iterator[tuple[Item, Any]]:
    """A single process at a time, so that it is known which item ended it."""
    executor = _executor(1)
    try:
        for item in items:
            try:
                result = executor.submit(work, item).result()
            except BrokenProcessPool:
                result, executor = Died(), _executor(1)
            yield item, result
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _executor(workers: int) -> ProcessPoolExecutor:
    # spawn: the caller may have threads (torch, a training run), and a fork of those can hang
    with interpreter.spawning():
        return ProcessPoolExecutor(workers, mp_context=_Context(), initializer=_at_start, initargs=(os.getpid(),))


class _Process(SpawnProcess):
    """A new process imports the caller's script first, and what that imports (torch, a framework) takes longer than
    many a recording. Nothing of it is needed here, so it is not told which script that was.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _lock:
            script = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                with interpreter.spawning():
                    return SpawnProcess._Popen(process_obj)
            finally:
                sys.modules["__main__"] = script


class _Context(SpawnContext):
    Process = _Process


def _at_start(parent: int) -> None:
    """In a new process: Ctrl-C is the parent's business, and the end of the parent is the end of this one, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    # A pool's processes wait for work on a pipe that they hold open themselves: they would never learn of it.
    while os.getppid() == parent or not hasattr(os, "fork"):  # Windows keeps the number of a parent that is gone
        time.sleep(0.5)
    os._exit(1)
