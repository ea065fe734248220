"""Numbers that were logged and that nobody has written yet: they go with the state, so none is lost.

    unheard = Unheard(board)
    unheard.add({"step": 88, "epoch": 10, "values": {"valid_loss": 0.61}})      # beside sending it
    unheard.records()                                                           # in every snapshot; empty as a rule

The supervisor counts on the board what it has written of this worker. If it is killed with numbers in its mailbox, the
snapshot that is resumed from has them, and the next worker says them again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.runtime.board import Board

_KEYS = {"step", "epoch", "values"}
MOST = 64
MOST_BYTES = 6 * 1024
"""Of JSON, the newest first: a supervisor hears within milliseconds, and the meta of a snapshot has room for this."""


class Unheard:
    """What one worker logged, until the supervisor has it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sent = 0
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MOST)

    def add(self, record: dict[str, Any]) -> None:
        self._sent += 1
        self._waiting.append(record)

    def records(self) -> list[dict[str, Any]]:
        """Those that are not written yet, oldest first."""
        waiting = self._waiting
        while len(waiting) > self._sent - self._board.heard:
            waiting.popleft()
        while len(waiting) > 1 and len(json.dumps(list(waiting))) > MOST_BYTES:
            waiting.popleft()
        return list(waiting)


def kept_in(session: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The records in the meta of a snapshot; what is none is passed over."""
    said = session.get("unheard")
    for record in said if isinstance(said, list) else []:
        if isinstance(record, dict) and record.keys() == _KEYS and isinstance(record["values"], dict):
            yield record
