"""How many clients the page has at once, and how long one may keep a connection without using it.

    clients = Clients(Limits(connections=156))
    uvicorn.Config(app, http=clients.protocol(), backlog=BURST)
    clients.look_after(loop)                    # until clients.close()

Anybody on the machine can connect, with a token or without. A connection that asks nothing, or does not read what it
asked for, is closed after a while, and at once where a new one needs its place: the one that was silent longest first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from holdfast.run.machine import descriptors

BURST = 8
"""Connections that are accepted in one turn of the loop; some turns pass before the limit on them sees them."""
SPARE = 100
"""Descriptors for what is not a client: the files of runs, those of Python, and a burst."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many, and how long."""

    connections: int = 256
    silent_s: float = 10.0
    """From the first moment of a connection, or its last answer, to the end of a request's head."""
    unread_s: float = 60.0
    """In which a client takes what it asked for, or some more of it."""

    @classmethod
    def here(cls) -> Limits:
        """As many as there are descriptors for."""
        return cls(connections=max(8, min(512, descriptors(1024) - SPARE)))


class Clients:
    """All connections of the page."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._all: dict[Any, float] = {}
        """Since when each has been idle, as far as is known."""
        self._sweeping: asyncio.TimerHandle | None = None

    def protocol(self) -> Any:
        """uvicorn's own, which tells us of its connections."""
        clients = self

        class Client(AutoHTTPProtocol):  # type: ignore[misc,valid-type,unused-ignore]
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                clients.admit(self)

            def connection_lost(self, exc: Exception | None) -> None:
                clients.forget(self)
                super().connection_lost(exc)

        return Client

    def admit(self, client: Any) -> None:
        """A new one; where there are too many, one that is idle goes, or else the new one itself."""
        self._look(client.loop.time())
        if len(self._all) >= self.limits.connections:
            idle = [each for each in self._all if _idle(each)]
            oldest = min(idle, key=self._all.__getitem__, default=client)
            self._end(oldest)
            if oldest is client:
                return
        self._all[client] = client.loop.time()

    def forget(self, client: Any) -> None:
        self._all.pop(client, None)

    def look_after(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been idle for too long: looked at now and then."""
        now = loop.time()
        self._look(now)
        for client, since in list(self._all.items()):
            limit = self.limits.unread_s if _unread(client) else self.limits.silent_s
            if now - since > limit:
                self._end(client)
        self._sweeping = loop.call_later(min(1.0, self.limits.silent_s / 4), self.look_after, loop)

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _look(self, now: float) -> None:
        for client in self._all:
            if not _idle(client):
                self._all[client] = now

    def _end(self, client: Any) -> None:
        self.forget(client)
        client.transport.abort()


def _unread(client: Any) -> bool:
    """Whether there is more to read for it than it takes."""
    return bool(client.flow.write_paused) or bool(client.transport.get_write_buffer_size())


def _idle(client: Any) -> bool:
    """Whether nothing is being done for it, or nothing can be because it does not read."""
    return client.cycle is None or bool(client.cycle.response_complete) or bool(client.flow.write_paused)
