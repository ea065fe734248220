"""A full disk is waited for: the script is started again when there is room for what it writes.

space = DiskSpace(order, settings.external.room)
space.wait(move)                        # from here on
move = space.look(now, tell)            # the move, once there is room; None while it is waited
space.over                              # nobody made room in time
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.faults.ladder import Move
from holdfast.supervisor.scripts import frameworks
from holdfast.supervisor.scripts.own_checkpoints import search
from holdfast.supervisor.scripts.script_order import Order

LEAST = 64 << 20
"""Bytes that must be free beside a checkpoint before a script is started again on a disk that was full."""
EVERY = 1.0


class DiskSpace:
    """A start that waits for room on a disk, or none."""

    def __init__(self, order: Order, patience: float) -> None:
        self._order = order
        self._patience = patience
        self._move: Move | None = None
        self._until = self._looked = 0.0
        self._told = False
        self.over = False

    @property
    def waiting(self) -> bool:
        return self._move is not None

    def wait(self, move: Move) -> None:
        self._move, self._until = move, time.monotonic() + self._patience
        self._looked, self._told, self.over = 0.0, False, False

    def forget(self) -> None:
        self._move = None

    def look(self, tell: Callable[[str], None]) -> Move | None:
        """Is there room now? Asked often, looked at once a second."""
        now = time.monotonic()
        if self._move is None or now - self._looked < EVERY:
            return None
        self._looked = now
        free, need = self._free_and_needed()
        if free >= need:
            move, self._move = self._move, None
            return move
        if now > self._until:
            self._move, self.over = None, True
        elif not self._told:
            self._told = True
            tell(f"waiting for room on the disk: {free >> 20} MiB are free, {need >> 20} MiB are needed")
        return None

    def _free_and_needed(self) -> tuple[int, int]:
        """Bytes free where the script writes, and what it needs: the size of what it wrote before, and some."""
        places = frameworks.places(self._order.command, self._order.cwd)
        found = search(places, (*frameworks.FILES, *frameworks.FOLDERS), self._order.since_ns)
        size = max((_size(each.path) for each in found[:5]), default=0)
        where = [found[0].path] if found else places
        free = min((shutil.disk_usage(path).free for path in where if path.exists()), default=LEAST)
        total = min((shutil.disk_usage(path).total for path in where if path.exists()), default=LEAST)
        return free, min(2 * size + LEAST, total // 20 + size)


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
    return path.stat().st_size if path.exists() else 0
