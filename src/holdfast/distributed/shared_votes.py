"""A vote that costs no exchange: numbers of each rank in memory that all ranks of this machine see.

    votes = SharedVotes(job, number, rank, ranks)     # a file for this rank, before the ranks of that roster meet
    votes.hand_in(0.7, 0.0, 1.0, 3.2, 7.0)            # before gradients are exchanged
    rows = votes.read(check)                          # after it: the numbers of all ranks, by rank

A rank that has the gradients of all ranks knows that all have handed in their numbers before. So `read` finds them and
does not wait. It does wait where no exchange came in between; `check` is called meanwhile and raises if a rank is gone.

    votes.elsewhere(7)                                # this rank is in its 7th exchange of another kind; 0: no more

A rank that is elsewhere for a second, while another one waits for its numbers, will never hand them in: that one takes
part in no other exchange before. `read` raises NotTogether then.

Each rank writes its own file, in two places by turns. A rank hands in turn n + 2 only after it has read turn n + 1 of
all ranks, and a rank that has handed in turn n + 1 has read turn n: so no row is overwritten before all have read it.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from holdfast.distributed.job import Job

NUMBERS = 5
"""Of each rank, in a vote."""
_ROW = struct.Struct(f"<{1 + NUMBERS}dI")
"""Turn, the numbers, and a checksum: another processor may see the parts of a row in any order."""
_PLACE = 64
_ELSEWHERE = 2 * _PLACE
_PAGE = 3 * _PLACE
"""Two rows, and where this rank is."""
_NUMBER = struct.Struct("<q")
_TOO_LONG = 10.0
"""Seconds. A rank may have marked an exchange that is over, and have lost its processor."""
_AT_ONCE = 50
"""Looks without a pause; a rank that is not there by then may have lost its processor."""
_NAP = 2e-4


def path(job: Job, number: int, rank: int) -> Path:
    return job.path / f"votes-{number}-{rank}"


class NotTogether(Exception):
    """A rank waits for numbers that another one will not hand in."""


class SharedVotes:
    """Of the ranks of one roster."""

    def __init__(self, job: Job, number: int, rank: int, ranks: int) -> None:
        self._paths = [path(job, number, each) for each in range(ranks)]
        self._turn = 0
        self._pages: list[mmap.mmap] = []
        self._paths[rank].write_bytes(bytes(_PAGE))
        self._own = _open(self._paths[rank])

    def hand_in(self, *numbers: float) -> None:
        self._turn += 1
        row = struct.pack(f"<{1 + NUMBERS}d", self._turn, *numbers)
        at = _PLACE * (self._turn % 2)
        self._own[at : at + _ROW.size] = row + struct.pack("<I", zlib.crc32(row))

    def elsewhere(self, number: int) -> None:
        self._own[_ELSEWHERE : _ELSEWHERE + _NUMBER.size] = _NUMBER.pack(number)

    def read(self, check: Callable[[], None]) -> list[tuple[float, ...]]:
        """The numbers of this turn. The files of the others are there: they were made before the ranks met."""
        if not self._pages:
            self._pages = [_open(each) for each in self._paths]
        return [self._await(page, check) for page in self._pages]

    def _await(self, page: mmap.mmap, check: Callable[[], None]) -> tuple[float, ...]:
        at, looks = _PLACE * (self._turn % 2), 0
        seen, since = 0, 0.0
        while True:
            row = page[at : at + _ROW.size]
            turn, *numbers, checksum = _ROW.unpack(row)
            if turn == self._turn and zlib.crc32(row[:-4]) == checksum:
                return tuple(numbers)
            looks += 1
            if looks > _AT_ONCE:
                check()
                (now,) = _NUMBER.unpack(page[_ELSEWHERE : _ELSEWHERE + _NUMBER.size])
                if now != seen:
                    seen, since = now, time.monotonic()
                elif now and time.monotonic() - since > _TOO_LONG:
                    raise NotTogether
                time.sleep(_NAP)

    def close(self) -> None:
        for page in [self._own, *self._pages]:
            page.close()
        self._pages = []


def _open(file: Path) -> mmap.mmap:
    fd = os.open(file, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        return mmap.mmap(fd, _PAGE)
    finally:
        os.close(fd)
