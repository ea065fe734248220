"""Dynamic batching alone: rows go back to whom they belong, failures stay alone, a full queue says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from holdfast.optimize.engines import Engine
from holdfast.serving.batching import Batcher, Full, NotFinite


def test_what_waits_is_answered_together() -> None:
    sizes: list[int] = []
    first = threading.Event()

    def run(inputs: Sequence[Any]) -> list[Any]:
        sizes.append(len(inputs[0]))
        first.wait(100)  # the others arrive while the first one is computed
        return [inputs[0] * 2]

    async def scenario(batcher: Batcher) -> list[Any]:
        tasks = [asyncio.create_task(batcher.submit([np.zeros((1, 3))]))]
        while not sizes:
            await asyncio.sleep(0.01)
        tasks += [asyncio.create_task(batcher.submit([np.full((1, 3), float(n))])) for n in range(1, 9)]
        await asyncio.sleep(0.05)
        first.set()
        return list(await asyncio.gather(*tasks))

    batcher = Batcher(Engine(run), most=8)
    try:
        found = asyncio.run(scenario(batcher))
    finally:
        batcher.close()
    assert [float(each[0][0, 0]) for each in found] == [2.0 * n for n in range(9)]
    assert sizes == [1, 8]


def test_one_that_fails_does_not_take_the_others_along() -> None:
    def run(inputs: Sequence[Any]) -> list[Any]:
        if (inputs[0] == 3).any():
            raise RuntimeError("three")
        return [inputs[0]]

    async def scenario(batcher: Batcher) -> list[Any]:
        tasks = [batcher.submit([np.full((1, 1), float(n))]) for n in range(8)]
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    batcher = Batcher(Engine(run), most=8)
    try:
        found = asyncio.run(scenario(batcher))
    finally:
        batcher.close()
    assert isinstance(found[3], RuntimeError)
    assert [float(each[0][0, 0]) for n, each in enumerate(found) if n != 3] == [0, 1, 2, 4, 5, 6, 7]


def test_a_full_queue_says_so_and_a_closing_one_too() -> None:
    go, running = threading.Event(), []  # type: threading.Event, list[int]

    def run(inputs: Sequence[Any]) -> list[Any]:
        running.append(1)
        go.wait(100)
        return [inputs[0]]

    async def scenario(batcher: Batcher) -> None:
        tasks = [asyncio.create_task(batcher.submit([np.zeros((1, 1))]))]
        while not running:
            await asyncio.sleep(0.01)
        tasks += [asyncio.create_task(batcher.submit([np.zeros((1, 1))])) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(Full):
            await batcher.submit([np.zeros((2, 1))])
        go.set()
        await asyncio.gather(*tasks)

    batcher = Batcher(Engine(run), most=1, waiting=2)
    asyncio.run(scenario(batcher))
    batcher.close()
    with pytest.raises(Full):
        asyncio.run(batcher.submit([np.zeros((1, 1))]))


def test_an_engine_that_loses_rows_is_an_error() -> None:
    async def scenario(batcher: Batcher) -> list[Any]:
        tasks = [batcher.submit([np.full((2, 1), float(n))]) for n in range(4)]
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    calls: list[int] = []

    def run(inputs: Sequence[Any]) -> list[Any]:
        calls.append(len(inputs[0]))
        return [inputs[0][:2]]

    batcher = Batcher(Engine(run), most=8)
    try:
        found = asyncio.run(scenario(batcher))
    finally:
        batcher.close()
    for number, each in enumerate(found):
        assert np.array_equal(each[0], np.full((2, 1), float(number))), "alone each is answered rightly"


def test_what_is_not_a_number_is_told_to_whom_it_belongs_alone() -> None:
    go = threading.Event()

    def run(inputs: Sequence[Any]) -> list[Any]:
        go.wait(100)
        return [np.where(inputs[0] == 3, np.nan, inputs[0])]

    async def scenario(batcher: Batcher) -> list[Any]:
        tasks = [asyncio.create_task(batcher.submit([np.full((1, 1), float(n))])) for n in range(8)]
        await asyncio.sleep(0.05)
        go.set()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    batcher = Batcher(Engine(run), most=8, finish=lambda outputs: outputs[0].item())
    try:
        found = asyncio.run(scenario(batcher))
    finally:
        batcher.close()
    assert isinstance(found[3], NotFinite)
    assert [each for n, each in enumerate(found) if n != 3] == [0, 1, 2, 4, 5, 6, 7]


def test_whoever_left_is_not_computed_for() -> None:
    go, seen = threading.Event(), []  # type: threading.Event, list[float]

    def run(inputs: Sequence[Any]) -> list[Any]:
        seen.extend(inputs[0].ravel().tolist())
        go.wait(100)
        return [inputs[0]]

    async def scenario(batcher: Batcher) -> None:
        tasks = [asyncio.create_task(batcher.submit([np.full((1, 1), float(n))])) for n in range(3)]
        while not seen:
            await asyncio.sleep(0.01)
        tasks[2].cancel()
        await asyncio.sleep(0.05)
        go.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    batcher = Batcher(Engine(run), most=1)
    try:
        asyncio.run(scenario(batcher))
    finally:
        batcher.close()
    assert seen == [0.0, 1.0]


def test_whoever_cannot_be_told_does_not_stop_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    def broken(settle: Any, answers: Any) -> None:
        raise ValueError("a bug in whoever is told")

    batcher = Batcher(Engine(lambda inputs: [inputs[0] * 2]), most=8)
    try:
        batcher.put([np.ones((1, 1))], lambda found: None, broken)
        found = asyncio.run(asyncio.wait_for(batcher.submit([np.full((1, 1), 3.0)]), 20))
    finally:
        batcher.close()
    assert float(found[0][0, 0]) == 6.0
    assert "a bug in whoever is told" in capfd.readouterr().err
