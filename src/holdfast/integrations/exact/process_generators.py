"""The random numbers of loader processes that live over epochs (`persistent_workers=True`).

    room = Room(workers=2, state_of=...)       # before the processes are forked
    room.states(passes)                        # what each process's generators were as that epoch began there
    room.order(states)                         # as the next epoch begins, each process takes these instead

Such a process draws on from epoch to epoch, and only it knows how far it is. It writes its generators to memory that it
shares with the script's process whenever an epoch begins. A dataset that is changed by reading it is found out there
too: its state lives in that process alone and cannot be put back.
"""

from __future__ import annotations

import mmap
import multiprocessing
import struct
import time
from collections.abc import Callable
from typing import Any

import torch

from holdfast.state.torch_private import fetcher_factory

_HEAD = struct.Struct("<III")
"""Whether the process is to take what is there, what became of its dataset, and the length of its generators."""
_PASSES = struct.Struct("<I")
"""Epochs that the process has begun. Written last: what stands before it holds for that epoch."""
SAME, CHANGED, UNKNOWN = range(3)
_ROOM = 64 << 10
_PATIENCE = 60.0
"""Seconds that a process has for noting how its generators are. It does so before it reads its first sample."""

_newest: Room | None = None
"""The room of the loader processes that are forked next."""
_watching = False


class Room:
    """One place for each process of one iterator."""

    def __init__(self, workers: int, state_of: Callable[[Any], str]) -> None:
        self._workers = workers
        self._state_of = state_of
        self._memory = mmap.mmap(-1, workers * _ROOM)
        self._first: str | None = None

    # -- in the loader process -------------------------------------------------------------------------------

    def begins(self, number: int, state: str, set_state: Callable[[str], None], parts: Any) -> None:
        """An epoch begins in process `number`: its generators are noted, or set to what was ordered."""
        at = number * _ROOM
        passes = self._passes(at)
        ordered, _, length = _HEAD.unpack_from(self._memory, at + _PASSES.size)
        if ordered:
            set_state(self._text(at, length))
        else:
            length = self._put(at, state)
        _HEAD.pack_into(self._memory, at + _PASSES.size, 0, self._became(parts), length)
        _PASSES.pack_into(self._memory, at, passes + 1)

    def failed(self, number: int) -> None:
        """Nothing is known of the epoch that begins in process `number`."""
        at = number * _ROOM
        _HEAD.pack_into(self._memory, at + _PASSES.size, 0, UNKNOWN, 0)
        _PASSES.pack_into(self._memory, at, self._passes(at) + 1)

    def _became(self, parts: Any) -> int:
        """Of the dataset, since the first epoch of this process."""
        try:
            known = self._state_of(parts)
        except Exception:  # it reaches something that cannot be looked at in this process, as a tensor on a GPU
            return UNKNOWN
        if self._first is None:
            self._first = known
        return SAME if known == self._first else CHANGED

    def _passes(self, at: int) -> int:
        return int(_PASSES.unpack_from(self._memory, at)[0])

    def _text(self, at: int, length: int) -> str:
        begin = at + _PASSES.size + _HEAD.size
        return self._memory[begin : begin + length].decode()

    def _put(self, at: int, state: str) -> int:
        data = state.encode()
        begin = at + _PASSES.size + _HEAD.size
        if begin + len(data) > at + _ROOM:
            raise ValueError("the generators of a loader process do not fit")
        self._memory[begin : begin + len(data)] = data
        return len(data)

    # -- in the script's process -----------------------------------------------------------------------------

    def states(self, passes: int) -> list[str] | None:
        """None where a process has not said it, or where its dataset may not be what it was in the first epoch."""
        told = []
        deadline = time.monotonic() + _PATIENCE
        for at in range(0, self._workers * _ROOM, _ROOM):
            if not self._has_begun(at, passes, deadline):
                return None
            _, became, length = _HEAD.unpack_from(self._memory, at + _PASSES.size)
            if became != SAME:
                return None
            told.append(self._text(at, length))
        return told

    def order(self, states: list[str]) -> bool:
        """False if a process does not begin."""
        deadline = time.monotonic() + _PATIENCE
        for number, state in enumerate(states):
            at = number * _ROOM
            if not self._has_begun(at, 1, deadline):
                return False
            _HEAD.pack_into(self._memory, at + _PASSES.size, 1, SAME, self._put(at, state))
        return True

    def _has_begun(self, at: int, passes: int, deadline: float) -> bool:
        while self._passes(at) < passes:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True


def make_room(loader: Any, state_of: Callable[[Any], str]) -> Room | None:
    """For the processes that this loader is about to fork; None where they are not forked, or end with the epoch."""
    global _newest
    _newest = None
    if not getattr(loader, "persistent_workers", False) or not getattr(loader, "num_workers", 0):
        return None
    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    if context.get_start_method() != "fork":
        return None
    _newest = Room(int(loader.num_workers), state_of)
    return _newest


def watch_processes(read: Callable[[], str], set_state: Callable[[str], None]) -> None:
    """From here on, each forked loader process notes in its room when an epoch begins."""
    global _watching
    if _watching:
        return
    _watching = True
    kinds = fetcher_factory()
    create = kinds.create_fetcher

    def create_fetcher(kind: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any) -> Any:
        process = torch.utils.data.get_worker_info()
        if process is not None and _newest is not None:
            try:
                _newest.begins(process.id, read(), set_state, (dataset, collate_fn))
            except Exception:  # the script goes on reading; its run is told that it is not exact
                _newest.failed(process.id)
        return create(kind, dataset, auto_collation, collate_fn, drop_last)

    kinds.create_fetcher = staticmethod(create_fetcher)
