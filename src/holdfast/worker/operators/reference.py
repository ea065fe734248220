"""The right answer: an operator in fp64 on the CPU, from the inputs the device had.

    outputs = compute(case, tensors)           # a list, None where the operator gives no tensor
    right = compute(case, doubled(case.tensors), exact=True)

Operators that only a device has (batch normalisation of cuDNN, flash attention) are computed by their definition.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from holdfast.worker.operators.case import Case, filled, mapped, operator


class Unknown(Exception):
    """There is no reference for this operator."""


def doubled(tensors: list[Tensor]) -> list[Tensor]:
    return [each.double() if each.is_floating_point() else each for each in tensors]


def compute(case: Case, tensors: list[Tensor], *, exact: bool = False) -> list[Tensor | None]:
    """What the operator returns, tensor by tensor. `exact`: in fp64, whatever precision the arguments ask for."""
    copies = [each.clone() for each in tensors]
    args, kwargs = filled(case.args, copies), filled(case.kwargs, copies)
    args, kwargs = mapped(args, lambda leaf: _on_cpu(leaf, exact)), mapped(kwargs, lambda leaf: _on_cpu(leaf, exact))
    kwargs.pop("pin_memory", None)
    own = _OWN.get(case.title) or (_attention_of(case.title))
    with torch.no_grad():
        if own is not None:
            out = own(named(case, args, kwargs))
        else:
            _no_half_to_float(case, args, kwargs)
            try:
                out = operator(case.name, case.overload)(*args, **kwargs)
            except (NotImplementedError, RuntimeError) as error:
                raise Unknown(f"{case.title}: {str(error).partition(chr(10))[0][:120]}") from error
    listed = out if isinstance(out, (list, tuple)) else [out]
    return [each if isinstance(each, Tensor) else None for each in listed]


def _on_cpu(leaf: Any, exact: bool) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    if exact and isinstance(leaf, torch.dtype) and leaf.is_floating_point:
        return torch.float64
    return leaf


def _no_half_to_float(case: Case, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A softmax of fp16 with a result in fp32 exists on devices only; in fp64 there is nothing to convert."""
    if case.title in ("_softmax", "_log_softmax"):
        if len(args) == 3:
            args[2] = False
        else:
            kwargs["half_to_float"] = False


def named(case: Case, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names that the operator's schema has."""
    schema = operator(case.name, case.overload)._schema
    given = dict(zip((each.name for each in schema.arguments), args, strict=False))
    defaults = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
    return {**defaults, **given, **kwargs}


# Batch normalisation of cuDNN and MIOpen ------------------------------------------------------------------------------


def _batch_norm(given: dict[str, Any]) -> Any:
    mean, var = given.get("running_mean"), given.get("running_var")
    momentum = float(given.get("exponential_average_factor", given.get("momentum", 0.1)))
    eps = float(given["epsilon" if "epsilon" in given else "eps"])
    training = given.get("training", True)
    return torch.native_batch_norm(given["input"], given["weight"], given["bias"], mean, var, training, momentum, eps)


def _batch_norm_backward(given: dict[str, Any]) -> Any:
    grad = given.get("grad_output", given.get("grad_out"))
    eps = given.get("epsilon", given.get("eps"))
    saved = given.get("save_var")
    call = torch.ops.aten.native_batch_norm_backward
    stats = (given["running_mean"], given["running_var"], given["save_mean"], saved)
    return call(grad, given["input"], given["weight"], *stats, True, eps, [True, True, True])


# Attention ------------------------------------------------------------------------------------------------------------


def _attention_of(title: str) -> Any:
    if not title.startswith("_scaled_dot_product") or "fused" in title:
        return None
    return attention_backward if title.endswith("backward") else attention


def scores(given: dict[str, Any]) -> tuple[Tensor, float]:
    """Query times key, scaled and masked; and the scale."""
    query, key = given["query"], repeated(given["key"], given["query"])
    scale = given.get("scale") or 1.0 / math.sqrt(query.shape[-1])
    found = query @ key.transpose(-1, -2) * scale
    mask = given.get("attn_bias") if given.get("attn_bias") is not None else given.get("attn_mask")
    if mask is not None:
        found = found.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else found + mask
    if given.get("is_causal"):
        first, step = given.get("rows") or (0, 1)  # places that ask, where only some of them were kept
        asking = first + step * torch.arange(found.shape[-2]).unsqueeze(-1)
        found = found.masked_fill(torch.arange(found.shape[-1]) > asking, -math.inf)
    return found, scale


def repeated(tensor: Tensor, query: Tensor) -> Tensor:
    """Heads of keys and values that several heads of the query share."""
    heads, wanted = tensor.shape[1], query.shape[1]
    return tensor if heads == wanted else tensor.repeat_interleave(wanted // heads, dim=1)


def attention(given: dict[str, Any]) -> list[Tensor]:
    if given.get("dropout_p"):
        raise Unknown("attention with dropout draws random numbers")
    found, _ = scores(given)
    return [found.softmax(-1) @ repeated(given["value"], given["query"])]


def attention_backward(given: dict[str, Any]) -> list[Tensor | None]:
    """Gradients of query, key and value, from the output that the forward kept."""
    if given.get("dropout_p"):
        raise Unknown("attention with dropout draws random numbers")
    query, key, value = given["query"], repeated(given["key"], given["query"]), repeated(given["value"], given["query"])
    grad: Tensor = given["grad_out" if "grad_out" in given else "grad_out_"]
    found, scale = scores(given)
    weights = found.softmax(-1)
    inner = grad @ value.transpose(-1, -2)
    change = weights * (inner - (grad * given["out"]).sum(-1, keepdim=True))
    asked = change @ key * scale
    if given.get("rows"):
        return [asked, None, None]
    answers = (change.transpose(-1, -2) @ query * scale, weights.transpose(-1, -2) @ grad)
    return [asked, *(gathered(each, given["key"]) for each in answers)]


def gathered(tensor: Tensor, key: Tensor) -> Tensor:
    """What the heads of the query that share a head of the keys give it."""
    shape = (tensor.shape[0], key.shape[1], -1, *tensor.shape[2:])
    return tensor.reshape(shape).sum(2)


_OWN = {
    "cudnn_batch_norm": _batch_norm,
    "miopen_batch_norm": _batch_norm,
    "_batch_norm_with_update": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    "miopen_batch_norm_backward": _batch_norm_backward,
    "batch_norm_backward": _batch_norm_backward,
}
