"""A batch on its way to the device while the step before it is still computed there.

    ahead = Ahead()
    ahead.begin(value, device)          # the loop has a new batch: a copy on a stream of its own, nobody waits
    moved = ahead.take(value, device)   # in the step: the copy; None if there is none, and the step moves it itself

Copies only what is in pinned memory, and only to CUDA: from other memory a copy waits for the host, and not beside the
step. A small batch is not worth a second stream: the host does not wait for it in any case. A copy is used once: a step
that is tried again moves the batch anew, for what it got may have been changed. So does a step whose batch the loop has
changed since: it has written to a tensor, or put another one in its place. Torch does not count what the loop writes
through `tensor.numpy()`: that is not seen here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.data.batch import tensors_of, to_device
from holdfast.data.loader_processes import STAGED

_END = object()


class Ahead:
    """At most one batch: the loop's own."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._given: Any = None
        self._moved: Any = None
        self._event: torch.cuda.Event | None = None
        self._device = torch.device("cpu")
        self._mark: Mark | None = None

    def begin(self, value: Any, device: torch.device) -> None:
        self.drop()
        if device.type != "cuda":
            return
        tensors = list(tensors_of(value))
        if all(each.nbytes <= STAGED for each in tensors):
            return
        try:
            if not all(each.device.type == "cpu" and each.is_pinned() for each in tensors):
                return
            mark = Mark(value)
            if mark.moves_itself:
                return
            if self._stream is None or self._device != device:
                self._stream, self._device = torch.cuda.Stream(device), device
            with torch.cuda.stream(self._stream):
                self._moved = to_device(value, device)
            self._event = self._stream.record_event()
        except RuntimeError:  # no memory, or a device that has failed: the step meets it where it can be mended
            self.drop()
            return
        self._given, self._mark = value, mark

    def take(self, value: Any, device: torch.device) -> Any:
        if self._given is None or value is not self._given:
            return None
        moved, event, mark = self._moved, self._event, self._mark
        fits = device == self._device and mark is not None and mark.fits(value)
        self.drop()
        if event is None or not fits:
            return None
        stream = torch.cuda.current_stream(device)
        stream.wait_event(event)
        for each in tensors_of(moved):
            if each.is_cuda:
                each.record_stream(stream)  # its memory is of the other stream: not to be given away before this one
        return moved

    def drop(self) -> None:
        self._given = self._moved = self._event = self._mark = None


class Mark:
    """What a batch is made of at one moment: the very objects, and how often each tensor was written to."""

    def __init__(self, value: Any) -> None:
        self._parts = list(_parts(value))
        self._versions = [each._version for each in tensors_of(value)]

    @property
    def moves_itself(self) -> bool:
        """Whether something in it has a `.to` of its own: what that depends on is not known."""
        return any(hasattr(part, "to") and not isinstance(part, (torch.Tensor, type)) for part in self._parts)

    def fits(self, value: Any) -> bool:
        """Whether a batch is still what it was: a dict in which a tensor was replaced is the same dict."""
        parts = list(_parts(value))
        same = len(parts) == len(self._parts) and all(map(operator.is_, parts, self._parts))
        return same and [each._version for each in tensors_of(value)] == self._versions


def _parts(value: Any) -> Iterator[Any]:
    """Keys and leaves of a nest, with the type of each list, tuple and dict before what is in it, and its end."""
    if isinstance(value, dict):
        yield type(value)
        for key, item in value.items():
            yield key
            yield from _parts(item)
        yield _END
    elif isinstance(value, (list, tuple)):
        yield type(value)
        for item in value:
            yield from _parts(item)
        yield _END
    else:
        yield value
