"""How a worker rests when its supervisor asks for it: between two steps, where its state is committed.

    resting = Resting(board)
    resting.at_boundary()        # returns at once, or after a share of the last step's time, or when a pause ends

The supervisor asks because a limit was passed (limits.py). A rest is full of beats: it is no hang. A wish to stop
ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.base.board import Board, Phase

PAUSE = 1000
"""Thousandths of the time from which on nothing is done at all."""
NAP = 0.05
"""Seconds between two looks at the board."""
LONGEST = 30.0
"""Seconds of rest after one step, however long it took."""


class Resting:
    """What one worker knows about its last step."""

    def __init__(self, board: Board, sleep: Callable[[float], None] = time.sleep) -> None:
        self._board = board
        self._sleep = sleep
        self._woke = time.monotonic()

    def at_boundary(self) -> None:
        """Called at every commit: without a wish to rest it costs one read of the board and of the clock."""
        now = time.monotonic()
        if self._board.rest:
            worked, before = now - self._woke, self._board.phase
            self._board.enter(Phase.REST)
            self._rest(now, worked)
            self._board.enter(before)
            now = time.monotonic()
        self._woke = now

    def _rest(self, began: float, worked: float) -> None:
        while (share := self._board.rest) and not self._board.stop_requested:
            if share < PAUSE and time.monotonic() - began >= min(LONGEST, worked * share / (PAUSE - share)):
                return
            self._sleep(NAP if share >= PAUSE else min(NAP, worked * share / (PAUSE - share)))
            self._board.beat()
