"""Processes that read for the engine: what they share, what they are told, and what happens when one of them dies."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.optimize.bundle import Bundle, open_bundle
from holdfast.optimize.engines import Engine
from holdfast.optimize.serving import shared
from holdfast.optimize.serving.batching import Batcher
from holdfast.optimize.serving.books import WIDTH, Books
from holdfast.optimize.serving.http import Limits
from holdfast.optimize.serving.readers import Readers, possible, readers_for
from holdfast.runtime import process
from tests.optimize import small
from tests.optimize.serving import HEAD, TOKEN, Served, npy, serving

real = pytest.mark.skipif(not possible(), reason="this system hands no connections on")
X = np.random.default_rng(5).standard_normal((3, 6)).astype(np.float32)


# what they share ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60), st.randoms(use_true_random=False))
def test_lent_pieces_never_overlap_and_become_one_again(steps: list[tuple[bool, int]], chance: Any) -> None:
    arena, held = shared.Arena(1000, 256), list[tuple[int, int]]()
    for take, size in steps:
        if take or not held:
            at = arena.take(size)
            if at is None:
                assert sum(long for _, long in held) + size > 256 or len(held) > 1, "there was room"
                continue
            assert at >= 1000 and at + size <= 1256
            assert all(at + size <= other or other + long <= at for other, long in held)
            held.append((at, size))
        else:
            arena.give(*held.pop(chance.randrange(len(held))))
    for each in held:
        arena.give(*each)
    assert arena.take(256) == 1000


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**32 - 1), st.binary(max_size=50))), st.integers(1, 30))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(sent: list[tuple[int, int, bytes]], piece: int) -> None:
    data = b"".join(shared.frame(*each) for each in sent)
    frames = shared.Frames()
    found = [each for at in range(0, len(data), piece) for each in frames.feed(data[at : at + piece])]
    assert found == sent


def test_inputs_of_several_kinds_lie_beside_each_other() -> None:
    layout = shared.Layout(
        [{"shape": [3], "dtype": "float32"}, {"shape": [2, 2], "dtype": "int64"}, {"shape": [], "dtype": "uint8"}]
    )
    memory = bytearray(64 + layout.bytes(5))
    for number, view in enumerate(layout.views(memory, 64, 5)):
        view[...] = number + 1
    again = layout.views(memory, 64, 5)
    assert [each.shape for each in again] == [(5, 3), (5, 2, 2), (5,)]
    assert [each.dtype.name for each in again] == ["float32", "int64", "uint8"]
    assert [set(each.ravel().tolist()) for each in again] == [{1.0}, {2}, {3}]


def test_the_books_of_all_are_added_up() -> None:
    mine, other = Books(np.zeros(WIDTH)), Books(np.zeros(WIDTH))
    for _ in range(3):
        mine.answered(200, 0.5)
        mine.opened()
    mine.closed()
    other.answered(200, 1.5)
    other.answered(503)
    other.opened()
    other.turned_away()
    told = "\n".join(Books.told([mine, other]))
    assert 'requests_total{status="200"} 4' in told and 'requests_total{status="503"} 1' in told
    assert 'status="401"' not in told
    assert 'quantile="0.5"} 0.500000' in told and 'quantile="0.99"} 1.' in told
    assert "\nholdfast_serve_connections 3\n" in told and told.endswith("connections_turned_away_total 1")
    other.begin()
    assert "\nholdfast_serve_connections 2\n" in "\n".join(Books.told([mine, other]))


def test_they_are_for_large_inputs_and_many_cores(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = open_bundle(made)
    window = {"name": "x", "shape": [129, 1000], "dtype": "float32"}
    many = Bundle(made, {**few.manifest, "inputs": [window]})
    assert readers_for(few, 64) == 0
    if possible():
        assert [readers_for(many, cores) for cores in (2, 4, 8, 16, 64)] == [0, 0, 2, 4, 4]
    monkeypatch.setenv("HOLDFAST_PORTABLE", "1")
    assert readers_for(many, 64) == 0


# real ones ----------------------------------------------------------------------------------------------------------


def eventually(what: Callable[[], bool], said: str) -> None:
    until = time.monotonic() + 30
    while not what():
        assert time.monotonic() < until, said
        time.sleep(0.02)


def pids(served: Served) -> list[int]:
    return sorted(process.children(served.child.pid))


@real
def test_one_that_is_killed_is_followed_by_another_and_the_others_go_on(made: Path) -> None:
    with serving(made, 2) as served:
        first, second = pids(served)
        kept = [http.client.HTTPConnection("127.0.0.1", served.port, timeout=60) for _ in range(2)]
        for each in kept:  # one to each
            each.request("POST", "/predict", npy(X), HEAD)
            each.getresponse().read()
        os.kill(first, signal.SIGKILL)
        eventually(lambda: len(pids(served)) == 2 and first not in pids(served), "nobody followed")
        assert second in pids(served)
        found = 0
        for each in kept:
            with contextlib.suppress(OSError, http.client.HTTPException):
                each.request("POST", "/predict", npy(X), HEAD)
                found += np.allclose(np.load(io.BytesIO(each.getresponse().read())), X @ small.WEIGHT, atol=1e-5)
        assert found == 1, "one connection was the dead one's, the other one was not"
        for _ in range(6):
            assert served.ask("POST", "/predict", npy(X))[0] == 200
        text = served.ask("GET", "/metrics")[1].decode()
        assert 'requests_total{status="200"} 9' in text, "what the dead one had counted is not lost"
        assert "inputs_total 27" in text
    assert "a process that reads requests ended (-9); another one begins" in served.said
    assert "inputs answered" in served.said and served.child.returncode == 0


@real
def test_they_end_with_the_process_they_read_for(made: Path) -> None:
    with serving(made, 2) as served:
        readers = pids(served)
        assert len(readers) == 2
        served.child.kill()
        eventually(lambda: not any(process.exists(each) for each in readers), "readers are left")


@real
def test_one_that_takes_no_answers_is_given_up(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, with more answers on the way than the system holds for it: the engine must not wait for ever."""
    monkeypatch.setattr("holdfast.optimize.serving.readers.PATIENCE_S", 1.0)
    stuck: list[int] = []

    def run(inputs: Sequence[Any]) -> list[Any]:
        if len(stuck) == 1:
            os.kill(stuck[0], signal.SIGSTOP)
            stuck.append(0)
        return [np.zeros((len(inputs[0]), 400_000), np.float32)]

    async def scenario(port: int, readers: Readers) -> None:
        loop = asyncio.get_running_loop()
        stuck.append(readers._readers[0].child.pid)
        with pytest.raises((OSError, http.client.HTTPException)):
            await loop.run_in_executor(None, ask, port, X)
        for _ in range(100):  # the next one may be asked before it is there
            with contextlib.suppress(OSError, http.client.HTTPException):
                assert (await loop.run_in_executor(None, ask, port, X))[0] == 200
                return
            await asyncio.sleep(0.1)
        pytest.fail("nobody followed")

    inside(made, run, scenario, count=1)


