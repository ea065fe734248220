"""Processes that read for the engine: what they share, what they are told, and what happens when one of them dies."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base import processes
from holdfast.optimize.bundle import Bundle, open_bundle
from holdfast.optimize.engines import Engine
from holdfast.serving import shared
from holdfast.serving.app import _front
from holdfast.serving.batching import Batcher
from holdfast.serving.books import WIDTH, Books
from holdfast.serving.http import Limits
from holdfast.serving.readers import Readers, possible, readers_for
from tests.optimize import small
from tests.optimize.serving import HEAD, TOKEN, Served, npy, serving

real = pytest.mark.skipif(not possible(), reason="this system hands no connections on")
X = np.random.default_rng(5).standard_normal((3, 6)).astype(np.float32)


# what they share ----------------------------------------------------------------------------------------------------


@pytest.mark.all
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
    return sorted(processes.children(served.child.pid))


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


@pytest.mark.all
@real
def test_they_end_with_the_process_they_read_for(made: Path) -> None:
    with serving(made, 2) as served:
        readers = pids(served)
        assert len(readers) == 2
        served.child.kill()
        eventually(lambda: not any(processes.exists(each) for each in readers), "readers are left")


@pytest.mark.all
@real
def test_one_that_is_stopped_keeps_nobody_else_waiting(made: Path) -> None:
    """More of an answer on the way to it than the system holds, and more clients than it could be handed."""
    stop: list[int] = []

    def run(inputs: Sequence[Any]) -> list[Any]:
        if inputs[0][0, 0] == 7:
            os.kill(stop[0], signal.SIGSTOP)
        return [np.zeros((len(inputs[0]), 400_000), np.float32)]

    async def scenario(port: int, readers: Readers) -> None:
        with contextlib.ExitStack() as stack:
            kept = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            while not any(each.begun for each in readers._books):
                await asyncio.sleep(0.01)
            first = readers._readers[next(at for at, each in enumerate(readers._books) if each.begun)]
            stop.append(first.child.pid)
            kept.sendall(question(np.full((3, 6), 7.0, np.float32)))
            while not first._behind:
                await asyncio.sleep(0.01)
            before = first.given
            while first.given == before:  # somebody has to find out
                stack.enter_context(await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port), 30))
            await asyncio.sleep(1.0)
            for _ in range(600):
                stack.enter_context(await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port), 30))
            other = 1 - next(number for number, each in readers._readers.items() if each is first)
            while readers._books[other].begun < readers._readers[other].given:
                await asyncio.sleep(0.01)
            for _ in range(10):
                assert (await asyncio.to_thread(ask, port, X))[0] == 200
            os.kill(first.child.pid, signal.SIGCONT)

    inside(made, run, scenario, count=2)


@pytest.mark.all
@real
def test_what_a_dead_one_had_asked_is_not_computed(made: Path) -> None:
    """The memory of its questions is another's soon."""
    busy, go, seen = threading.Event(), threading.Event(), list[float]()

    def run(inputs: Sequence[Any]) -> list[Any]:
        seen.append(float(inputs[0][0, 0]))
        busy.set()
        go.wait(100)
        return [np.zeros((len(inputs[0]), 2), np.float32)]

    async def scenario(port: int, readers: Readers) -> None:
        first = readers._readers[0]
        with contextlib.ExitStack() as stack:
            for number in (1.0, 2.0):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                sock.sendall(question(np.full((1, 6), number, np.float32)))
                if number == 1.0:
                    await asyncio.to_thread(busy.wait, 30)
            while len(first.asked) < 2:
                await asyncio.sleep(0.01)
            first.child.kill()
            while readers._readers[0] is first:
                await asyncio.sleep(0.01)
            answer = asyncio.create_task(asyncio.to_thread(ask, port, np.full((1, 6), 3.0, np.float32)))
            await asyncio.sleep(0.1)
            go.set()
            assert (await answer)[0] == 200
        assert seen == [1.0, 3.0] and not readers._readers[0].asked

    inside(made, run, scenario, count=1)


