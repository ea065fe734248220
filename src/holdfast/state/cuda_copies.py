"""The device side of a snapshot on CUDA: gather, side stream, page-locked slots. No step waits for it.

copies = CudaCopies(device)
copies.arrange(plan, lazy)                     # a new layout: what is gathered, what is copied straight
copies.copy(taken, views, tensors, loss, norm) # under way; `taken.event` tells when it has arrived
copies.guard(pending)                          # an optimizer is about to write what copies still read
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from holdfast.state import layout as layouts
from holdfast.state.protected import view_bytes
from holdfast.state.slot_views import Views
from holdfast.state.slots import Slot
from holdfast.state.taken_snapshot import Taken
from holdfast.state.torch_private import copy_all

_LOCKED: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
"""The memory of slots that this process has page-locked, whichever session did it."""
_ALREADY_LOCKED = 712
"""cudaErrorHostMemoryAlreadyRegistered; HIP has the same number."""
FLAT_LIMIT = 512 << 20
"""Device bytes up to which the state is gathered first, whatever is free."""
STAGE = 0.25
"""Of the free memory of the device that gathering a larger state may take. Without it the update waits for the copy."""


class Copies(Protocol):
    """The device side of a take, where a copy is under way when `copy` returns and arrives later."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        ...

    def arrange(self, plan: layouts.Layout, lazy: list[bool]) -> None: ...
    def copy(
        self, taken: Taken, views: Views, sources: list[Tensor], loss: Tensor | None, norm: Tensor | None
    ) -> None: ...
    def guard(self, pending: list[Taken]) -> None: ...
    def lock_pages(self, slot: Slot) -> None: ...
    def spent(self) -> float:
        """Seconds that the device has waited for copies since this was asked last, as far as it is known by now."""
        ...

    def make_room(self) -> bool:
        """Memory of the device is short: give back what is not needed. True if there was something."""
        ...


MAKERS: dict[torch.device, Callable[[], Copies]] = {}
"""Devices that are not CUDA's and whose copies arrive late all the same: that of holdfast.injection.late."""


def copies_for(device: torch.device) -> Copies | None:
    """None where a copy has arrived when it returns."""
    if device.type == "cuda":
        return CudaCopies(device)
    return MAKERS[device]() if device in MAKERS else None


