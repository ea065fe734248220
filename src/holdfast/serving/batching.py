"""Dynamic batching: what waits while the engine is busy is answered together, each with its own rows.

    batcher = Batcher(bundle.engine(), most=16)
    outputs = await batcher.submit([array])        # (rows, …) for exactly these rows
    batcher.put([array], done, tell)               # without a future: tell(settle, answers) calls done(outputs)
    batcher.close()

Nobody is kept waiting for company: a lone request runs at once, alone. If a batch fails, its requests are tried one by
one, so that one of them cannot take the others along.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.base.control_characters import without_control
from holdfast.optimize.engines import Arrays, Engine


class Full(Exception):
    """More waits than can be answered in good time."""


class NotFinite(Exception):
    """The model answered NaN or infinity."""


class EngineFailed(Exception):
    """What an engine in another process said of its failure."""


def in_words(error: Exception) -> str:
    """What an engine's failure is, for whoever asked."""
    return str(error) if isinstance(error, EngineFailed) else f"{type(error).__name__}: {str(error)[:200]}"


Done = Callable[[Any], None]
"""Called with the outputs, or with an Exception, where `tell` calls it."""
Tell = Callable[..., Any]
"""Calls a function with its arguments where the answers are wanted: `loop.call_soon_threadsafe`, for one."""


@dataclass(slots=True)
class Waiting:
    inputs: list[Any]
    count: int
    done: Done
    tell: Tell
    dropped: bool = False

    def drop(self) -> None:
        """A client that left before its turn is not computed for."""
        self.dropped = True


class Batcher:
    """One thread that runs the engine, and those who wait for it."""

    def __init__(
        self, engine: Engine, *, most: int = 16, waiting: int = 4096, finish: Callable[[Arrays], Any] | None = None
    ) -> None:
        self.engine, self.most, self.limit, self.finish = engine, most, waiting, finish
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

    def numbers(self) -> dict[str, float]:
        """What it has done, for /metrics."""
        return {
            "batches_total": self.batches,
            "inputs_total": self.rows,
            "engine_failures_total": self.failed,
            "engine_busy_seconds_total": round(self.busy_s, 3),
            "waiting_inputs": self._rows_waiting,
        }

    def ask_numbers(self, done: Callable[[dict[str, float]], None]) -> None:
        done(self.numbers())

    def put(self, inputs: list[Any], done: Done, tell: Tell) -> Waiting:
        """Ask; `tell` calls `done`. Full if too many wait already."""
        mine = Waiting(inputs, len(inputs[0]), done, tell)
        with self._changed:
            if self._closing or (self._queue and self._rows_waiting + mine.count > self.limit):
                raise Full
            self._queue.append(mine)
            self._rows_waiting += mine.count
            if len(self._queue) == 1:
                self._changed.notify()
        return mine

    async def submit(self, inputs: list[Any]) -> Arrays:
        """The outputs for these rows."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Arrays] = loop.create_future()

        def done(found: Any) -> None:
            if not future.done():
                future.set_exception(found) if isinstance(found, Exception) else future.set_result(found)

        mine = self.put(inputs, done, loop.call_soon_threadsafe)
        try:
            return await future
        finally:
            mine.drop()

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
        _deliver([(each, Full()) for each in rest])

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
            _deliver([(chosen[0], error)])
            return
        self.busy_s += time.perf_counter() - began
        self.batches += 1
        self.rows += sum(each.count for each in chosen)
        _deliver(list(zip(chosen, found, strict=True)))

    def _together(self, chosen: list[Waiting]) -> list[Any]:
        """What each of them gets: outputs, or NotFinite."""
        if len(chosen) == 1:
            outputs = self.engine.run_all(chosen[0].inputs, self.most)
        else:
            outputs = self.engine.run_together([each.inputs for each in chosen])
        total = sum(each.count for each in chosen)
        if any(len(each) != total for each in outputs):
            raise RuntimeError(f"the engine gave {[len(each) for each in outputs]} answers to {total} inputs")
        good = all(np.isfinite(each).all() for each in outputs)
        parts, at = [], 0
        for each in chosen:
            parts.append(self._finished([output[at : at + each.count] for output in outputs], good))
            at += each.count
        return parts

    def _finished(self, mine: Arrays, good: bool) -> Any:
        if not good and not all(np.isfinite(each).all() for each in mine):
            return NotFinite()
        return mine if self.finish is None else self.finish(mine)


def _deliver(answers: list[tuple[Waiting, Any]]) -> None:
    """All answers of a batch for one place in one call: waking it costs more than an answer."""
    places: dict[Tell, list[tuple[Waiting, Any]]] = {}
    for each in answers:
        places.setdefault(each[0].tell, []).append(each)
    for tell, mine in places.items():
        try:
            tell(_settle, mine)
        except RuntimeError:
            pass  # the loop is gone, and nobody waits any more
        except Exception:  # a bug of ours: said, and the others are told all the same
            print(without_control(traceback.format_exc()), file=sys.stderr, flush=True)


def _settle(answers: list[tuple[Waiting, Any]]) -> None:
    for each, found in answers:
        if not each.dropped:
            each.done(found)
