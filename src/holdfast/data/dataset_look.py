"""What can be seen of a dataset from outside: has it changed since loader processes got their copy of it?

    before = look(dataset)
    ...                           # dataset.level = 3, dataset.items.append(…), data.dataset = other
    look(dataset) != before       # then the processes need a new copy

Numbers, texts, lengths of containers, and the versions of tensors are compared, through subsets and transforms. What is
changed deep inside of other objects is not seen.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch

_DEPTH = 4
_MOST = 200
_PLAIN = (bool, int, float, str, bytes, type(None), complex)


def look(value: Any, depth: int = _DEPTH) -> tuple[Any, ...]:
    """A description that is equal as long as nothing was changed."""
    if isinstance(value, _PLAIN):
        return (type(value).__name__, value)
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value), value._version)
    found: list[Any] = [type(value).__name__, id(value)]
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        found.append(len(value))
        if isinstance(value, (list, tuple)) and len(value) <= _MOST and depth:
            found += [look(each, depth - 1) for each in value]
        return tuple(found)
    if not isinstance(value, type) and isinstance(value, Sized):
        try:
            found.append(len(value))
        except Exception:
            found.append(None)
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and depth and not callable(getattr(value, "__code__", None)):
        found += [(name, look(each, depth - 1)) for name, each in list(held.items())[:_MOST]]
    return tuple(found)
