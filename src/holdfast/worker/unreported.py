"""Numbers that were logged and epochs that ended, of which nobody has heard yet: they go with the state, none is lost.

    unheard = Unheard(board)
    unheard.add({"step": 88, "epoch": 10, "values": {"valid_loss": 0.61}})      # beside sending it
    unheard.add({"step": 88, "epoch": 10, "loss": 0.58})                        # an epoch, before it is committed
    unheard.records()                                                           # in every snapshot; few as a rule

The supervisor counts on the board what it has written of this worker. If it is killed with numbers in its mailbox, or
the worker between the end of an epoch and the word about it, the snapshot that is gone on from has them, and the next
worker says them again.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from holdfast.base.board import Board
from holdfast.base.files import number, whole

_LOGGED, _ENDED = {"step", "epoch", "values"}, {"step", "epoch", "loss"}
MOST = 64
MOST_BYTES = 6 * 1024
"""Of JSON, the newest first: a supervisor hears within milliseconds, and the meta of a snapshot has room for this."""

Record = dict[str, Any]


class Unheard:
    """What one worker logged, until the supervisor has it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sent = board.heard
        """Not 0 for a second session of one process: a rank that stays writes to the board it has."""
        self._waiting: deque[Record] = deque(maxlen=MOST)

    def add(self, record: Record) -> None:
        self._sent += 1
        self._waiting.append(record)

    def records(self) -> list[Record]:
        """Those that are not written yet, oldest first."""
        waiting = self._waiting
        while len(waiting) > self._sent - self._board.heard:
            waiting.popleft()
        while len(waiting) > 1 and len(json.dumps(list(waiting))) > MOST_BYTES:
            waiting.popleft()
        return list(waiting)


def kept_in(session: Mapping[str, Any]) -> tuple[list[Record], list[Record]]:
    """What was logged and which epochs ended, by the meta of a snapshot; what is neither is passed over."""
    said = session.get("unheard")
    records = [record for record in said if _placed(record)] if isinstance(said, list) else []
    logged = [record for record in records if record.keys() == _LOGGED and isinstance(record["values"], dict)]
    return logged, [record for record in records if record.keys() == _ENDED and _is_loss(record["loss"])]


def _placed(record: object) -> bool:
    return isinstance(record, dict) and all(whole(record.get(name), -1) >= 0 for name in ("step", "epoch"))


def _is_loss(value: object) -> bool:
    return value is None or not math.isnan(number(value, math.nan))
