"""Making slots ready beside the script: their pages are reserved, touched and page-locked before a snapshot needs them.

    ready = Preparation(arena, lock=copies.lock_pages)     # a thread begins with the slot that is written first
    ready.slots()                                          # those that can be written without a wait
    ready.wait({0})                                        # until there is one beside slot 0; seconds waited
    ready.more()                                           # all of them are in use: the next one, beside the script

A slot of some gigabytes costs seconds when it is written for the first time: the system finds, clears and maps each of
its pages, and CUDA locks them. Two slots do at first; more are made ready when those are in use, so a slot that nobody
needs takes no memory. Small slots cost nothing worth a thread. A slot that the system has no room for is left out: a
run needs two. On systems that cannot do this ahead the first snapshot in a slot does it, as it always did.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.state import pages
from holdfast.state.slots import LARGE, LEAST, Arena, Slot, no_room


class Preparation:
    """Of the slots of one arena, in the process that writes to them."""

    def __init__(self, arena: Arena, lock: Callable[[Slot], None] | None = None) -> None:
        self.arena = arena
        self.seconds = {"touch": 0.0, "lock": 0.0, "waited": 0.0}
        """What was spent beside the script, and how long a snapshot waited for it."""
        self._lock = lock
        self._changed = threading.Condition()
        self._ready: set[int] = set()
        self._why: OSError | None = None
        self._given_up = False
        self._target = LEAST
        """How many are wanted by now."""
        self._thread: threading.Thread | None = None
        if arena.capacity < LARGE:
            self._ready = {slot.index for slot in arena.slots}
            return
        self._thread = threading.Thread(target=self._work, name="holdfast-slots", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Nothing more will become ready."""
        return self._thread is None or not self._thread.is_alive()

    def slots(self) -> list[Slot]:
        """Those that are ready."""
        with self._changed:
            return [slot for slot in self.arena.slots if slot.index in self._ready]

    def wait(self, taken: set[int]) -> float:
        """Until one that is not among the `taken` is ready. Seconds it took; UserError if there is no room for two."""
        began = time.perf_counter()
        with self._changed:
            while not self._ready - taken and not self.over:
                self._want(len(self._ready) + 1)
                self._changed.wait(0.1)
            if self.over and len(self._ready) < LEAST:
                said = self._why.strerror if self._why is not None else None
                raise no_room(LEAST * self.arena.capacity, f"in memory ({said or 'it cannot be reserved'})")
        waited = time.perf_counter() - began
        self.seconds["waited"] += waited
        return waited

    def more(self) -> None:
        """One more than are ready."""
        with self._changed:
            self._want(len(self._ready) + 1)

    def _want(self, count: int) -> None:
        self._target = max(self._target, count)
        self._changed.notify_all()

    def said(self) -> dict[str, Any]:
        """What became of large slots, for the receipt; {} for small ones."""
        if self._thread is None:
            return {}
        seconds = {f"{name}_s": round(value, 3) for name, value in self.seconds.items()}
        return {"slots": {"ready": len(self._ready), "of": len(self.arena.slots), **seconds}}

    def stop(self) -> None:
        """Before the slots are closed: nobody asks for their pages any more."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        order = sorted(self.arena.slots, key=lambda slot: slot.age)  # the newest snapshot's slot comes last
        with pages.hands() as pool:
            for slot in order:
                with self._changed:
                    self._changed.wait_for(lambda: self._given_up or len(self._ready) < self._target)
                if self._given_up:
                    return
                try:
                    began = time.perf_counter()
                    self._touch(slot, pool)
                    self.seconds["touch"] += time.perf_counter() - began
                except OSError as error:
                    self._why = error
                    return
                if self._lock is not None and not self._given_up:
                    began = time.perf_counter()
                    with contextlib.suppress(RuntimeError):  # then copies into it are slow, and still right
                        self._lock(slot)
                    self.seconds["lock"] += time.perf_counter() - began
                with self._changed:
                    self._ready.add(slot.index)
                    self._changed.notify_all()

    def _touch(self, slot: Slot, pool: ThreadPoolExecutor) -> None:
        size = len(slot.memory)
        if self.arena.where != "memory":  # reserved when it was made; its pages are the file's
            return
        held = ctypes.c_char.from_buffer(slot.memory)
        try:
            populate = pages.adviser(pages.POPULATE_WRITE)
            if populate is None:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(slot.fd, 0, size)
                return
            at = ctypes.addressof(held)
            asked = [(at + start, stop - start) for start, stop in pages.pieces(0, size)]
            for code in pool.map(lambda piece: 0 if self._given_up else populate(*piece), asked):
                if code == errno.EINVAL:  # an older kernel
                    os.posix_fallocate(slot.fd, 0, size)
                    return
                if code:
                    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        finally:
            del held