class CudaCopies:
    """The device side of a take: gather, side stream, page-locked slots.

    A small state is gathered into one flat buffer first: one long copy instead of many short ones. Of a large
    one, only what may change at any time (buffers, averages) is gathered; parameters and optimizer state change
    in `optimizer.step()` alone and are copied straight out, during the next forward and backward.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: Any = torch.cuda.Stream(device)
        self.straight: list[int] = []
        self.gathered: list[int] = []
        self.flat: Tensor | None = None
        self.flat_views: list[Tensor] = []
        self.runs: list[tuple[int, int, int]] = []
        self._flat_free: Any = None
        self._staging = True
        """Whether a large state may be gathered first."""
        self._waits: list[tuple[Any, Any]] = []
        """Events around what the device did for a copy, or waited for one."""

    def spent(self) -> float:
        seconds = 0.0
        while self._waits and self._waits[0][1].query():
            begun, ended = self._waits.pop(0)
            seconds += begun.elapsed_time(ended) / 1e3
        return seconds

    def make_room(self) -> bool:
        had, self._staging = self._staging, False
        if not had or self.straight or self.flat is None or self.flat.numel() <= FLAT_LIMIT:
            return False
        self.flat, self.flat_views = None, []
        return True

    def _timed(self, stream: Any) -> Callable[[], None]:
        """What is put on this stream from here until the answer is called is what a copy cost."""
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record(stream)

        def end() -> None:
            ended.record(stream)
            self._waits.append((begun, ended))

        return end

    def holds(self, tensor: Tensor) -> bool:
        return tensor.device.type != "cpu"

    def arrange(self, plan: layouts.Layout, lazy: list[bool]) -> None:
        """Decide what is gathered and what is copied straight."""
        self.flat, self.flat_views, self.runs, self._flat_free = None, [], [], None
        size = sum(entry.stop - entry.start for entry in plan.live)
        whole = size <= FLAT_LIMIT or (self._staging and size <= STAGE * torch.cuda.mem_get_info(self.device)[0])
        try:
            self._gather(plan, lazy, whole=whole)
        except torch.OutOfMemoryError:
            self._staging = False
            self._gather(plan, lazy, whole=False)

    def _gather(self, plan: layouts.Layout, lazy: list[bool], *, whole: bool) -> None:
        entries = plan.live
        self.gathered = [index for index, flag in enumerate(lazy) if whole or not flag]
        self.straight = [index for index, flag in enumerate(lazy) if flag and not whole]
        self.flat_views = []
        chosen = [entries[index] for index in self.gathered]
        self.runs = _runs([(entry.start, entry.stop) for entry in chosen])
        size = sum(stop - start for start, stop, _ in self.runs)
        if size == 0:
            return
        self.flat = torch.empty(size, dtype=torch.uint8, device=self.device)
        at = 0
        for entry in chosen:
            length = entry.stop - entry.start
            self.flat_views.append(view_bytes(self.flat[at : at + length], entry.dtype, entry.shape))
            at += length

    def copy(self, taken: Taken, views: Views, sources: list[Tensor], loss: Tensor | None, norm: Tensor | None) -> None:
        main = torch.cuda.current_stream(self.device)
        if self.flat is not None:
            end = self._timed(main)
            if self._flat_free is not None:
                main.wait_event(self._flat_free)
            copy_all(self.flat_views, [sources[index] for index in self.gathered])
            end()
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            for start, stop, at in self.runs:
                assert self.flat is not None
                views.data[start:stop].copy_(self.flat[at : at + stop - start], non_blocking=True)
            if self.straight:
                targets = [views.device[index] for index in self.straight]
                copy_all(targets, [sources[index] for index in self.straight], non_blocking=True)
                taken.lazy = True
            for place, number, none in ((0, loss, layouts.NO_LOSS), (2, norm, 0.0)):
                if number is None:
                    views.loss[place] = none
                    continue
                views.loss[place].copy_(number.detach().float(), non_blocking=True)
                if number.is_cuda:  # a batch that was computed on the CPU leaves its loss there
                    number.record_stream(self.stream)
            taken.event = torch.cuda.Event()
            taken.event.record(self.stream)
        self._flat_free = taken.event

    def guard(self, pending: list[Taken]) -> None:
        for taken in pending:
            if taken.lazy:
                main = torch.cuda.current_stream(self.device)
                end = self._timed(main)
                main.wait_event(taken.event)
                end()

    def lock_pages(self, slot: Slot) -> None:
        """Page-lock a slot: copies into it then run beside the step instead of blocking it. Called by any thread."""
        if slot.memory in _LOCKED:  # a rank that stays uses its slots again, in another session
            return
        view = torch.frombuffer(slot.memory, dtype=torch.uint8)
        cudart: Any = torch.cuda.cudart()
        with torch.cuda.device(self.device):  # a thread of its own would lock them for the first card
            error = int(cudart.cudaHostRegister(view.data_ptr(), view.numel(), 0))
            if error:
                self._forget_error()
            if error == _ALREADY_LOCKED:  # slots that were let go lay here, and the driver still knows their pages
                cudart.cudaHostUnregister(view.data_ptr())
                error = int(cudart.cudaHostRegister(view.data_ptr(), view.numel(), 0))
                if error:
                    self._forget_error()
            if error == 0:
                _LOCKED.add(slot.memory)

    def _forget_error(self) -> None:
        """The driver keeps an error for the next kernel of this thread, which would pass for faulty: this is that."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self.device)


def _runs(spans: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Neighbouring spans joined, each with its place in the gathered buffer: one copy a run."""
    runs: list[tuple[int, int, int]] = []
    at = 0
    for start, stop in spans:
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop, runs[-1][2])
        elif stop > start:
            runs.append((start, stop, at))
        at += stop - start
    return runs
