"""Dynamic batching: what waits while the engine is busy is answered together, each with its own rows.

    batcher = Batcher(bundle.engine(), most=16)
    outputs = await batcher.submit([array])        # (rows, …) for exactly these rows
    batcher.close()

Nobody is kept waiting for company: a lone request runs at once, alone. If a batch fails, its requests are tried one by
one, so that one of them cannot take the others along.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.optimize.engines import Arrays, Engine


class Full(Exception):
    """More waits than can be answered in good time."""


@dataclass(slots=True)
class Waiting:
    inputs: list[Any]
    count: int
    done: Callable[[Any], None]
    since: float = field(default_factory=time.perf_counter)
    dropped: bool = False


class Batcher:
    """One thread that runs the engine, and those who wait for it."""

    def __init__(self, engine: Engine, *, most: int = 16, waiting: int = 4096) -> None:
        self.engine, self.most, self.limit = engine, most, waiting
        self.batches = self.rows = self.failed = 0
        self.busy_s = 0.0
        self._queue: deque[Waiting] = deque()
        self._rows_waiting = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="holdfast-engine", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        return self._rows_waiting

    async def submit(self, inputs: list[Any]) -> Arrays:
        """The outputs for these rows; Full if too many wait already."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Arrays] = loop.create_future()

        def done(found: Any) -> None:
            loop.call_soon_threadsafe(_settle, future, found)

        mine = Waiting(inputs, len(inputs[0]), done)
        with self._changed:
            if self._closing or (self._queue and self._rows_waiting + mine.count > self.limit):
                raise Full
            self._queue.append(mine)
            self._rows_waiting += mine.count
            self._changed.notify()
        try:
            return await future
        finally:
            mine.dropped = True  # a client that left before its turn is not computed for

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(5.0)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if self._closing:
                    rest, self._queue = list(self._queue), deque()
                    break
                chosen = self._choose()
            self._answer([each for each in chosen if not each.dropped])
        for each in rest:
            each.done(Full())

    def _choose(self) -> list[Waiting]:
        chosen: list[Waiting] = []
        rows = 0
        while self._queue and (not chosen or rows + self._queue[0].count <= self.most):
            chosen.append(self._queue.popleft())
            rows += chosen[-1].count
        self._rows_waiting -= rows
        return chosen

    def _answer(self, chosen: list[Waiting]) -> None:
        if not chosen:
            return
        began = time.perf_counter()
        try:
            found = self._together(chosen)
        except Exception as error:  # whatever an engine raises
            if len(chosen) > 1:
                for each in chosen:
                    self._answer([each])
                return
            self.failed += 1
            chosen[0].done(error)
            return
        self.busy_s += time.perf_counter() - began
        self.batches += 1
        self.rows += sum(each.count for each in chosen)
        for each, outputs in zip(chosen, found, strict=True):
            each.done(outputs)

    def _together(self, chosen: list[Waiting]) -> list[Arrays]:
        if len(chosen) == 1:
            return [self.engine.run_all(chosen[0].inputs, self.most)]
        inputs = [np.concatenate(column) for column in zip(*(each.inputs for each in chosen), strict=True)]
        outputs = self.engine.run(inputs)
        total = len(inputs[0])
        if any(len(each) != total for each in outputs):
            raise RuntimeError(f"the engine gave {[len(each) for each in outputs]} answers to {total} inputs")
        cuts = np.cumsum([each.count for each in chosen])[:-1]
        return [list(part) for part in zip(*(np.split(each, cuts) for each in outputs), strict=True)]


def _settle(future: asyncio.Future[Any], found: Any) -> None:
    if future.done():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)
