"""What normalisation and softmax round in between, by their definition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.worker.operators import reference
from holdfast.worker.operators.case import Case, Slot, filled
from holdfast.worker.operators.reference import doubled
from holdfast.worker.operators.roundings import STEPS, UNIT, chain, narrowest, unit_of


def add_statistics(case: Case, limits: list[Tensor | None]) -> None:
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
    share = (chain(terms) + STEPS) * unit_of(case) * (square / (spread + eps))
    size = (x - mean).abs() / (spread + eps).sqrt() + mean.abs() / (spread + eps).sqrt() * share.clamp_max(1.0)
    extra = (size * share).reshape(case.tensors[0].shape)
    place = given.get("weight")
    weight = case.tensors[place.number].double().abs() if isinstance(place, Slot) else None
    if weight is not None and case.title != "native_layer_norm":
        weight = weight.reshape(1, -1, *([1] * (extra.dim() - 2)))
    limits[0] = limits[0] + (extra if weight is None else extra * weight)
    deviation = (spread + eps).sqrt()
    kept = {1: (chain(terms) + STEPS) * unit_of(case) * x.abs().mean(over, keepdim=True), 2: share / deviation}
    for number, more in kept.items():  # the statistics that backward uses: the mean, and one over the deviation
        limit = limits[number] if number < len(limits) else None
        if limit is not None and limit.numel() == more.numel():
            limits[number] = limit + more.reshape(limit.shape)


def add_softmax(case: Case, limits: list[Tensor | None]) -> None:
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
    limits[0] = limits[0] + size * (roundings * unit_of(case))


def add_batch_sums(case: Case, limits: list[Tensor | None]) -> None:
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
    share = (chain(terms) + STEPS) * unit_of(case)
    share += times * narrowest(case) if narrowest(case) > UNIT[torch.float32] else 0.0
    for number, more in enumerate(rough):
        limit = limits[number] if number < len(limits) else None
        if limit is not None and limit.numel() == more.numel():
            limits[number] = limit + (more * share).reshape(limit.shape)


def add_row_sums(case: Case, limits: list[Tensor | None]) -> None:
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
