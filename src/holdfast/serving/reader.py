"""A process that reads requests, checks them and writes answers, for an engine in another process (see readers.py).

Its arguments are descriptors: a channel, frames, memory. It has HTTP, the checks and the forms of bodies; connections
are handed to it. It ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.channel import Channel, Closed
from holdfast.optimize.bundle import Bundle
from holdfast.serving import shared
from holdfast.serving.app import App, Written
from holdfast.serving.batching import Done, EngineFailed, Full, NotFinite, Tell
from holdfast.serving.books import WIDTH, Books
from holdfast.serving.http import BURST, Limits

SETUP_S = 60.0


class Far(asyncio.Protocol):
    """The batcher of another process."""

    def __init__(self, bundle: Bundle, memory: mmap.mmap, arena: shared.Arena, lost: Callable[[], None]) -> None:
        self._memory, self._arena, self._lost = memory, arena, lost
        self._layout = shared.Layout(bundle.inputs)
        self._frames = shared.Frames()
        self._transport: Any = None
        self._next = 0
        self._asked: dict[int, tuple[Done, int, int]] = {}
        self._wondering: dict[int, Callable[[dict[str, float]], None]] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()

    def put(self, inputs: list[Any], done: Done, tell: Tell) -> Asked:
        rows = len(inputs[0])
        size = self._layout.bytes(rows)
        at = self._arena.take(size)
        if at is None:
            raise Full
        for view, each in zip(self._layout.views(self._memory, at, rows), inputs, strict=True):
            view[...] = each
        number = self._number()
        asked = Asked(done)
        self._asked[number] = asked.told, at, size
        self._transport.write(shared.frame(shared.QUESTION, number, shared.WHERE.pack(at, rows)))
        return asked

    def ask_numbers(self, done: Callable[[dict[str, float]], None]) -> None:
        number = self._number()
        self._wondering[number] = done
        self._transport.write(shared.frame(shared.NUMBERS, number))

    def _number(self) -> int:
        self._next = (self._next + 1) % (1 << 32)
        return self._next

    def data_received(self, data: bytes) -> None:
        for kind, number, payload in self._frames.feed(data):
            if kind == shared.NUMBERS:
                self._wondering.pop(number)(json.loads(payload))
                continue
            done, at, size = self._asked.pop(number)
            self._arena.give(at, size)
            done(_found(kind, payload))


class Asked:
    """A question under way. A client that leaves is computed for all the same, but not told."""

    def __init__(self, done: Done) -> None:
        self._done: Done | None = done

    def drop(self) -> None:
        self._done = None

    def told(self, found: Any) -> None:
        if self._done is not None:
            self._done(found)


def _found(kind: int, payload: bytes) -> Any:
    if kind == shared.ANSWER:
        return Written(payload)
    if kind == shared.NOT_FINITE:
        return NotFinite()
    return Full() if kind == shared.FULL else EngineFailed(payload.decode())


async def read(channel: Channel, frames: socket.socket, memory: mmap.mmap, setup: dict[str, Any]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    number, count, size = int(setup["number"]), int(setup["count"]), int(setup["arena"])
    bundle = Bundle(Path(setup["folder"]), setup["manifest"])  # as the parent checked it, whatever lies there now
    everyone = [Books(row) for row in np.frombuffer(memory, np.float64, count * WIDTH).reshape(count, WIDTH)]
    far = Far(bundle, memory, shared.Arena(int(setup["begin"]), size), stop.set)
    await loop.create_connection(lambda: far, sock=frames)
    limits = Limits(**setup["limits"])
    app = App(bundle, setup["token"], limits, far, books=everyone[number], everyone=everyone)

    def handed() -> None:
        """Connections that the parent accepted."""
        try:
            for _ in range(BURST):  # then those that came get their turn, and the limit on them is kept
                for fd in channel.receive(0)[1]:
                    app.server.take(socket.socket(fileno=fd))
        except BlockingIOError:
            pass
        except Closed:
            loop.remove_reader(channel.fileno())
            stop.set()

    await app.server.start()
    loop.add_reader(channel.fileno(), handed)
    loop.call_soon(handed)  # what came together with the setup is read already
    channel.send({"ready": os.getpid()})
    await stop.wait()
    await app.server.close()


def main() -> int:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # meant for the parent, whose end is ours
    channel, frames, memory = (int(each) for each in sys.argv[1:4])
    talk = Channel.from_fd(channel)
    with contextlib.suppress(Closed):  # the parent ended before we began
        setup, _ = talk.receive(SETUP_S)
        asyncio.run(read(talk, socket.socket(fileno=frames), mmap.mmap(memory, 0), setup))
    return 0