@real
def test_failures_of_the_engine_are_told_as_without_readers(made: Path) -> None:
    def run(inputs: Sequence[Any]) -> list[Any]:
        if inputs[0][0, 0] == 7:
            raise RuntimeError("seven")
        return [np.full((len(inputs[0]), 2), np.nan if inputs[0][0, 0] == 8 else 1.0, np.float32)]

    async def scenario(port: int, readers: Readers) -> None:
        loop = asyncio.get_running_loop()

        async def told(first: float) -> tuple[int, Any]:
            return await loop.run_in_executor(None, ask, port, np.full((1, 6), first, np.float32))

        assert await told(7) == (
            500, {"error": "the engine failed on this input", "cause": "EngineFailed: RuntimeError: seven"}
        )  # fmt: skip
        assert await told(8) == (500, {"error": "the model answered NaN or infinity"})
        assert (await told(9))[0] == 200
        readers._batcher.close()
        assert (await told(9))[0] == 503

    inside(made, run, scenario, count=2)


def ask(port: int, array: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/predict", npy(array), HEAD)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if answer.status != 200 else body
    finally:
        connection.close()


def inside(
    made: Path, run: Callable[[Sequence[Any]], list[Any]], scenario: Callable[[int, Readers], Any], count: int
) -> None:
    """Real readers for an engine in this process."""
    batcher = Batcher(Engine(run), most=8)
    said: list[str] = []

    async def main() -> None:
        readers = Readers(open_bundle(made), batcher, TOKEN, Limits(), count=count, say=said.append)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            await readers.start(listening)
            try:
                await scenario(listening.getsockname()[1], readers)
            finally:
                await readers.close()

    try:
        asyncio.run(main())
    finally:
        batcher.close()
