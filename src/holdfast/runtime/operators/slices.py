"""A part of a large operator that can be computed by itself: some rows and columns, samples, channels, heads.

    part = cut("mm", {"self": left, "mat2": right}, order, limits)   # None: too large, and it cannot be cut
    part.arguments                                                   # the same operator, smaller
    part.outputs(out)                                                # {0: what belongs to it of the result}

Rows are taken with a start and a step that change from look to look: neighbours once, far apart another time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast.runtime.operators import bounds

LONG = 16
"""Times the usual work that the gradients of keys and values may take: they add up over the whole sequence."""
LARGEST = 8
"""Times the usual size that a part may have which cannot be made smaller."""
Arguments = dict[str, Any]
Outputs = Callable[[list[Any]], dict[int, Tensor]]


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


def cut(title: str, given: Arguments, chance: random.Random, limits: Limits, *, pointwise: bool) -> Part | None:
    """The whole if it is small; a part if there is a way to take one; else nothing."""
    tensors = _tensors(given)
    if pointwise:
        count = math.prod(_broadcast(tensors))
        return _of_elements(given, chance, limits) if count > limits.elements else _whole(given)
    size = sum(each.numel() * each.element_size() for each in tensors)
    if size <= limits.bytes and _work(title, given) <= limits.work:
        return _whole(given)
    way = next((way for names, way in _WAYS if title in names), None)
    way = way or next((way for start, way in _BEGINNINGS if title.startswith(start)), None)
    part = way(given, chance, limits) if way is not None else None
    if part is None:
        return None
    size = sum(each.numel() * each.element_size() for each in _tensors(part.arguments))
    most = limits.work * (LONG if title.startswith("_scaled_dot_product") else 4)
    return part if size <= LARGEST * limits.bytes and _work(title, part.arguments) <= most else None


def _whole(given: Arguments) -> Part:
    return Part(given, lambda out: {n: each for n, each in enumerate(out) if isinstance(each, Tensor)}, whole=True)


def _tensors(given: Arguments) -> list[Tensor]:
    found: list[Tensor] = []
    for value in given.values():
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, Tensor):
                found.append(each)
    return found


def _broadcast(tensors: list[Tensor]) -> list[int]:
    sizes = [1] * max((each.dim() for each in tensors), default=0)
    for each in tensors:
        for number, size in enumerate(reversed(each.shape), 1):
            sizes[-number] = max(sizes[-number], size)
    return sizes


def _work(title: str, given: Arguments) -> int:
    """Products, roughly."""
    if title in bounds.MATMULS:
        shapes = [each.shape for each in _tensors(given)]
        left, right = shapes[-2], shapes[-1]
        return math.prod(left) * (right[-1] if len(right) > 1 else 1)
    if title in bounds.CONVOLUTIONS:
        x: Tensor = given["grad_output" if "grad_output" in given else "input"]
        weight = given["weight"]
        places = max(math.prod(x.shape[2:]), math.prod(given["input"].shape[2:]))
        mask = sum(given.get("output_mask", [True])[:2]) or 1
        return int(x.shape[0] * places * weight.numel() * mask)
    if title.startswith("_scaled_dot_product"):
        query, key = given["query"], given["key"]
        return int(4 * query.numel() * key.shape[-2])
    return 0


def _some(size: int, most: int, chance: random.Random) -> slice:
    """At most so many of a dimension."""
    if size <= most:
        return slice(None)
    step = chance.randint(1, size // most)
    start = chance.randint(0, size - 1 - step * (most - 1))
    return slice(start, start + step * (most - 1) + 1, step)


def _at(tensor: Any, dim: int, where: slice) -> Any:
    if not isinstance(tensor, Tensor) or tensor.dim() == 0 or tensor.shape[dim] == 1:
        return tensor
    return tensor[(slice(None),) * (dim % tensor.dim()) + (where,)]


# Elements -------------------------------------------------------------------------------------------------------------


def _of_elements(given: Arguments, chance: random.Random, limits: Limits) -> Part:
    sizes = _broadcast(_tensors(given))
    wheres, left = [slice(None)] * len(sizes), math.prod(sizes)
    for dim in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        if left <= limits.elements:
            break
        most = max(1, limits.elements * sizes[dim] // left)
        most = max(most, min(sizes[dim], 64))
        wheres[dim] = _some(sizes[dim], most, chance)
        left = left // sizes[dim] * most

    def picked(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
            return [picked(each) for each in value]
        if not isinstance(value, Tensor):
            return value
        for dim in range(1, value.dim() + 1):
            value = _at(value, -dim, wheres[-dim])
        return value

    chosen = {name: picked(value) for name, value in given.items()}
    return Part(chosen, lambda out: {n: picked(each) for n, each in enumerate(out) if isinstance(each, Tensor)})


# Products -------------------------------------------------------------------------------------------------------------


def _of_product(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Rows of the left, columns of the right; of several products, some."""
    names = [name for name in ("self", "mat1", "batch1") if isinstance(given.get(name), Tensor)]
    left_name = names[-1]
    right_name = next(name for name in ("mat2", "batch2") if name in given)
    left, right = given[left_name], given[right_name]
    inner = left.shape[-1]
    most = max(4, min(64, limits.bytes // (2 * inner * left.element_size()), math.isqrt(max(1, limits.work // inner))))
    count = 1 if left.dim() == 2 else max(1, min(left.shape[0], 64 // most + 1))
    which = _some(left.shape[0], count, chance) if left.dim() == 3 else slice(None)
    rows, columns = _some(left.shape[-2], most, chance), _some(right.shape[-1], most, chance)

    def of(tensor: Tensor, *, row: bool, column: bool) -> Tensor:
        tensor = _at(tensor, 0, which) if tensor.dim() == 3 else tensor
        tensor = _at(tensor, -2, rows) if row and tensor.dim() > 1 else tensor
        return _at(tensor, -1, columns) if column else tensor

    chosen = {**given, left_name: of(left, row=True, column=False), right_name: of(right, row=False, column=True)}
    if left_name != "self" and isinstance(given.get("self"), Tensor):
        chosen["self"] = of(given["self"], row=True, column=True)
    return Part(chosen, lambda out: {0: of(out[0], row=True, column=True)})


# Convolutions ---------------------------------------------------------------------------------------------------------


def _of_convolution(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Some samples and output channels; of one with groups, one group."""
    given = _one_group(given, chance) if given["groups"] > 1 else given
    picked = given.pop("_group", slice(None))
    which = _some(given["input"].shape[0], _samples(given["input"], limits), chance)
    x, weight = given["input"][which], given["weight"]
    given = {**given, "input": x}
    dim = 1 if given["transposed"] else 0
    most = int(weight.shape[dim] * limits.work / max(1, _work("convolution", given)))
    most = max(1, min(most, _that_fit(weight, dim, limits)))
    channels = _some(weight.shape[dim], most, chance)
    chosen = {**given, "weight": _at(weight, dim, channels)}
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


def _of_convolution_backward(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
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
        which = _some(given["input"].shape[0], _samples(given["input"], limits), chance)
        chosen = {**given, "grad_output": given["grad_output"][which], "input": given["input"][which]}
        chosen["output_mask"] = [True, False, False]
        channels = slice(None)
        if not grouped:
            share = limits.work / max(1, _work("convolution_backward", chosen))
            dim = 0 if transposed else 1
            most = min(int(given["input"].shape[1] * share), _that_fit(given["weight"], dim, limits))
            channels = _some(given["input"].shape[1], max(1, most), chance)
            chosen["input"] = chosen["input"][:, channels]
            chosen["weight"] = _at(given["weight"], dim, channels)
        return Part(chosen, lambda out: {0: out[0][which][:, ins][:, channels]})
    outer, inner = slice(None), slice(None)
    if not grouped:
        x, grad = given["input"], given["grad_output"]
        outer, inner = (_some(each.shape[1], _channels(each, limits), chance) for each in (grad, x))
        given["input"], given["grad_output"] = x[:, inner], grad[:, outer]
        first, second = (inner, outer) if transposed else (outer, inner)
        given["weight"] = _at(_at(given["weight"], 0, first), 1, second)
    else:
        first, second = slice(None), slice(None)
    chosen = {**given, "output_mask": [False, True, False]}
    return Part(chosen, lambda out: {1: _at(_at(out[1][rows], 0, first), 1, second)})


def _samples(x: Tensor, limits: Limits) -> int:
    """As many as asked for, if they fit."""
    fit = int(x.shape[0] * limits.bytes / max(1, x.numel() * x.element_size()))
    return max(1, min(limits.samples, fit))


def _that_fit(tensor: Tensor, dim: int, limits: Limits) -> int:
    return int(tensor.shape[dim] * limits.bytes / max(1, 2 * tensor.numel() * tensor.element_size()))


def _channels(tensor: Tensor, limits: Limits) -> int:
    each = max(1, tensor.numel() // tensor.shape[1] * tensor.element_size())
    return max(1, min(8, limits.bytes // (2 * each)))


# Rows, channels, heads ------------------------------------------------------------------------------------------------


def _rows_that_fit(given: Arguments, size: int, limits: Limits) -> int:
    total = sum(each.numel() * each.element_size() for each in _tensors(given))
    return max(1, int(size * limits.bytes / max(1, total)))


def _leading(names: tuple[str, ...], given: Arguments, chance: random.Random, limits: Limits, **more: Any) -> Part:
    """Some of the first dimension of the named tensors, and of every output."""
    size = given[names[0]].shape[0]
    where = _some(size, _rows_that_fit({n: given[n] for n in names if n in given}, size, limits), chance)
    chosen = {**given, **{name: _at(given[name], 0, where) for name in names if name in given}, **more}
    outputs = more.pop("_outputs", None)

    def of(out: list[Any]) -> dict[int, Tensor]:
        wanted = range(len(out)) if outputs is None else outputs
        return {n: _at(out[n], 0, where) for n in wanted if isinstance(out[n], Tensor)}

    chosen.pop("_outputs", None)
    return Part(chosen, of)


def _of_softmax(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    names = ("self",) if "self" in given else ("grad_output", "output")
    dims = given[names[0]].dim()
    return None if given["dim"] % dims == 0 else _leading(names, given, chance, limits)


def _of_layer_norm(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    backward = "grad_out" in given
    if given["input"].dim() <= len(given["normalized_shape"]):
        return None
    if not backward:
        return _leading(("input",), given, chance, limits)
    if not given["output_mask"][0]:
        return None
    names = ("grad_out", "input", "mean", "rstd")
    return _leading(names, given, chance, limits, output_mask=[True, False, False], _outputs=[0])


def _of_group_norm(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    backward = "grad_out" in given
    if backward and not given["output_mask"][0]:
        return None
    names = ("grad_out", "input", "mean", "rstd") if backward else ("input",)
    more: dict[str, Any] = {"output_mask": [True, False, False], "_outputs": [0]} if backward else {}
    part = _leading(names, given, chance, limits, **more)
    part.arguments["N"] = part.arguments["input"].shape[0]
    return part


def _of_channels(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Batch normalisation: every channel is by itself."""
    size = given["input"].shape[1]
    where = _some(size, _rows_that_fit(given, size, limits), chance)

    def of(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value[:, where] if value.dim() > 1 else value[where] if value.shape[0] == size else value

    chosen = {name: of(value) for name, value in given.items() if not name.startswith("reserve")}
    chosen |= {name: value[:0] for name, value in given.items() if name.startswith("reserve")}  # bytes of a library
    return Part(chosen, lambda out: {n: of(out[n]) for n in range(min(3, len(out))) if isinstance(out[n], Tensor)})


def _of_attention(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """One head of one sample. Where its sequence is long, some places that ask, of all that answer."""
    query, key = given["query"], given["key"]
    backward = "grad_out" in given or "grad_out_" in given
    where, shared = _some(query.shape[0], 1, chance), max(1, query.shape[1] // max(1, key.shape[1]))
    head = chance.randrange(key.shape[1])
    heads = {key.shape[1]: slice(head, head + 1), query.shape[1]: slice(head * shared, (head + 1) * shared)}

    def of(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 3:
            return value
        value = _at(value, 0, where)
        return value[:, heads[value.shape[1]]] if value.shape[1] in heads and value.shape[1] > 1 else value

    chosen = {name: of(value) for name, value in given.items()}
    whole = backward and chance.random() < 0.25 and _work("_scaled_dot_product", chosen) <= LONG * limits.work
    if whole or _work("_scaled_dot_product", chosen) <= limits.work:
        count = 3 if backward else 1
        return Part(chosen, lambda out: {n: of(out[n]) for n in range(count) if isinstance(out[n], Tensor)})
    each = max(1, 4 * shared * query.shape[-1] * key.shape[-2])
    asking = _some(query.shape[-2], max(1, limits.work // each), chance)
    for name in ("query", "out", "grad_out", "grad_out_", "attn_bias", "attn_mask"):
        if isinstance(chosen.get(name), Tensor):
            chosen[name] = _at(chosen[name], -2, asking)
    chosen["rows"] = [asking.start or 0, asking.step or 1]
    return Part(chosen, lambda out: {0: _at(of(out[0]), -2, asking)} if isinstance(out[0], Tensor) else {})


def _of_planes(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Pools and changes of size: every sample and every channel is by itself."""
    tensors = [each for each in _tensors(given) if each.dim() >= 3]
    dims = tensors[0].dim()
    samples = _some(tensors[0].shape[0], limits.samples, chance)
    channels = _some(tensors[0].shape[1], 16, chance) if dims >= 4 else slice(None)

    def of(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() != dims:
            return value
        return _at(_at(value, 0, samples), 1, channels) if dims >= 4 else _at(value, 0, samples)

    chosen = {name: of(value) for name, value in given.items()}
    if "input_size" in chosen:
        like = of(tensors[0])
        chosen["input_size"] = [*like.shape[:2], *given["input_size"][2:]]
    return Part(chosen, lambda out: {n: of(each) for n, each in enumerate(out) if isinstance(each, Tensor)})


def _of_embedding(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Some of the numbers of every word."""
    name = "weight" if "weight" in given else "grad_output"
    size = given[name].shape[-1]
    where = _some(size, min(8, _rows_that_fit({name: given[name]}, size, limits)), chance)
    return Part({**given, name: _at(given[name], -1, where)}, lambda out: {0: _at(out[0], -1, where)})


def _of_sum(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Along a dimension that is not added up."""
    x, dims = given["self"], given.get("dim")
    if not dims:
        return None
    gone = {dim % x.dim() for dim in dims}
    kept = next((dim for dim in (0, x.dim() - 1) if dim not in gone), None)
    if kept is None:
        return None
    where = _some(x.shape[kept], _rows_that_fit({"x": x}, x.shape[kept], limits), chance)
    place = 0 if kept == 0 else -1
    return Part({**given, "self": _at(x, kept, where)}, lambda out: {0: _at(out[0], place, where)})


Way = Callable[[Arguments, random.Random, Limits], "Part | None"]
_WAYS: list[tuple[tuple[str, ...], Way]] = [
    (("mm", "addmm", "bmm", "baddbmm"), _of_product),
    (("convolution",), _of_convolution),
    (("convolution_backward",), _of_convolution_backward),
    (("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), _of_softmax),
    (("native_layer_norm", "native_layer_norm_backward"), _of_layer_norm),
    (("native_group_norm", "native_group_norm_backward"), _of_group_norm),
    (("embedding", "embedding_dense_backward"), _of_embedding),
    (("sum", "mean"), _of_sum),
    (
        ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm",
         "_batch_norm_with_update", "native_batch_norm_backward", "cudnn_batch_norm_backward",
         "miopen_batch_norm_backward", "batch_norm_backward"),
        _of_channels,
    ),
]  # fmt: skip
_BEGINNINGS: list[tuple[str, Way]] = [
    ("_scaled_dot_product", _of_attention),
    *((name, _of_planes) for name in bounds.POOLS),
]
