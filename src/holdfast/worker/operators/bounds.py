"""What rounding explains: for every element of an operator's output, how far a right device may be from fp64.

    right = compute(case, doubled(case.tensors), exact=True)
    limits = allowed(case, right)                  # a tensor for each output, or None where nothing can be said

No number here is fitted to a network. Three rules give the limits:

sums       Products and sums are multilinear: computed once more from magnitudes they give, for every element, the sum
           of the magnitudes of its terms, A. A sum of n terms whose longest chain of additions has d roundings is off
           by at most d*u/(1-d*u) * A (Higham, Accuracy and Stability, 4.2). Some kernels add one by one, so d is n;
           long sums are added in blocks, d is at most 4096 + 8*sqrt(n). Rounded before it is multiplied: 2u * A more.
the rest   The operator in fp64 on inputs that are moved by one rounding shows how it amplifies roundings; a kernel that
           rounds in between does so a bounded number of times, K = 16 + d. Some kernels that compute element by element
           do so in the narrow format of their inputs, and round to it after each of their few operations.
storage    What is written in a narrower format is rounded once more: 2u of the result.

Normalisations and attention add what their definition rounds in between.
"""

from __future__ import annotations

from torch import Tensor

from holdfast.worker.operators.bounds_of_attention import add_attention
from holdfast.worker.operators.bounds_of_elements import add_elements, moved_by
from holdfast.worker.operators.bounds_of_norms import add_batch_sums, add_row_sums, add_softmax, add_statistics
from holdfast.worker.operators.bounds_of_sums import of_sums
from holdfast.worker.operators.case import Case
from holdfast.worker.operators.families import is_linear, pointwise
from holdfast.worker.operators.roundings import STEPS, chain, stored, unit_of


def allowed(case: Case, right: list[Tensor | None]) -> list[Tensor | None]:
    """The largest distance from `right` that roundings explain, for each element of each output."""
    if is_linear(case.title):
        limits = of_sums(case, right)
    else:
        limits = _of_moves(case, right)
        add_elements(case, right, limits)
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
    roundings = STEPS + chain(_length(case))
    return [
        roundings * (distance + unit * answer.abs()) if distance is not None and answer is not None else None
        for distance, answer in zip(moved_by(case, right, unit), right, strict=True)
    ]


def _length(case: Case) -> float:
    """The longest sum an operator that is not elementwise may contain."""
    if pointwise(case):
        return 0.0
    most = max((each.numel() for each in case.tensors), default=1)
    least = max((each.numel() for each in case.outputs.values()), default=1)
    sides = max((max(each.shape, default=1) for each in case.tensors), default=1)
    return float(max(most / max(1, least), sides))