@pytest.mark.all
@real
def test_another_bundle_in_the_same_place_changes_nothing(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "bundle")
    with serving(tmp_path / "bundle", 1) as served:
        manifest = tmp_path / "bundle" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"float32"', '"float64"'))
        [first] = pids(served)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: pids(served) not in ([first], []), "nobody followed")
        status, body = served.ask("POST", "/predict", npy(X))
        assert status == 200 and np.allclose(np.load(io.BytesIO(body)), X @ small.WEIGHT, atol=1e-5)


@pytest.mark.all
@real
def test_nothing_is_imported_from_where_it_was_started(made: Path, tmp_path: Path) -> None:
    (tmp_path / "hmac.py").write_text("raise SystemExit('a file of a stranger was run')")
    words = [str(Path(sys.executable).with_name("holdfast")), "serve", str(made), "--port", "0", "--readers", "1"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        lines = [child.stdout.readline() for _ in range(2)]
        child.terminate()
        assert any("1 process reads requests" in line for line in lines), (lines, child.stderr.read())


@pytest.mark.parametrize("count", [0, pytest.param(2, marks=real)])
def test_failures_of_the_engine_are_told_the_same(made: Path, count: int) -> None:
    def run(inputs: Sequence[Any]) -> list[Any]:
        if inputs[0][0, 0] == 7:
            raise RuntimeError("seven \udcff")
        return [np.full((len(inputs[0]), 2), np.nan if inputs[0][0, 0] == 8 else 1.0, np.float32)]

    async def scenario(port: int, front: Any) -> None:
        async def told(first: float) -> tuple[int, Any]:
            return await asyncio.to_thread(ask, port, np.full((1, 6), first, np.float32))

        status, said = await told(7)
        assert (status, said["error"]) == (500, "the engine failed on this input")
        assert said["cause"].startswith("RuntimeError: seven ")
        assert await told(8) == (500, {"error": "the model answered NaN or infinity"})
        assert (await told(9))[0] == 200

    inside(made, run, scenario, count=count)


@real
def test_an_answer_that_cannot_be_written_stops_nobody(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(outputs: Any, *_: Any, **__: Any) -> Any:
        raise MemoryError("too much")

    async def scenario(port: int, readers: Readers) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.optimize.bodies.write", unable)
            status, said = await asyncio.to_thread(ask, port, X)
        assert (status, said["cause"]) == (500, "MemoryError: too much")
        assert (await asyncio.to_thread(ask, port, X))[0] == 200

    inside(made, lambda inputs: [inputs[0][:, :2]], scenario, count=1)


@pytest.mark.all
def test_more_readers_than_the_system_has_descriptors_for_is_said(made: Path) -> None:
    if not possible():
        pytest.skip("this system hands no connections on")
    script = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (36, 36))
from holdfast.cli.main import main
sys.exit(main())
"""
    words = [sys.executable, "-c", script, "serve", str(made), "--port", "0", "--readers", "12"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2 and "error: a process that reads requests does not start" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def question(array: Any) -> bytes:
    body = npy(array)
    head = f"POST /predict HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/x-npy\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


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
    made: Path, run: Callable[[Sequence[Any]], list[Any]], scenario: Callable[[int, Any], Any], count: int
) -> None:
    """Real readers, or none, for an engine in this process."""
    batcher = Batcher(Engine(run), most=8)

    async def main() -> None:
        front, _ = _front(open_bundle(made), batcher, TOKEN, Limits(), count, lambda text: None)
        listening = socket.create_server(("127.0.0.1", 0))
        await front.start(listening)
        try:
            await asyncio.wait_for(scenario(listening.getsockname()[1], front), 90)
        finally:
            await front.close()
            listening.close()

    try:
        asyncio.run(main())
    finally:
        batcher.close()
