"""A batch on its way to the device while the step before it is still computed there.

    ahead = Ahead()
    ahead.begin(value, device)          # the loop has a new batch: a copy on a stream of its own, nobody waits
    moved = ahead.take(value, device)   # in the step: the copy; None if there is none, and the step moves it itself

Copies only what is in pinned memory, and only to CUDA: from other memory a copy waits for the host, and not beside the
step. A copy is used once: a step that is tried again moves the batch anew, for what it got may have been changed.
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.data.batch import tensors_of, to_device


class Ahead:
    """At most one batch: the loop's own."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._given: Any = None
        self._moved: Any = None
        self._event: torch.cuda.Event | None = None
        self._device = torch.device("cpu")
        self._versions: list[int] = []

    def begin(self, value: Any, device: torch.device) -> None:
        self.drop()
        if device.type != "cuda":
            return
        tensors = list(tensors_of(value))
        try:
            if not tensors or not all(each.device.type == "cpu" and each.is_pinned() for each in tensors):
                return
            if self._stream is None or self._device != device:
                self._stream, self._device = torch.cuda.Stream(device), device
            with torch.cuda.stream(self._stream):
                self._moved = to_device(value, device)
            self._event = self._stream.record_event()
        except RuntimeError:  # no memory, or a device that has failed: the step meets it where it can be mended
            self.drop()
            return
        self._given, self._versions = value, [each._version for each in tensors]

    def take(self, value: Any, device: torch.device) -> Any:
        if self._given is None or value is not self._given:
            return None
        moved, event = self._moved, self._event
        fits = device == self._device and [each._version for each in tensors_of(value)] == self._versions
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
        self._given = self._moved = self._event = None
