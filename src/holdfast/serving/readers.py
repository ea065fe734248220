"""Processes that read for the engine: one interpreter cannot read large inputs as fast as a GPU answers them.

    readers = Readers(bundle, batcher, token, limits, count=4, say=print)
    await readers.start(listening)
    await readers.close()

    client -- HTTP --> reader 0..n -- inputs in shared memory --> this process: batcher, engine
                          <---------- answers in frames ---------

This process accepts, hands each connection to the reader that has the fewest, and computes. A reader that dies takes
its connections with it; another one follows. One that is stuck keeps its own clients waiting and nobody else's: neither
the engine nor the next client waits for it. Everything that HTTP needs is in the readers (reader.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from holdfast.base import interpreter, processes
from holdfast.base.channel import Channel
from holdfast.base.errors import UserError
from holdfast.optimize import bodies
from holdfast.optimize.bundle import Bundle
from holdfast.serving import shared
from holdfast.serving.batching import Batcher, Full, NotFinite, Waiting, in_words
from holdfast.serving.books import WIDTH, Books
from holdfast.serving.http import Limits

LARGE = 128 << 10
"""Bytes of an input from which on reading is what takes the time."""
CORES = 8
"""With fewer of them, readers would take the engine's."""
MOST = 4
START_S = 60.0
STUCK_S = 0.25
_PAGE = 1 << 16
_RUN = "import sys; sys.path[:] = {path!r}; from holdfast.serving.reader import main; sys.exit(main())"
"""Not `-m`, which would import from the folder the server was started in."""


def possible() -> bool:
    """Whether this system can share memory and hand on connections as it is done here."""
    return not processes.portable() and hasattr(os, "memfd_create") and hasattr(socket, "send_fds")


