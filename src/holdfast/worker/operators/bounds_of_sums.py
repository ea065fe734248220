"""What rounding explains in products, convolutions, pools and sums: see bounds.py for the rule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from holdfast.worker.operators import reference
from holdfast.worker.operators.case import Case, mapped
from holdfast.worker.operators.families import CONVOLUTIONS, GATHERS, MATMULS, overlaps
from holdfast.worker.operators.roundings import PRODUCTS, STEPS, UNIT, chain, floats_of, gamma, narrowest, unit_of

SPLITS = 8
"""Partial sums that a library may keep in the narrow format where torch allows it that (the default)."""
WINOGRAD = 16
"""Roundings in the transformed domain of fast convolutions, in units of the largest sum of their plane."""
GAINS = {2: 12.0, 3: 860.0, 5: 148_000.0}
"""For square kernels, the largest of (sum of |a| g b)^2 over the outputs of Winograd's F(m, r) and F(r, m), where a are
the numbers of its last matrix and g, b the norms of the rows of the first two (Lavin and Gray, arXiv 1509.09308; points
0, 1, -1, 2, -2, 1/2, -1/2, 4, -4): tiles of 8 for kernels of 3, of 10 for kernels of 5. `python -m
benchmarks.zoo.winograd` computes them."""
FOURIER = 24
"""Roundings of three transforms for each of their log2(n) stages (Higham, Accuracy and Stability, 24.1)."""
OVERLAPS = 16
"""Windows of a pool that one place belongs to."""


def of_sums(case: Case, right: list[Tensor | None]) -> list[Tensor | None]:
    unit, narrow = unit_of(case), narrowest(case)
    magnitudes = reference.compute(_positive(case), [_magnitude(each) for each in case.tensors], exact=True)
    terms = _terms(case, right)
    flushed = _flushed(case)
    limits: list[Tensor | None] = []
    for number, sizes in enumerate(magnitudes):
        if sizes is None or right[number] is None:
            limits.append(None)
            continue
        adding = narrow if case.title in GATHERS or overlaps(case.title) else unit
        share = gamma(chain(terms[number]) + STEPS, adding)
        if case.title.startswith("upsample_") or "_upsample" in case.title:
            share += 8 * unit * max(case.tensors[0].shape[-2:])  # places between pixels are rounded as well
        if case.title in MATMULS | CONVOLUTIONS:
            share += 2 * PRODUCTS[case.precision] if narrow == UNIT[torch.float32] else 0.0
            share += _splits(case, number) * narrow if narrow > UNIT[torch.float32] else 0.0
        limit = sizes * share
        if flushed is not None and flushed[number] is not None:
            limit = limit + flushed[number] + torch.finfo(torch.float16).tiny  # type: ignore[operator]
        if case.title in CONVOLUTIONS:
            limit = limit + _fast_convolution(case, number, sizes, narrow)
        limits.append(limit)
    return limits


def _flushed(case: Case) -> list[Tensor | None] | None:
    """Some units for products take the smallest numbers of fp16 for zero: what they would have contributed."""
    if case.title not in MATMULS | CONVOLUTIONS or all(each.dtype != torch.float16 for each in floats_of(case)):
        return None
    tiny = torch.finfo(torch.float16).tiny
    total: list[Tensor | None] | None = None
    for number, tensor in enumerate(case.tensors):
        if tensor.dtype != torch.float16 or not bool((small := (tensor.abs() < tiny) & (tensor != 0)).any()):
            continue
        inputs = [_magnitude(each) for each in case.tensors]
        inputs[number] = torch.where(small, inputs[number], 0.0)
        lost = reference.compute(_positive(case), inputs, exact=True)
        total = lost if total is None else [_sum(a, b) for a, b in zip(total, lost, strict=True)]
    return total


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one if other is None else other if one is None else one + other


def _splits(case: Case, number: int) -> float:
    """Partial sums that may be kept in the narrow format: some on a device, on the CPU one for each sample."""
    if case.device.partition(":")[0] not in ("cpu", "pretend"):
        return float(SPLITS)
    weights = case.title == "convolution_backward" and number > 0
    return chain(float(case.tensors[0].shape[0])) if weights else 0.0


def _fast_convolution(case: Case, number: int, sizes: Tensor, narrow: float) -> Tensor | float:
    """Winograd's and Fourier's ways mix all places of a plane, those too that the sum has no term of.

    What is mixed cancels in exact arithmetic; its roundings do not. They are bounded by the products of the norms of
    the planes, times the gain of the transforms. Formats below fp32 are rounded when they are stored in between.
    """
    if number == 2 or sizes.dim() < 3 or max(_kernel(case)) < 2:
        return 0.0
    mixed = _of_planes(case)[number]
    if mixed is None:
        return 0.0
    limit = mixed.expand_as(sizes) * (_gain(case) * unit_of(case))
    products = PRODUCTS[case.precision]
    if narrow == UNIT[torch.float32] and products == 0.0:
        return limit
    plane = sizes.amax(dim=tuple(range(2, sizes.dim())), keepdim=True).expand_as(sizes)
    return limit + plane * (2 * products if narrow == UNIT[torch.float32] else WINOGRAD * narrow)


def _of_planes(case: Case) -> list[Tensor | None]:
    """The convolution of norms: every plane and every kernel is one number."""
    tensors = [_norms(each) if each.is_floating_point() else each for each in case.tensors]
    dims = case.tensors[0].dim() - 2
    plain = {"stride": [1] * dims, "padding": [0] * dims, "dilation": [1] * dims, "output_padding": [0] * dims}
    given = {**reference.named(case, case.args, case.kwargs), **plain}
    return reference.compute(Case(case.name, case.overload, [], given, part=case.part), tensors, exact=True)


def _norms(tensor: Tensor) -> Tensor:
    tensor = tensor.double()
    if tensor.dim() < 3:
        return tensor.abs()
    norms: Tensor = torch.linalg.vector_norm(tensor.flatten(2), dim=2)
    return norms.reshape(*tensor.shape[:2], *([1] * (tensor.dim() - 2)))


def _gain(case: Case) -> float:
    """Of the transforms, in units of rounding: Fourier's by the size of the plane, Winograd's by the kernel."""
    places = max(math.prod(each.shape[2:]) for each in case.tensors if each.dim() > 2)
    kernel = sorted(_kernel(case))[-2:]
    return max(FOURIER * math.log2(2.0 * places), GAINS.get(kernel[-1], 0.0) if len(set(kernel)) == 1 else 0.0)


def _kernel(case: Case) -> list[int]:
    weight = case.tensors[1 if case.title != "convolution_backward" else 2]
    return list(weight.shape[2:]) or [1]


def _positive(case: Case) -> Case:
    """Factors are magnitudes, too."""
    args, kwargs = mapped(case.args, _absolute), mapped(case.kwargs, _absolute)
    return Case(case.name, case.overload, args, kwargs, part=case.part)


def _absolute(leaf: Any) -> Any:
    return abs(leaf) if isinstance(leaf, float) else leaf


def _magnitude(tensor: Tensor) -> Tensor:
    return tensor.double().abs() if tensor.is_floating_point() else tensor


def _terms(case: Case, right: list[Tensor | None]) -> list[float]:
    """How many terms each output adds up."""
    shapes = [each.shape for each in case.tensors]
    if case.title in MATMULS:
        left = shapes[1] if case.title in ("addmm", "baddbmm", "addmv", "addbmm") else shapes[0]
        return [float(left[-1] + 1)] * len(right)
    if case.title == "convolution_backward":
        grad, _, weight = shapes[0], shapes[1], shapes[2]
        kernel = math.prod(weight[2:])
        places = grad[0] * math.prod(grad[2:])
        both = max(places, shapes[1].numel() // shapes[1][1])
        return [float(max(weight[0], weight[1]) * kernel), float(both), float(places)]
    if case.title in CONVOLUTIONS:
        return [float(max(math.prod(shapes[1][1:]), math.prod(shapes[1]) // shapes[1][1]) + 1)] * len(right)
    most = max(each.numel() for each in case.tensors)
    if case.title in GATHERS:
        return [float(most)] * len(right)
    if overlaps(case.title):
        return [float(OVERLAPS)] * len(right)
    return [most / max(1, each.numel()) + 64 if each is not None else 1.0 for each in right]
