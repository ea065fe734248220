"""Memory for the bodies of requests, kept and lent again.

bodies = Bodies()
body = bodies.take(1 << 20)            # a bytearray of that length, which holds anything
bodies.give(body)
"""

from __future__ import annotations

READ = 64 << 10
"""Bytes that are read at once while it is not known how long a request is."""
KEPT = 32 << 20
"""Bytes of memory for bodies that are kept: fresh memory costs a large body more than reading it."""


class Bodies:
    """Memory for large bodies, used again by the next one of its length."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = self._left = most
        self._free: dict[int, list[bytearray]] = {}

    def kept(self, length: int) -> bool:
        return bool(self._free.get(length))

    def take(self, length: int) -> bytearray:
        """Holds anything; whoever takes it fills all of it."""
        free = self._free.get(length)
        if not free:
            return bytearray(length)
        self._left += length
        return free.pop()

    def give(self, body: bytearray) -> None:
        """Nobody reads it any more."""
        if not READ <= len(body) <= self._most:
            return
        if len(body) > self._left:  # of lengths that nobody asks for any more
            self._free, self._left = {}, self._most
        self._left -= len(body)
        self._free.setdefault(len(body), []).append(body)