def _memory_fd() -> int:
    if sys.platform != "linux":
        raise NotImplementedError("this needs Linux")
    return os.memfd_create("holdfast-serve")


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
        self._taken, self._since = 0, time.monotonic()
        self.asked: dict[int, Waiting] = {}
        """Its questions that are under way."""
        self._waiting: list[bytes] = []
        self._behind = b""
        self._changed = threading.Condition()
        self._over = False
        threading.Thread(target=self._send_rest, name="holdfast-answers", daemon=True).start()

    def stuck(self, taken: int, now: float) -> bool:
        """Whether it has not taken any of what it was handed for a while."""
        if taken != self._taken or taken >= self.given:
            self._taken, self._since = taken, now
        return now - self._since > STUCK_S

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
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
        with self._changed:
            self._waiting.append(shared.frame(kind, number, payload))

    def flush(self) -> None:
        """What it does not take at once is sent by a thread of its own: the engine waits for nobody."""
        with self._changed:
            data, self._waiting = b"".join(self._waiting), []
            if not self._behind:
                with contextlib.suppress(OSError):  # it is full, or gone, which whoever listens to it notices
                    data = data[self._sock.send(data, getattr(socket, "MSG_DONTWAIT", 0)) :]
            self._behind += data
            if self._behind:
                self._changed.notify()

    def _send_rest(self) -> None:
        while True:
            with self._changed:
                while not self._behind and not self._over:
                    self._changed.wait()
                if self._over:
                    return
                data = self._behind
            with contextlib.suppress(OSError):
                self._sock.sendall(data)
            with self._changed:
                self._behind = self._behind[len(data) :]

    def end(self) -> None:
        """It is over: what it had asked is not computed any more."""
        for question in list(self.asked.values()):
            question.drop()
        with self._changed:
            self._over = True
            self._changed.notify()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # whoever waits for it in another thread returns
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
        self._bundle, self._batcher, self._tell = bundle, batcher, say
        self._layout = shared.Layout(bundle.inputs)
        self._count = count
        self._start = -(-count * WIDTH * 8 // _PAGE) * _PAGE
        self._arena = 8 * limits.body // _PAGE * _PAGE + 16 * _PAGE  # a byte may become a number of eight
        fewer = max(16, limits.connections // count)
        self._setup = {
            "folder": str(bundle.folder), "manifest": bundle.manifest, "token": token, "count": count,
            "arena": self._arena,
            "limits": {**asdict(limits), "connections": fewer, "pending": max(limits.body, limits.pending // count)},
        }  # fmt: skip
        self._fd = _memory_fd()
        os.truncate(self._fd, self._start + 2 * count * self._arena)
        self._memory = mmap.mmap(self._fd, 0)
        self._books = [Books(row) for row in np.frombuffer(self._memory, np.float64, count * WIDTH).reshape(count, -1)]
        self._readers: dict[int, Reader] = {}
        self._pieces = list(range(count))
        """Of the memory for inputs, which each of them has."""
        self._closing = False
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        begins = [asyncio.to_thread(self._begin, number) for number in range(self._count)]
        ends = await asyncio.gather(*begins, return_exceptions=True)  # who still begins needs what close() closes
        for result in ends:
            if isinstance(result, OSError):
                raise UserError("a process that reads requests does not start", cause=str(result)) from None
            if isinstance(result, BaseException):
                raise result
        for number in self._readers:
            threading.Thread(target=self._serve, args=(number,), name="holdfast-questions", daemon=True).start()
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening))

    async def close(self) -> None:
        self._closing = True
        if self._accepting is not None:
            self._accepting.cancel()
        for each in list(self._readers.values()):
            each.end()
        os.close(self._fd)

    def _begin(self, number: int) -> None:
        """Start one and wait until it is there."""
        mine, theirs = Channel.pair()
        here, there = socket.socketpair()
        fds = (theirs.fileno(), there.fileno(), self._fd)
        words = interpreter.code(_RUN.format(path=sys.path), *map(str, fds))
        self._books[number].begin()
        try:
            child = subprocess.Popen(words, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True)
        except BaseException:
            for each in (mine, here):
                each.close()
            raise
        finally:
            for each in (theirs, there):
                each.close()
        reader = Reader(child, mine, here)
        # Another piece than the one before it had: what that one asked last may still be read by the engine.
        self._pieces[number] = (self._pieces[number] + self._count) % (2 * self._count)
        try:
            mine.send({**self._setup, "number": number, "begin": self._start + self._pieces[number] * self._arena})
            mine.receive(START_S)
            mine.sock.setblocking(False)
        except OSError:
            reader.end()
            raise UserError("a process that reads requests does not start", cause="its output is above") from None
        self._readers[number] = reader
        if self._closing:
            reader.end()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError:  # no descriptors left, or the client is gone already
                await asyncio.sleep(0.05)
                continue
            with sock:
                while not self._hand_on(sock):  # until there is a reader again
                    await asyncio.sleep(0.02)

    def _hand_on(self, sock: socket.socket) -> bool:
        """To the one with the fewest that is not stuck; to the next if it is dead."""
        now = time.monotonic()

        def order(number: int) -> tuple[bool, int]:
            reader, books = self._readers[number], self._books[number]
            return reader.stuck(books.begun, now), reader.given - books.ended

        for number in sorted(self._readers, key=order):
            with contextlib.suppress(OSError):
                self._readers[number].channel.send({}, fds=[sock.fileno()])
                self._readers[number].given += 1
                return True
        return False

    def _serve(self, number: int) -> None:
        """In a thread for each: its questions, until this process ends."""
        while not self._closing:
            reader = self._readers[number]
            for kind, asked, payload in reader.frames():
                if kind == shared.NUMBERS:
                    reader.add(shared.NUMBERS, asked, json.dumps(self._batcher.numbers()).encode())
                    reader.flush()
                else:
                    self._question(reader, asked, payload)
            reader.end()
            while not self._closing:
                self._say(f"a process that reads requests ended ({reader.child.returncode}); another one begins")
                try:
                    self._begin(number)
                    break
                except (UserError, OSError):
                    time.sleep(1.0)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            self._tell(text)

    def _question(self, reader: Reader, number: int, payload: bytes) -> None:
        inputs = self._layout.views(self._memory, *shared.WHERE.unpack(payload))

        answered = False

        def done(found: Any) -> None:
            nonlocal answered
            answered = True
            reader.asked.pop(number, None)
            reader.add(*self._framed(number, found))

        try:
            reader.asked[number] = self._batcher.put(inputs, done, reader.tell)
            if answered:  # before it was noted
                reader.asked.pop(number, None)
        except Full as full:
            done(full)
            reader.flush()

    def _framed(self, number: int, found: Any) -> tuple[int, int, bytes]:
        if isinstance(found, NotFinite):
            return shared.NOT_FINITE, number, b""
        if isinstance(found, Full):
            return shared.FULL, number, b""
        if not isinstance(found, Exception):
            try:
                return shared.ANSWER, number, self._written(found)
            except Exception as error:  # told to whom it belongs, like a failure of the engine
                found = error
        return shared.FAILED, number, in_words(found).encode("utf-8", "replace")

    def _written(self, outputs: Any) -> bytes:
        names = [each["name"] for each in self._bundle.manifest["outputs"]]
        return bodies.write(outputs, names, bodies.NPY, rows=self._bundle.manifest.get("post") is not None)[0]
