"""What the hook calls as an epoch of a DataLoader begins.

note(iterator, loader)
"""

from __future__ import annotations

import types
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from holdfast.integrations.exact import loaders
from holdfast.integrations.exact.capture import Capture
from holdfast.integrations.exact.constants import Constants, mark_of, sum_of
from holdfast.integrations.exact.ours import is_own


class Versions(Constants):
    """Large data of a dataset are not read for this: what torch has counted, and of arrays a few places."""

    def mark(self, tensor: torch.Tensor, in_data: bool = False, path: str = "") -> str:
        return f"{tensor._version} {tensor.data_ptr()} {tuple(tensor.shape)}"

    def mark_array(self, array: np.ndarray[Any, Any], in_data: bool) -> str:
        return mark_of(array, in_data=True)


def note(iterator: Any, loader: Any) -> None:
    loaders.note(iterator, loader, state_of)


def state_of(parts: Any) -> str:
    """A checksum of everything small that a dataset and its collate function hold or use: another one after a change.

    It covers attributes of the script's own classes too, and variables of its modules that their functions name.
    """
    capture = Capture({}, Versions())
    rows = [capture.value(each, f"part{at}") for at, each in enumerate(parts)]
    looked: set[int] = set()
    while waiting := [each for each in capture.reached() if id(each) not in looked]:
        looked |= {id(each) for each in waiting}
        for name, value in (pair for each in waiting for pair in _used(each)):
            rows.append([name, capture.value(value, name)])
    sums = [[name, _sum(tensor)] for name, tensor in capture.tensors.items() if tensor.numel()]
    return f"{zlib.crc32(repr([rows, capture.text(), sums]).encode()):08x}"


def _sum(tensor: torch.Tensor) -> Any:
    return sum_of(tensor) if tensor.device.type == "cpu" else (str(tensor.device), tensor._version)


def _used(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object's class holds, and what the functions of its class, or a function itself, name of their module."""
    if isinstance(value, types.FunctionType):
        yield from _named(value)
        return
    for kind in type(value).__mro__:
        if not is_own(kind.__module__):
            continue
        for name, each in vars(kind).items():
            function = getattr(each, "__func__", None) or getattr(each, "fget", None) or each
            if isinstance(function, types.FunctionType):
                yield from _named(function)
            elif not name.startswith("__"):
                yield f"{kind.__qualname__}.{name}", each


def _named(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if not is_own(function.__module__ or ""):
        return
    codes = [function.__code__]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            if value is not None and not isinstance(value, (types.ModuleType, type)):
                yield f"{function.__module__}.{name}", value
