"""Parts of operators: what one may cost, some of a dimension, the work of an operator."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast.worker.operators.families import CONVOLUTIONS, MATMULS

Arguments = dict[str, Any]
Outputs = Callable[[list[Any]], dict[int, Tensor]]
LONG = 16
"""Times the usual work that the gradients of keys and values may take: they add up over the whole sequence."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one operator may cost."""

    bytes: int = 1 << 20
    work: int = 1 << 25
    """Products of two numbers that the CPU computes."""
    samples: int = 4
    elements: int = 1 << 16
    """Of an operator that is computed element by element."""


@dataclass(frozen=True, slots=True)
class Part:
    """Of an operator."""

    arguments: Arguments
    outputs: Outputs
    whole: bool = False


def tensors_of(given: Arguments) -> list[Tensor]:
    found: list[Tensor] = []
    for value in given.values():
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, Tensor):
                found.append(each)
    return found


def broadcast(tensors: list[Tensor]) -> list[int]:
    sizes = [1] * max((each.dim() for each in tensors), default=0)
    for each in tensors:
        for number, size in enumerate(reversed(each.shape), 1):
            sizes[-number] = max(sizes[-number], size)
    return sizes


def work_of(title: str, given: Arguments) -> int:
    """Products, roughly."""
    if title in MATMULS:
        shapes = [each.shape for each in tensors_of(given)]
        left, right = shapes[-2], shapes[-1]
        return math.prod(left) * (right[-1] if len(right) > 1 else 1)
    if title in CONVOLUTIONS:
        x: Tensor = given["grad_output" if "grad_output" in given else "input"]
        weight = given["weight"]
        places = max(math.prod(x.shape[2:]), math.prod(given["input"].shape[2:]))
        mask = sum(given.get("output_mask", [True])[:2]) or 1
        return int(x.shape[0] * places * weight.numel() * mask)
    if title.startswith("_scaled_dot_product"):
        query, key = given["query"], given["key"]
        return int(4 * query.numel() * key.shape[-2])
    return 0


def some_of(size: int, most: int, chance: random.Random) -> slice:
    """At most so many of a dimension."""
    if size <= most:
        return slice(None)
    step = chance.randint(1, size // most)
    start = chance.randint(0, size - 1 - step * (most - 1))
    return slice(start, start + step * (most - 1) + 1, step)


def at(tensor: Any, dim: int, where: slice) -> Any:
    if not isinstance(tensor, Tensor) or tensor.dim() == 0 or tensor.shape[dim] == 1:
        return tensor
    return tensor[(slice(None),) * (dim % tensor.dim()) + (where,)]
