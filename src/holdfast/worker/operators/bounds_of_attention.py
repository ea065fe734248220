"""What attention rounds in between, by its definition."""

from __future__ import annotations

from torch import Tensor

from holdfast.worker.operators import reference
from holdfast.worker.operators.case import Case, filled
from holdfast.worker.operators.reference import doubled
from holdfast.worker.operators.roundings import PRODUCTS, STEPS, chain, narrowest, spacing, unit_of


def add_attention(case: Case, limits: list[Tensor | None]) -> None:
    """Weights, and in backward their gradients, are rounded to the format of the inputs before they are multiplied.

    Small ones are rounded to a multiple of the smallest number of that format, however small they are themselves.
    """
    if not case.title.startswith("_scaled_dot_product"):
        return
    given = reference.named(case, filled(case.args, doubled(case.tensors)), filled(case.kwargs, doubled(case.tensors)))
    query, shared = given["query"], given["key"]
    key, value = reference.repeated(shared, query), reference.repeated(given["value"], query)
    found, scale = reference.scores(given)
    weights = found.softmax(-1)
    unit = unit_of(case)
    narrow = max(narrowest(case), PRODUCTS[case.precision])
    sizes = query.abs() @ key.abs().transpose(-1, -2) * scale
    inner = (chain(query.shape[-1]) + STEPS) * unit + (2 * PRODUCTS[case.precision])
    least = spacing(case) * (weights > 0)
    loose = weights * (4 * narrow + inner * sizes + (inner * sizes * weights).sum(-1, keepdim=True)) + least
    if not case.title.endswith("backward"):
        extra = [loose @ value.abs()]
    else:
        grad: Tensor = given["grad_out" if "grad_out" in given else "grad_out_"]
        change = grad.abs() @ value.abs().transpose(-1, -2) + (grad.abs() * given["out"].abs()).sum(-1, keepdim=True)
        rough = (loose * change + weights * change * (8 * narrow + inner)) * scale + max(scale, 1.0) * least
        answers = (rough.transpose(-1, -2) @ query.abs(), loose.transpose(-1, -2) @ grad.abs())
        extra = [rough @ key.abs(), *(reference.gathered(each, shared) for each in answers)]
    for number, more in enumerate(extra):
        if number < len(limits) and limits[number] is not None:
            limits[number] = limits[number] + more
