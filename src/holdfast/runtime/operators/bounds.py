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

import math
from typing import Any

import torch
from torch import Tensor

from holdfast.runtime.operators import reference
from holdfast.runtime.operators.case import Case, Slot, filled, mapped, operator
from holdfast.runtime.operators.reference import Unknown, doubled

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
PRODUCTS = {"ieee": 0.0, "tf32": 2.0**-10, "bf16": 2.0**-7}
"""What a product of fp32 may be rounded to before it is multiplied; cut off instead of rounded counts twice."""
MOVES = 6
"""So often inputs are moved by a rounding, each time otherwise."""
STEPS = 16
"""Roundings of one output that no length explains: a transcendental function, a few products and sums."""
SPLITS = 8
"""Partial sums that a library may keep in the narrow format where torch allows it that (the default)."""
WINOGRAD = 16
"""Roundings in the transformed domain of fast convolutions, in units of the largest sum of their plane."""

IN_A_ROW = 4096
"""Terms that a kernel adds one by one before it joins blocks."""
OVERLAPS = 16
"""Windows of a pool that one place belongs to."""

MATMULS = frozenset({"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "addbmm"})
CONVOLUTIONS = frozenset({"convolution", "convolution_backward", "convolution_overrideable"})
GATHERS = frozenset(
    {
        "index_add", "index_add_", "scatter_add", "scatter_add_", "index_put", "index_put_", "_index_put_impl_",
        "embedding_dense_backward", "cumsum", "col2im", "scatter_reduce", "scatter_reduce_",
    }
)  # fmt: skip
"""Sums that may be added up one by one in the format of the result."""
POOLS = (
    "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool", "upsample_", "_upsample", "max_pool", "adaptive_max_pool",
    "reflection_pad", "replication_pad", "unfold_backward",
)  # fmt: skip
SUMS = frozenset({"sum", "mean", "nansum", "index_select_backward", "select_backward", "slice_backward"})
SKIPPED = (
    "empty", "new_empty", "_empty", "resize_", "set_", "record_stream", "_cdist", "cdist", "_euclidean_dist", "linalg_",
    "_linalg", "svd", "qr", "inverse", "cholesky", "lu_", "triangular_solve", "grid_sampler", "remainder", "fmod",
    "floor_divide", "nearest", "_foreach", "_fused", "_amp_", "_cudnn_rnn", "miopen_rnn", "mkldnn_rnn", "_thnn_fused",
    "_pin_memory", "special_", "histc", "bincount", "_local_scalar", "renorm", "_ctc_loss", "polygamma", "digamma",
    "lgamma", "quantize", "fake_quantize", "_fake_quantize", "_scaled_mm", "bernoulli", "_nested", "_jagged", "atan2",
    "upsample_nearest", "_upsample_nearest", "rand", "normal", "uniform", "sort", "unique", "_trilinear", "frexp",
)  # fmt: skip
"""Operators that compute nothing, draw, decide between neighbours by a rounded number, or have no bound here."""


def has_bound(title: str) -> bool:
    """Whether anything can be said about this operator. One that cannot be bounded is never held against a device."""
    if title == "linalg_vector_norm":
        return True
    return not title.startswith(SKIPPED) and "_nearest" not in title


def is_linear(title: str) -> bool:
    """Products and sums: linear in each of their tensors."""
    return title in MATMULS | CONVOLUTIONS | GATHERS | SUMS or title.startswith(POOLS)


def chain(terms: float) -> float:
    """The longest chain of additions in a sum of so many terms."""
    return min(terms, IN_A_ROW + 8 * math.sqrt(terms))


def gamma(roundings: float, unit: float) -> float:
    share = roundings * unit
    return share / (1 - share) if share < 0.5 else math.inf


def allowed(case: Case, right: list[Tensor | None]) -> list[Tensor | None]:
    """The largest distance from `right` that roundings explain, for each element of each output."""
    if is_linear(case.title):
        limits = _of_sums(case, right)
    else:
        limits = _of_moves(case, right)
        _add_statistics(case, limits)
        _add_softmax(case, limits)
        _add_batch_sums(case, limits)
        _add_row_sums(case, limits)
        _add_attention(case, limits)
    return [
        limit + _stored(case, number, answer) if limit is not None and answer is not None else None
        for number, (limit, answer) in enumerate(zip(limits, right, strict=True))
    ]


def _inputs(case: Case) -> list[Tensor]:
    return [each for each in case.tensors if each.is_floating_point()]


def _unit(case: Case) -> float:
    """Of the arithmetic inside: devices compute narrow formats in fp32."""
    dtypes = {each.dtype for each in [*_inputs(case), *case.outputs.values()] if each.is_floating_point()}
    return UNIT[torch.float64] if dtypes == {torch.float64} else UNIT[torch.float32]


def _narrow(case: Case) -> float:
    """Of the coarsest format among inputs and outputs."""
    units = [UNIT[each.dtype] for each in [*_inputs(case), *case.outputs.values()] if each.dtype in UNIT]
    return max(units, default=UNIT[torch.float32])


def _stored(case: Case, number: int, right: Tensor) -> Tensor:
    """The result is rounded to its format; the smallest numbers of a format may be taken for zero."""
    out = case.outputs.get(number)
    if out is None or out.dtype not in UNIT:
        return torch.zeros_like(right)
    smallest = 2.0**-24 if out.dtype == torch.float16 else torch.finfo(out.dtype).tiny
    return right.abs() * (2 * UNIT[out.dtype]) + smallest


# Sums -----------------------------------------------------------------------------------------------------------------


def _of_sums(case: Case, right: list[Tensor | None]) -> list[Tensor | None]:
    unit, narrow = _unit(case), _narrow(case)
    magnitudes = reference.compute(_positive(case), [_magnitude(each) for each in case.tensors], exact=True)
    terms = _terms(case, right)
    flushed = _flushed(case)
    limits: list[Tensor | None] = []
    for number, sizes in enumerate(magnitudes):
        if sizes is None or right[number] is None:
            limits.append(None)
            continue
        adding = narrow if case.title in GATHERS or _overlaps(case.title) else unit
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


def _overlaps(title: str) -> bool:
    """Windows that overlap: their gradients may be added up in the format of the result."""
    return title.startswith(POOLS) and title.endswith("backward")


def _flushed(case: Case) -> list[Tensor | None] | None:
    """Some units for products take the smallest numbers of fp16 for zero: what they would have contributed."""
    if case.title not in MATMULS | CONVOLUTIONS or all(each.dtype != torch.float16 for each in _inputs(case)):
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
    """Winograd's and Fourier's ways mix neighbours: their roundings are those of the largest of a plane."""
    if number == 2 or sizes.dim() < 3 or max(_kernel(case)) < 2:
        return 0.0
    plane = sizes.amax(dim=tuple(range(2, sizes.dim())), keepdim=True).expand_as(sizes)
    products = PRODUCTS[case.precision] if narrow == UNIT[torch.float32] else 0.0
    return plane * (WINOGRAD * narrow + 2 * products)


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
    if _overlaps(case.title):
        return [float(OVERLAPS)] * len(right)
    return [most / max(1, each.numel()) + 64 if each is not None else 1.0 for each in right]


# The rest -------------------------------------------------------------------------------------------------------------


def _of_moves(case: Case, right: list[Tensor | None]) -> list[Tensor | None]:
    """The operator on inputs that are off by one rounding, several times."""
    unit = _unit(case)
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


def pointwise(case: Case) -> bool:
    tags = operator(case.name, case.overload).tags
    return torch.Tag.pointwise in tags or case.title in ("_to_copy", "clone", "copy_")


def _add_statistics(case: Case, limits: list[Tensor | None]) -> None:
    """A variance may be the difference of two squares: what lies far from zero loses more."""
    over = _normalised_over(case)
    if over is None or limits[0] is None:
        return
    x = _grouped(case, case.tensors[0].double())
    square, mean = x.square().mean(over, keepdim=True), x.mean(over, keepdim=True)
    spread = (square - mean.square()).clamp_min(0.0)
    terms = x.numel() / square.numel()
    given = reference.named(case, case.args, case.kwargs)
    eps = float(given.get("eps", given.get("epsilon", 1e-5)))
    share = (chain(terms) + STEPS) * _unit(case) * (square / (spread + eps))
    size = (x - mean).abs() / (spread + eps).sqrt() + mean.abs() / (spread + eps).sqrt() * share.clamp_max(1.0)
    extra = (size * share).reshape(case.tensors[0].shape)
    place = given.get("weight")
    weight = case.tensors[place.number].double().abs() if isinstance(place, Slot) else None
    if weight is not None and case.title != "native_layer_norm":
        weight = weight.reshape(1, -1, *([1] * (extra.dim() - 2)))
    limits[0] = limits[0] + (extra if weight is None else extra * weight)
    deviation = (spread + eps).sqrt()
    kept = {1: (chain(terms) + STEPS) * _unit(case) * x.abs().mean(over, keepdim=True), 2: share / deviation}
    for number, more in kept.items():  # the statistics that backward uses: the mean, and one over the deviation
        limit = limits[number] if number < len(limits) else None
        if limit is not None and limit.numel() == more.numel():
            limits[number] = limit + more.reshape(limit.shape)


def _add_softmax(case: Case, limits: list[Tensor | None]) -> None:
    """By definition: a difference from the largest, a sum, its logarithm; in backward a sum over the row."""
    if limits[0] is None or not case.title.startswith(("_softmax", "_log_softmax")):
        return
    given = reference.named(case, filled(case.args, doubled(case.tensors)), filled(case.kwargs, doubled(case.tensors)))
    dim = int(given["dim"])
    if case.title.endswith("backward_data"):
        grad, out = given["grad_output"].abs(), given["output"]
        log = case.title.startswith("_log")
        weight = out.exp() if log else out.abs()
        inner = grad.sum(dim, keepdim=True) if log else (grad * weight).sum(dim, keepdim=True)
        size = grad + weight * inner * (1.0 + out.abs()) if log else weight * (grad + inner)
    else:
        x = given["self"]
        away = (x - x.amax(dim, keepdim=True)).abs()
        total = away.neg().exp().sum(dim, keepdim=True)
        size = away + total.log() + 1.0 if case.title.startswith("_log") else (1.0 + away) * away.neg().exp() / total
    roundings = chain(float(given["self" if "self" in given else "output"].shape[dim])) + STEPS
    limits[0] = limits[0] + size * (roundings * _unit(case))


def _add_batch_sums(case: Case, limits: list[Tensor | None]) -> None:
    """Batch normalisation in backward keeps two sums for each channel, in some kernels in the format of its inputs."""
    if not case.title.endswith("batch_norm_backward"):
        return
    given = reference.named(case, filled(case.args, doubled(case.tensors)), filled(case.kwargs, doubled(case.tensors)))
    grad = next(given[name] for name in ("grad_output", "grad_out") if given.get(name) is not None).abs()
    x, over = given["input"], (0, *range(2, grad.dim()))
    square, mean = x.square().mean(over, keepdim=True), x.mean(over, keepdim=True)
    scale = (square - mean.square() + float(given.get("eps", given.get("epsilon", 1e-5)))).clamp_min(1e-30).rsqrt()
    size = (x - mean).abs() * scale
    sums, products = grad.sum(over, keepdim=True), (grad * size).sum(over, keepdim=True)
    count = x.numel() / sums.numel()
    weight = given.get("weight")
    weight = 1.0 if weight is None else weight.abs().reshape(sums.shape)
    shifted = size + mean.abs() * scale  # what lies far from zero is rounded before the mean is taken away
    inner = (grad + (sums + shifted * products) / count) * scale * weight
    _add_rough(case, limits, [inner, (grad * shifted).sum(over), sums.flatten()], count)


def _add_rough(case: Case, limits: list[Tensor | None], rough: list[Tensor], terms: float) -> None:
    """On a device a sum is rounded once when it is kept; kernels of the CPU may add up in the narrow format."""
    times = chain(terms) if case.device.partition(":")[0] in ("cpu", "pretend") else 2.0
    share = (chain(terms) + STEPS) * _unit(case)
    share += times * _narrow(case) if _narrow(case) > UNIT[torch.float32] else 0.0
    for number, more in enumerate(rough):
        limit = limits[number] if number < len(limits) else None
        if limit is not None and limit.numel() == more.numel():
            limits[number] = limit + (more * share).reshape(limit.shape)


def _add_row_sums(case: Case, limits: list[Tensor | None]) -> None:
    """The same for normalisation over rows: the gradients of weight and bias add up all rows."""
    if case.title != "native_layer_norm_backward":
        return
    given = reference.named(case, filled(case.args, doubled(case.tensors)), filled(case.kwargs, doubled(case.tensors)))
    grad, rows = given["grad_out"].abs(), tuple(range(given["input"].dim() - len(given["normalized_shape"])))
    size = (given["input"] - given["mean"]).abs() * given["rstd"] + given["mean"].abs() * given["rstd"]
    over = tuple(range(len(rows), grad.dim()))
    weight = 1.0 if given.get("weight") is None else given["weight"].abs()
    mine = grad * weight
    inner = mine + mine.mean(over, keepdim=True) + size * (mine * size).mean(over, keepdim=True)
    products, sums = ((grad * size).sum(rows), grad.sum(rows)) if rows else (grad * size, grad)
    terms = max(sums.numel(), grad.numel() / max(1, sums.numel()))
    _add_rough(case, limits, [inner * given["rstd"], products, sums], float(terms))


def _normalised_over(case: Case) -> tuple[int, ...] | None:
    dims = case.tensors[0].dim() if case.tensors else 0
    if case.title == "native_layer_norm":
        return tuple(range(dims - len(_given(case, "normalized_shape")), dims))
    if case.title == "native_group_norm":
        return (2,)
    batch = ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm")
    if case.title in (*batch, "_batch_norm_with_update"):
        training = reference.named(case, case.args, case.kwargs).get("training", True)
        return (0, *range(2, dims)) if training else None
    return None


def _given(case: Case, name: str) -> Any:
    return reference.named(case, case.args, case.kwargs)[name]


def _grouped(case: Case, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], int(_given(case, "group")), -1) if case.title == "native_group_norm" else x


def _add_attention(case: Case, limits: list[Tensor | None]) -> None:
    """Weights, and in backward their gradients, are rounded to the format of the inputs before they are multiplied."""
    if not case.title.startswith("_scaled_dot_product"):
        return
    given = reference.named(case, filled(case.args, doubled(case.tensors)), filled(case.kwargs, doubled(case.tensors)))
    query, shared = given["query"], given["key"]
    key, value = reference.repeated(shared, query), reference.repeated(given["value"], query)
    found, scale = reference.scores(given)
    weights = found.softmax(-1)
    unit = _unit(case)
    narrow = max(_narrow(case), PRODUCTS[case.precision])
    sizes = query.abs() @ key.abs().transpose(-1, -2) * scale
    inner = (chain(query.shape[-1]) + STEPS) * unit + (2 * PRODUCTS[case.precision])
    loose = weights * (4 * narrow + inner * sizes + (inner * sizes * weights).sum(-1, keepdim=True))
    if not case.title.endswith("backward"):
        extra = [loose @ value.abs()]
    else:
        grad: Tensor = given["grad_out" if "grad_out" in given else "grad_out_"]
        change = grad.abs() @ value.abs().transpose(-1, -2) + (grad.abs() * given["out"].abs()).sum(-1, keepdim=True)
        rough = loose * change + weights * change * (8 * narrow + inner)
        answers = (rough.transpose(-1, -2) @ query.abs() * scale, loose.transpose(-1, -2) @ grad.abs())
        extra = [rough @ key.abs() * scale, *(reference.gathered(each, shared) for each in answers)]
    for number, more in enumerate(extra):
        if number < len(limits) and limits[number] is not None:
            limits[number] = limits[number] + more


__all__ = ["Unknown", "allowed", "has_bound", "is_linear", "pointwise"]
