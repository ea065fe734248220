"""What rounding explains: for every element of an operator's output, how far a right device may be from fp64.

    right = compute(case, doubled(case.tensors), exact=True)
    limits = allowed(case, right)                  # a tensor for each output, or None where nothing can be said

No number here is fitted to a network. Three rules give the limits:

sums       Products and sums are multilinear: computed once more from magnitudes they give, for every element, the sum
           of the magnitudes of its terms, A. A sum of n terms whose longest chain of additions has d roundings is off
           by at most d*u/(1-d*u) * A (Higham, Accuracy and Stability, 4.2). Some kernels add one by one, so d is n;
           long sums are added in blocks, d is at most 4096 + 8*sqrt(n). Rounded before it is multiplied: 2u * A more.
the rest   The operator in fp64 on inputs that are moved by one rounding shows how it amplifies roundings; a kernel that
           rounds in between does so a bounded number of times, K = 16 + d.
storage    What is written in a narrower format is rounded once more: 2u of the result.

Normalisations and attention add what their definition rounds in between.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.runtime.operators import reference
from holdfast.runtime.operators.bounds_of_attention import add_attention
from holdfast.runtime.operators.bounds_of_norms import add_batch_sums, add_row_sums, add_softmax, add_statistics
from holdfast.runtime.operators.bounds_of_sums import of_sums
from holdfast.runtime.operators.case import Case
from holdfast.runtime.operators.families import is_linear, pointwise
from holdfast.runtime.operators.reference import doubled
from holdfast.runtime.operators.roundings import STEPS, chain, stored, unit_of

MOVES = 6
"""So often inputs are moved by a rounding, each time otherwise."""


def allowed(case: Case, right: list[Tensor | None]) -> list[Tensor | None]:
    """The largest distance from `right` that roundings explain, for each element of each output."""
    if is_linear(case.title):
        limits = of_sums(case, right)
    else:
        limits = _of_moves(case, right)
        add_statistics(case, limits)
        add_softmax(case, limits)
        add_batch_sums(case, limits)
        add_row_sums(case, limits)
        add_attention(case, limits)
    return [
        limit + stored(case, number, answer) if limit is not None and answer is not None else None
        for number, (limit, answer) in enumerate(zip(limits, right, strict=True))
    ]


def _of_moves(case: Case, right: list[Tensor | None]) -> list[Tensor | None]:
    """The operator on inputs that are off by one rounding, several times."""
    unit = unit_of(case)
    source = torch.Generator().manual_seed(0)
    moved: list[Tensor | None] = [torch.zeros_like(each) if each is not None else None for each in right]
    exact = doubled(case.tensors)
    for _ in range(MOVES):
        inputs = [_moved(each, unit, source) for each in exact]
        for total, found, answer in zip(moved, reference.compute(case, inputs, exact=True), right, strict=False):
            if total is not None and found is not None and answer is not None:
                total += (found - answer).square()
    roundings = STEPS + chain(_length(case))
    return [
        roundings * (total.sqrt() + unit * answer.abs()) if total is not None and answer is not None else None
        for total, answer in zip(moved, right, strict=True)
    ]


def _moved(tensor: Tensor, unit: float, source: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    way = torch.rand(tensor.shape, generator=source, dtype=torch.float64).mul_(0.5).add_(0.5)
    way *= torch.randint(0, 2, tensor.shape, generator=source).mul_(2).sub_(1)
    return tensor + tensor * way * unit


def _length(case: Case) -> float:
    """The longest sum an operator that is not elementwise may contain."""
    if pointwise(case):
        return 0.0
    most = max((each.numel() for each in case.tensors), default=1)
    least = max((each.numel() for each in case.outputs.values()), default=1)
    sides = max((max(each.shape, default=1) for each in case.tensors), default=1)
    return float(max(most / max(1, least), sides))
