"""Units of rounding: of a format, of the arithmetic inside of an operator, of a chain of additions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.worker.operators.case import Case

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
PRODUCTS = {"ieee": 0.0, "tf32": 2.0**-10, "bf16": 2.0**-7}
"""What a product of fp32 may be rounded to before it is multiplied; cut off instead of rounded counts twice."""
STEPS = 16
"""Roundings of one output that no length explains: a transcendental function, a few products and sums."""
IN_A_ROW = 4096
"""Terms that a kernel adds one by one before it joins blocks."""


def chain(terms: float) -> float:
    """The longest chain of additions in a sum of so many terms."""
    return min(terms, IN_A_ROW + 8 * math.sqrt(terms))


def gamma(roundings: float, unit: float) -> float:
    share = roundings * unit
    return share / (1 - share) if share < 0.5 else math.inf


def floats_of(case: Case) -> list[Tensor]:
    return [each for each in case.tensors if each.is_floating_point()]


def unit_of(case: Case) -> float:
    """Of the arithmetic inside: devices compute narrow formats in fp32."""
    dtypes = {each.dtype for each in [*floats_of(case), *case.outputs.values()] if each.is_floating_point()}
    return UNIT[torch.float64] if dtypes == {torch.float64} else UNIT[torch.float32]


def narrowest(case: Case) -> float:
    """Of the coarsest format among inputs and outputs."""
    units = [UNIT[each.dtype] for each in [*floats_of(case), *case.outputs.values()] if each.dtype in UNIT]
    return max(units, default=UNIT[torch.float32])


def spacing(case: Case) -> float:
    """Of the smallest numbers in the narrowest format of the inputs: what is computed in between is rounded to it."""
    half = any(each.dtype == torch.float16 for each in floats_of(case))
    return 2.0**-24 if half else torch.finfo(torch.bfloat16).tiny


def stored(case: Case, number: int, right: Tensor) -> Tensor:
    """The result is rounded to its format; the smallest numbers of a format may be taken for zero."""
    out = case.outputs.get(number)
    if out is None or out.dtype not in UNIT:
        return torch.zeros_like(right)
    smallest = 2.0**-24 if out.dtype == torch.float16 else torch.finfo(out.dtype).tiny
    return right.abs() * (2 * UNIT[out.dtype]) + smallest
