"""A batch, whatever it is made of: tensors in any nest of lists, tuples and dicts.

to_device(batch, device)          # moved, with everything that has `.to`
batch_size(batch)                 # 32, or None where its tensors do not share a first dimension
split_batch(batch, 4)             # pieces, each with its weight
take(batch, [3, 17])              # some samples
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.base.errors import UserError

Piece = tuple[Any, float]
"""Some samples of a batch and their share of it."""


def to_device(value: Any, device: torch.device) -> Any:
    """A batch on the device: tensors in any nest of lists, tuples and dicts, and anything with `.to`."""
    if isinstance(value, Tensor):
        return (
            value.to(device, non_blocking=value.device.type == "cpu" and value.is_pinned())
            if _elsewhere(value, device)
            else value
        )
    if isinstance(value, dict):
        return _like(value, {key: to_device(item, device) for key, item in value.items()})
    if isinstance(value, tuple):
        moved = [to_device(item, device) for item in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    if isinstance(value, list):
        return [to_device(item, device) for item in value]
    return value.to(device) if hasattr(value, "to") and not isinstance(value, type) else value


def _elsewhere(value: Tensor, device: torch.device) -> bool:
    return value.device != device


def batch_size(batch: Any) -> int | None:
    """The number of samples: the common first dimension of the batch's tensors, or None."""
    sizes = {tensor.shape[0] for tensor in tensors_of(batch) if tensor.dim() > 0}
    return sizes.pop() if len(sizes) == 1 else None


def split_batch(batch: Any, count: int) -> list[Piece]:
    """Cut a batch along its first dimension; each piece weighs as many samples as it holds.

    That is exact for a loss that is a mean over samples. Others pass their own `split`.
    """
    size = batch_size(batch)
    if size is None:
        raise UserError(
            "this batch cannot be split",
            cause="its tensors do not share a first dimension",
            hints=["pass `split=` to session.step: a function (batch, count) -> [(piece, weight), …]"],
        )
    count = min(count, size)
    bounds = [round(index * size / count) for index in range(count + 1)]
    return [
        (_cut(batch, start, stop, size), (stop - start) / size)
        for start, stop in itertools.pairwise(bounds)
        if stop > start
    ]


def cloned(value: Any) -> Any:
    """The same batch in memory of its own: a step may change what it is given."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return _like(value, {key: cloned(item) for key, item in value.items()})
    if isinstance(value, tuple):
        parts = [cloned(item) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return [cloned(item) for item in value] if isinstance(value, list) else value


def take(batch: Any, rows: Sequence[int]) -> Any:
    """These samples of a batch, in this order. The batch must have a size."""
    size = batch_size(batch)
    assert size is not None
    return _pick(batch, list(rows), size)


def _pick(value: Any, rows: list[int], size: int) -> Any:
    if isinstance(value, Tensor):
        return value[rows] if value.dim() > 0 and value.shape[0] == size else value
    if isinstance(value, np.ndarray):
        return value[rows] if value.ndim > 0 and len(value) == size else value
    if isinstance(value, dict):
        return _like(value, {key: _pick(item, rows, size) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        named = hasattr(value, "_fields")
        if len(value) == size and not named and not any(True for _ in tensors_of(value)):
            return type(value)(value[row] for row in rows)
        parts = [_pick(item, rows, size) for item in value]
        return type(value)(*parts) if named else type(value)(parts)
    return value


def _cut(value: Any, start: int, stop: int, size: int) -> Any:
    if isinstance(value, Tensor):
        return value[start:stop] if value.dim() > 0 and value.shape[0] == size else value
    if isinstance(value, np.ndarray):
        return value[start:stop] if value.ndim > 0 and len(value) == size else value
    if isinstance(value, dict):
        return _like(value, {key: _cut(item, start, stop, size) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        named = hasattr(value, "_fields")
        if len(value) == size and not named and not any(True for _ in tensors_of(value)):
            return value[start:stop]  # one thing a sample: file names, ids
        parts = [_cut(item, start, stop, size) for item in value]
        return type(value)(*parts) if named else type(value)(parts)
    return value


def _like(value: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """A dict of the same kind: an OrderedDict, a defaultdict, one of the user's own."""
    if type(value) is dict:
        return items
    made = copy.copy(value)
    made.update(items)
    return made


def tensors_of(value: Any) -> Iterable[Tensor]:
    """Every tensor in a nest of lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
