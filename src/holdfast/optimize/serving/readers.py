"""Threads that read requests and write answers, each with a loop and a share of the connections.

    readers = Readers([Server(…), Server(…)])
    readers.take(sock)                 # the next one's from now on
    readers.close()

Python runs in one thread at a time, but copies from a socket and sums of an array do not need it: with cores to spare,
several threads read large bodies side by side. On few cores one is as fast, and there is none of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Sequence

from holdfast.optimize.serving.http import Server

_CORES_EACH = 4
MOST = 4


def fitting(cores: int | None = None) -> int:
    """How many threads are worth it."""
    cores = cores or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()) or 1
    return max(1, min(MOST, cores // _CORES_EACH))


class _Reader:
    def __init__(self, server: Server) -> None:
        self.server, self.loop = server, asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="holdfast-reader", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.server.watch(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.server.close())
        self.loop.close()

    def take(self, sock: socket.socket) -> None:
        asyncio.run_coroutine_threadsafe(self.server.take(sock), self.loop)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)


class Readers:
    """All of them; connections go to one after the other."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._all = [_Reader(each) for each in servers]
        self._turns = itertools.cycle(self._all)

    async def accept(self, listening: socket.socket) -> None:
        """Hand out whoever comes, until it is cancelled."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError:  # no descriptor is free: some will be
                await asyncio.sleep(0.05)
                continue
            next(self._turns).take(sock)

    def close(self) -> None:
        for each in self._all:
            with contextlib.suppress(RuntimeError):
                each.close()
