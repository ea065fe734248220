"""How an operator amplifies roundings of its inputs, and what kernels round that compute element by element."""

from __future__ import annotations

import random
from functools import cache

import torch
from torch import Tensor

from holdfast.worker.operators import reference
from holdfast.worker.operators.case import Case, filled
from holdfast.worker.operators.families import pointwise
from holdfast.worker.operators.reference import doubled
from holdfast.worker.operators.roundings import STEPS, UNIT, narrowest, unit_of

MOVES = 6
"""So often inputs are moved by a rounding, each time otherwise."""
OPERATIONS = 8
"""After so many operations a kernel of an elementwise operator may round; the longest definitions have that many."""
SINGLE = frozenset(
    {
        "add", "sub", "rsub", "mul", "div", "neg", "abs", "relu", "clamp", "clamp_min", "clamp_max", "where", "maximum",
        "minimum", "threshold", "threshold_backward", "fill", "zero", "copy", "clone", "_to_copy", "masked_fill", "exp",
        "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid", "erf", "pow", "sign", "square", "cat",
    }
)  # fmt: skip
"""One operation: rounded once, when the result is stored."""


def moved_by(case: Case, right: list[Tensor | None], unit: float) -> list[Tensor | None]:
    """How far the results come when every input is off by one rounding: the root of the sum of some tries."""
    chance = random.Random(0)
    moved: list[Tensor | None] = [torch.zeros_like(each) if each is not None else None for each in right]
    exact = doubled(case.tensors)
    for _ in range(MOVES):
        inputs = [_moved(each, unit, chance) for each in exact]
        for total, found, answer in zip(moved, reference.compute(case, inputs, exact=True), right, strict=False):
            if total is not None and found is not None and answer is not None:
                total += (found - answer).square()
    return [each.sqrt() if each is not None else None for each in moved]


def _moved(tensor: Tensor, unit: float, chance: random.Random) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return torch.addcmul(tensor, tensor, _ways(tensor.numel(), chance).view(tensor.shape), value=unit)


def _ways(count: int, chance: random.Random) -> Tensor:
    """Up or down by half a rounding to a whole one: a piece of a table, from another place each time."""
    table = _table()
    if count > len(table) // 2:  # a piece would be nearly the same each time
        return _drawn(count, torch.Generator().manual_seed(chance.getrandbits(48)))
    first = chance.randrange(len(table) - count)
    return table[first : first + count]


@cache
def _table() -> Tensor:
    """Random numbers cost more than all else in a comparison, so they are drawn once in a process."""
    return _drawn(1 << 20, torch.Generator().manual_seed(0))


def _drawn(count: int, source: torch.Generator) -> Tensor:
    way = torch.rand(count, generator=source, dtype=torch.float64).mul_(0.5).add_(0.5)
    return way.mul_(torch.randint(0, 2, (count,), generator=source).mul_(2).sub_(1))


def add_elements(case: Case, right: list[Tensor | None], limits: list[Tensor | None]) -> None:
    """Roundings to the narrow format in between, and differences of nearly equal numbers that definitions contain."""
    if not pointwise(case) and "loss" not in case.title:
        return
    narrow = narrowest(case)
    if narrow > UNIT[torch.float32] and case.title.removesuffix("_") not in SINGLE:
        for number, distance in enumerate(moved_by(case, right, narrow)):
            limit, answer = limits[number], right[number]
            if limit is not None and distance is not None and answer is not None:
                limits[number] = limit + OPERATIONS * (distance + narrow * answer.abs())
    size = _cancelled(case)
    if size is not None and limits[0] is not None and limits[0].numel() == size.numel():
        limits[0] = limits[0] + (STEPS * unit_of(case)) * size.reshape(limits[0].shape)


def _cancelled(case: Case) -> Tensor | None:
    """The numbers that a definition takes from each other: 1 + erf(x), (1 - t) x + log(1 + exp(-x))."""
    exact = doubled(case.tensors)
    given = reference.named(case, filled(case.args, exact), filled(case.kwargs, exact))
    if case.title in ("gelu", "gelu_", "silu", "silu_", "softplus", "log_sigmoid_forward", "mish"):
        found: Tensor = given["self"].abs()
        return found
    if case.title in ("gelu_backward", "silu_backward", "softplus_backward", "mish_backward"):
        grad, x = given["grad_output"], given["self"]
        size: Tensor = grad.abs() * (1.0 + x.abs())
        return size
    if case.title == "binary_cross_entropy_with_logits":
        x, target = given["self"], given["target"]
        weight = 1.0 if given.get("weight") is None else given["weight"].abs()
        terms: Tensor = ((1.0 + target.abs()) * x.abs() + 1.0) * weight
        reduction = int(given.get("reduction", 1))
        return terms if reduction == 0 else terms.mean() if reduction == 1 else terms.sum()
    return None
