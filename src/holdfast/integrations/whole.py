"""A framework's own checkpoint, handed out whole instead of being written to a file.

    whole = Whole(dump)                     # dump() gives the checkpoint as a dict, as the framework saves it
    keep = Keep(outside, {"checkpoint": whole, "data": followed}, device)
    keep.restore(); whole.restored          # the dict of the last commit, on the CPU; None for a new run

What is in it must be tensors, numbers, texts and containers of them: nothing is pickled on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


class Whole:
    """An object of `state_dict` and `load_state_dict` around a function that makes a checkpoint."""

    def __init__(self, dump: Callable[[], Mapping[str, Any]]) -> None:
        self._dump = dump
        self.restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(self._dump())
        return plain

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored = state


def _plain(value: Any) -> Any:
    """Only what can be written down without pickle: other mappings and sequences become dicts and lists."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    if isinstance(value, (list, set, frozenset)):
        return [_plain(each) for each in value]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a number of numpy
        return value.item()
    return value
