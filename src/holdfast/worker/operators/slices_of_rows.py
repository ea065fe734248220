"""A part of an operator whose rows, channels, planes or heads are each by themselves."""

from __future__ import annotations

import random
from typing import Any

from torch import Tensor

from holdfast.worker.operators.parts import LONG, Arguments, Limits, Part, at, some_of, tensors_of, work_of


def _rows_that_fit(given: Arguments, size: int, limits: Limits) -> int:
    total = sum(each.numel() * each.element_size() for each in tensors_of(given))
    return max(1, int(size * limits.bytes / max(1, total)))


def _leading(names: tuple[str, ...], given: Arguments, chance: random.Random, limits: Limits, **more: Any) -> Part:
    """Some of the first dimension of the named tensors, and of every output."""
    size = given[names[0]].shape[0]
    where = some_of(size, _rows_that_fit({n: given[n] for n in names if n in given}, size, limits), chance)
    chosen = {**given, **{name: at(given[name], 0, where) for name in names if name in given}, **more}
    outputs = more.pop("_outputs", None)

    def of(out: list[Any]) -> dict[int, Tensor]:
        wanted = range(len(out)) if outputs is None else outputs
        return {n: at(out[n], 0, where) for n in wanted if isinstance(out[n], Tensor)}

    chosen.pop("_outputs", None)
    return Part(chosen, of)


def of_softmax(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Some of every dimension but its own, the first ones first."""
    names = ("self",) if "self" in given else ("grad_output", "output")
    shape, own = given[names[0]].shape, given["dim"] % given[names[0]].dim()
    size = sum(given[name].numel() * given[name].element_size() for name in names)
    wheres = [slice(None)] * len(shape)
    for dim in (dim for dim in range(len(shape)) if dim != own):
        if size <= limits.bytes:
            break
        most = max(1, int(shape[dim] * limits.bytes / size))
        wheres[dim] = some_of(shape[dim], most, chance)
        size = size * min(most, shape[dim]) // shape[dim]
    if size > 2 * limits.bytes:
        return None
    where = tuple(wheres)
    chosen = {**given, **{name: given[name][where] for name in names}}
    return Part(chosen, lambda out: {0: out[0][where]})


def of_layer_norm(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    backward = "grad_out" in given
    if given["input"].dim() <= len(given["normalized_shape"]):
        return None
    if not backward:
        return _leading(("input",), given, chance, limits)
    if not given["output_mask"][0]:
        return None
    names = ("grad_out", "input", "mean", "rstd")
    return _leading(names, given, chance, limits, output_mask=[True, False, False], _outputs=[0])


def of_group_norm(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    backward = "grad_out" in given
    if backward and not given["output_mask"][0]:
        return None
    names = ("grad_out", "input", "mean", "rstd") if backward else ("input",)
    more: dict[str, Any] = {"output_mask": [True, False, False], "_outputs": [0]} if backward else {}
    part = _leading(names, given, chance, limits, **more)
    part.arguments["N"] = part.arguments["input"].shape[0]
    return part


def of_channels(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Batch normalisation: every channel is by itself."""
    size = given["input"].shape[1]
    where = some_of(size, _rows_that_fit(given, size, limits), chance)

    def of(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value[:, where] if value.dim() > 1 else value[where] if value.shape[0] == size else value

    chosen = {name: of(value) for name, value in given.items() if not name.startswith("reserve")}
    chosen |= {name: value[:0] for name, value in given.items() if name.startswith("reserve")}  # bytes of a library
    return Part(chosen, lambda out: {n: of(out[n]) for n in range(min(3, len(out))) if isinstance(out[n], Tensor)})


def of_attention(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """One head of one sample. Where its sequence is long, some places that ask, of all that answer."""
    query, key = given["query"], given["key"]
    backward = "grad_out" in given or "grad_out_" in given
    where, shared = some_of(query.shape[0], 1, chance), max(1, query.shape[1] // max(1, key.shape[1]))
    head = chance.randrange(key.shape[1])
    heads = {key.shape[1]: slice(head, head + 1), query.shape[1]: slice(head * shared, (head + 1) * shared)}

    def of(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 3:
            return value
        value = at(value, 0, where)
        return value[:, heads[value.shape[1]]] if value.shape[1] in heads and value.shape[1] > 1 else value

    chosen = {name: of(value) for name, value in given.items()}
    whole = backward and chance.random() < 0.25 and work_of("_scaled_dot_product", chosen) <= LONG * limits.work
    if whole or work_of("_scaled_dot_product", chosen) <= limits.work:
        count = 3 if backward else 1
        return Part(chosen, lambda out: {n: of(out[n]) for n in range(count) if isinstance(out[n], Tensor)})
    each = max(1, 4 * shared * query.shape[-1] * key.shape[-2])
    asking = some_of(query.shape[-2], max(1, limits.work // each), chance)
    for name in ("query", "out", "grad_out", "grad_out_", "attn_bias", "attn_mask"):
        if isinstance(chosen.get(name), Tensor):
            chosen[name] = at(chosen[name], -2, asking)
    chosen["rows"] = [asking.start or 0, asking.step or 1]
    return Part(chosen, lambda out: {0: at(of(out[0]), -2, asking)} if isinstance(out[0], Tensor) else {})


def of_planes(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Pools and changes of size: every sample and every channel is by itself."""
    tensors = [each for each in tensors_of(given) if each.dim() >= 3]
    dims = tensors[0].dim()
    samples = some_of(tensors[0].shape[0], limits.samples, chance)
    channels = some_of(tensors[0].shape[1], 16, chance) if dims >= 4 else slice(None)

    def of(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() != dims:
            return value
        return at(at(value, 0, samples), 1, channels) if dims >= 4 else at(value, 0, samples)

    chosen = {name: of(value) for name, value in given.items()}
    if "input_size" in chosen:
        like = of(tensors[0])
        chosen["input_size"] = [*like.shape[:2], *given["input_size"][2:]]
    return Part(chosen, lambda out: {n: of(each) for n, each in enumerate(out) if isinstance(each, Tensor)})


def of_embedding(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Some of the numbers of every word."""
    name = "weight" if "weight" in given else "grad_output"
    size = given[name].shape[-1]
    where = some_of(size, min(8, _rows_that_fit({name: given[name]}, size, limits)), chance)
    return Part({**given, name: at(given[name], -1, where)}, lambda out: {0: at(out[0], -1, where)})


def of_sum(given: Arguments, chance: random.Random, limits: Limits) -> Part | None:
    """Along a dimension that is not added up."""
    x, dims = given["self"], given.get("dim")
    if not dims:
        return None
    gone = {dim % x.dim() for dim in dims}
    kept = next((dim for dim in (0, x.dim() - 1) if dim not in gone), None)
    if kept is None:
        return None
    where = some_of(x.shape[kept], _rows_that_fit({"x": x}, x.shape[kept], limits), chance)
    place = 0 if kept == 0 else -1
    return Part({**given, "self": at(x, kept, where)}, lambda out: {0: at(out[0], place, where)})
