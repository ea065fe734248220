"""Processes that read for the engine: one interpreter cannot read large inputs as fast as a GPU answers them.

    readers = Readers(bundle, batcher, token, limits, count=4, say=print)
    await readers.start(listening)
    await readers.close()

    client -- HTTP --> reader 0..n -- inputs in shared memory --> this process: batcher, engine
                          <---------- answers in frames ---------

This process accepts, hands each connection to the reader that has the fewest, and computes. A reader that dies takes
its connections with it; another one follows. Everything that HTTP needs is in the readers (reader.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from holdfast.errors import UserError
from holdfast.optimize.bundle import Bundle
from holdfast.optimize.serving import bodies, shared
from holdfast.optimize.serving.batching import Batcher, Full, NotFinite
from holdfast.optimize.serving.books import WIDTH, Books
from holdfast.optimize.serving.http import Limits
from holdfast.runtime import process
from holdfast.runtime.channel import Channel, Closed

LARGE = 128 << 10
"""Bytes of an input from which on reading is what takes the time."""
CORES = 8
"""With fewer of them, readers would take the engine's."""
MOST = 4
PATIENCE_S = 5.0
"""A reader that does not take its answers for so long is given up, as the engine waits for it."""
_PAGE = 1 << 16


def possible() -> bool:
    """Whether this system can share memory and hand on connections as it is done here."""
    return not process.portable() and hasattr(os, "memfd_create") and hasattr(socket, "send_fds")


def readers_for(bundle: Bundle, cores: int) -> int:
    """How many are worth it."""
    if not possible() or cores < CORES or shared.Layout(bundle.inputs).bytes(1) < LARGE:
        return 0
    return min(MOST, cores // 4)


class Reader:
    """One of them, seen from here."""

    def __init__(self, child: subprocess.Popen[bytes], channel: Channel, sock: socket.socket) -> None:
        self.child, self.channel, self._sock = child, channel, sock
        self.given = 0
        """Connections that it has been handed."""
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(PATIENCE_S), 0))

    def frames(self) -> Any:
        """What it says, until it ends."""
        found = shared.Frames()
        with contextlib.suppress(OSError):
            while data := self._sock.recv(1 << 16):
                yield from found.feed(data)

    def tell(self, settle: Callable[[Any], None], answers: Any) -> None:
        """All of its answers of a batch, in one piece."""
        settle(answers)
        self.flush()

    def add(self, kind: int, number: int, payload: bytes = b"") -> None:
        with self._lock:
            self._waiting.append(shared.frame(kind, number, payload))

    def flush(self) -> None:
        with self._lock:
            data, self._waiting = b"".join(self._waiting), []
            try:
                self._sock.sendall(data)
            except OSError:  # it is gone, or stuck: whoever listens to it notices
                self.child.kill()

    def end(self) -> None:
        for each in (self.channel, self._sock):
            with contextlib.suppress(OSError):
                each.close()
        try:
            self.child.wait(2.0)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


class Readers:
    """All of them, and what they share."""

    def __init__(
        self, bundle: Bundle, batcher: Batcher, token: str, limits: Limits, *, count: int, say: Callable[[str], None]
    ) -> None:
        if not possible():
            raise UserError("this system has no way to hand connections to other processes", hints=["--readers 0"])
        self._bundle, self._batcher, self._say = bundle, batcher, say
        self._layout = shared.Layout(bundle.inputs)
        begin = -(-count * WIDTH * 8 // _PAGE) * _PAGE
        arena = 4 * limits.body // _PAGE * _PAGE + 16 * _PAGE  # a number has two bytes in JSON, eight here
        fewer = max(16, limits.connections // count)
        self._setup = {
            "folder": str(bundle.folder), "token": token, "count": count, "begin": begin, "arena": arena,
            "limits": {**asdict(limits), "connections": fewer, "pending": max(limits.body, limits.pending // count)},
        }  # fmt: skip
        self._fd = os.memfd_create("holdfast-serve")
        os.truncate(self._fd, begin + count * arena)
        self._memory = mmap.mmap(self._fd, 0)
        self._books = [Books(row) for row in np.frombuffer(self._memory, np.float64, count * WIDTH).reshape(count, -1)]
        self._readers: list[Reader] = []
        self._closing = False
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        self._readers = [self._begin(number) for number in range(len(self._books))]
        for number in range(len(self._readers)):
            self._ready(number)
            threading.Thread(target=self._serve, args=(number,), daemon=True).start()
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening))

    async def close(self) -> None:
        self._closing = True
        if self._accepting is not None:
            self._accepting.cancel()
        for each in self._readers:
            each.end()

    def _begin(self, number: int) -> Reader:
        mine, theirs = Channel.pair()
        here, there = socket.socketpair()
        fds = (theirs.fileno(), there.fileno(), self._fd)
        words = [sys.executable, "-m", "holdfast.optimize.serving.reader", *map(str, fds)]
        try:
            child = subprocess.Popen(words, pass_fds=fds, stdin=subprocess.DEVNULL)
        finally:
            theirs.close()
            there.close()
        mine.send({**self._setup, "number": number})
        return Reader(child, mine, here)

    def _ready(self, number: int) -> None:
        reader = self._readers[number]
        try:
            reader.channel.receive(60.0)
        except (Closed, OSError):
            reader.end()
            raise UserError("a process that reads requests does not start", cause="its own words are above") from None

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError:  # no descriptors left, or the client is gone already
                await asyncio.sleep(0.05)
                continue
            with sock:
                self._hand_on(sock)

    def _hand_on(self, sock: socket.socket) -> None:
        """To the one with the fewest; to the next if that one is dead."""
        pairs = zip(self._readers, self._books, strict=True)
        for each, _ in sorted(pairs, key=lambda pair: pair[0].given - pair[1].ended):
            with contextlib.suppress(Closed, OSError):
                each.channel.send({}, fds=[sock.fileno()])
                each.given += 1
                return

    def _serve(self, number: int) -> None:
        """In a thread for each: its questions, until this process ends."""
        while True:
            reader = self._readers[number]
            for kind, asked, payload in reader.frames():
                if kind == shared.NUMBERS:
                    reader.add(shared.NUMBERS, asked, json.dumps(self._batcher.numbers()).encode())
                    reader.flush()
                else:
                    self._question(reader, asked, payload)
            if self._closing:
                return
            reader.end()
            self._say(f"a process that reads requests ended ({reader.child.returncode}); another one begins")
            self._replace(number)

    def _replace(self, number: int) -> None:
        while not self._closing:
            try:
                self._readers[number] = self._begin(number)
                self._ready(number)
                return
            except (UserError, OSError) as error:
                self._say(f"{error}; it is tried again")
                time.sleep(1.0)

    def _question(self, reader: Reader, number: int, payload: bytes) -> None:
        inputs = self._layout.views(self._memory, *shared.WHERE.unpack(payload))

        def done(found: Any) -> None:
            if isinstance(found, NotFinite):
                reader.add(shared.NOT_FINITE, number)
            elif isinstance(found, Full):
                reader.add(shared.FULL, number)
            elif isinstance(found, Exception):
                reader.add(shared.FAILED, number, f"{type(found).__name__}: {str(found)[:200]}".encode())
            else:
                reader.add(shared.ANSWER, number, self._written(found))

        try:
            self._batcher.put(inputs, done, reader.tell)
        except Full as full:
            done(full)
            reader.flush()

    def _written(self, outputs: Any) -> bytes:
        names = [each["name"] for each in self._bundle.manifest["outputs"]]
        return bodies.write(outputs, names, bodies.NPY, rows=self._bundle.manifest.get("post") is not None)[0]
