"""A part of a matrix product or a convolution: rows and columns, samples and channels."""

from __future__ import annotations

import math
import random

from torch import Tensor

from holdfast.worker.operators.parts import Arguments, Limits, Part, at, some_of, work_of


def of_product(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Rows of the left, columns of the right; of several products, some."""
    names = [name for name in ("self", "mat1", "batch1") if isinstance(given.get(name), Tensor)]
    left_name = names[-1]
    right_name = next(name for name in ("mat2", "batch2") if name in given)
    left, right = given[left_name], given[right_name]
    inner = left.shape[-1]
    most = max(4, min(64, limits.bytes // (2 * inner * left.element_size()), math.isqrt(max(1, limits.work // inner))))
    count = 1 if left.dim() == 2 else max(1, min(left.shape[0], 64 // most + 1))
    which = some_of(left.shape[0], count, chance) if left.dim() == 3 else slice(None)
    rows, columns = some_of(left.shape[-2], most, chance), some_of(right.shape[-1], most, chance)

    def of(tensor: Tensor, *, row: bool, column: bool) -> Tensor:
        tensor = at(tensor, 0, which) if tensor.dim() == 3 else tensor
        tensor = at(tensor, -2, rows) if row and tensor.dim() > 1 else tensor
        return at(tensor, -1, columns) if column else tensor

    chosen = {**given, left_name: of(left, row=True, column=False), right_name: of(right, row=False, column=True)}
    if left_name != "self" and isinstance(given.get("self"), Tensor):
        chosen["self"] = of(given["self"], row=True, column=True)
    return Part(chosen, lambda out: {0: of(out[0], row=True, column=True)})


def of_convolution(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Some samples and output channels; of one with groups, one group."""
    given = _one_group(given, chance) if given["groups"] > 1 else given
    given = {**given}
    picked = given.pop("_group", slice(None))
    for name in ("_ins", "_rows"):
        given.pop(name, None)
    which = some_of(given["input"].shape[0], _samples(given["input"], limits), chance)
    x, weight = given["input"][which], given["weight"]
    given = {**given, "input": x}
    dim = 1 if given["transposed"] else 0
    most = int(weight.shape[dim] * limits.work / max(1, work_of("convolution", given)))
    most = max(1, min(most, _that_fit(weight, dim, limits)))
    channels = some_of(weight.shape[dim], most, chance)
    chosen = {**given, "weight": at(weight, dim, channels)}
    if isinstance(given.get("bias"), Tensor):
        chosen["bias"] = given["bias"][channels]
    return Part(chosen, lambda out: {0: out[0][which][:, picked][:, channels]})


def _one_group(given: Arguments, chance: random.Random) -> Arguments:
    """Alone it is a convolution without groups. Where there are many, the channels of several in a row."""
    groups, weight, x = given["groups"], given["weight"], given["input"]
    count = min(groups, 8)
    first = chance.randint(0, groups - count)
    ins, rows = x.shape[1] // groups, weight.shape[0] // groups
    outs = weight.shape[1] if given["transposed"] else rows
    picked = slice(first * outs, (first + count) * outs)
    chosen = {
        **given,
        "input": x[:, first * ins : (first + count) * ins],
        "weight": weight[first * rows : (first + count) * rows],
        "groups": count,
        "_group": picked,
        "_ins": slice(first * ins, (first + count) * ins),
        "_rows": slice(first * rows, (first + count) * rows),
    }
    for name in ("bias",):
        if isinstance(given.get(name), Tensor):
            chosen[name] = given[name][picked]
    if isinstance(given.get("grad_output"), Tensor):
        chosen["grad_output"] = given["grad_output"][:, picked]
    return chosen


def of_convolution_backward(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """The gradient of some samples' input, or of some channels' weights: one of them each time."""
    mask = list(given["output_mask"])
    of_input = mask[0] and (chance.random() < 0.5 or not mask[1])
    if not (mask[0] or mask[1]):
        return None
    whole = given
    given = _one_group(given, chance) if given["groups"] > 1 else dict(given)
    ins, rows = given.pop("_ins", slice(None)), given.pop("_rows", slice(None))
    given.pop("_group", None)
    transposed, grouped = given["transposed"], whole["groups"] > 1
    if of_input:
        which = some_of(given["input"].shape[0], _samples(given["input"], limits), chance)
        chosen = {**given, "grad_output": given["grad_output"][which], "input": given["input"][which]}
        chosen["output_mask"] = [True, False, False]
        channels = slice(None)
        if not grouped:
            share = limits.work / max(1, work_of("convolution_backward", chosen))
            dim = 0 if transposed else 1
            most = min(int(given["input"].shape[1] * share), _that_fit(given["weight"], dim, limits))
            channels = some_of(given["input"].shape[1], max(1, most), chance)
            chosen["input"] = chosen["input"][:, channels]
            chosen["weight"] = at(given["weight"], dim, channels)
        return Part(chosen, lambda out: {0: out[0][which][:, ins][:, channels]})
    outer, inner = slice(None), slice(None)
    if not grouped:
        x, grad = given["input"], given["grad_output"]
        outer, inner = (some_of(each.shape[1], _channels(each, limits), chance) for each in (grad, x))
        given["input"], given["grad_output"] = x[:, inner], grad[:, outer]
        first, second = (inner, outer) if transposed else (outer, inner)
        given["weight"] = at(at(given["weight"], 0, first), 1, second)
    else:
        first, second = slice(None), slice(None)
    chosen = {**given, "output_mask": [False, True, False]}
    return Part(chosen, lambda out: {1: at(at(out[1][rows], 0, first), 1, second)})


def _samples(x: Tensor, limits: Limits) -> int:
    """As many as asked for, if they fit."""
    fit = int(x.shape[0] * limits.bytes / max(1, x.numel() * x.element_size()))
    return max(1, min(limits.samples, fit))


def _that_fit(tensor: Tensor, dim: int, limits: Limits) -> int:
    return int(tensor.shape[dim] * limits.bytes / max(1, 2 * tensor.numel() * tensor.element_size()))


def _channels(tensor: Tensor, limits: Limits) -> int:
    each = max(1, tensor.numel() // tensor.shape[1] * tensor.element_size())
    return max(1, min(8, limits.bytes // (2 * each)))
