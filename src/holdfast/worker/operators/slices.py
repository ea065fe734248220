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
from typing import Any

from torch import Tensor

from holdfast.worker.operators.families import POOLS
from holdfast.worker.operators.parts import LONG, Arguments, Limits, Part, at, broadcast, some_of, tensors_of, work_of
from holdfast.worker.operators.slices_of_products import of_convolution, of_convolution_backward, of_product
from holdfast.worker.operators.slices_of_rows import (
    of_attention,
    of_channels,
    of_embedding,
    of_group_norm,
    of_layer_norm,
    of_planes,
    of_softmax,
    of_sum,
)

LARGEST = 8
"""Times the usual size that a part may have which cannot be made smaller."""


def cut(title: str, given: Arguments, chance: random.Random, limits: Limits, *, pointwise: bool) -> Part | None:
    """The whole if it is small; a part if there is a way to take one; else nothing."""
    tensors = tensors_of(given)
    if pointwise:
        count = math.prod(broadcast(tensors))
        return _of_elements(given, chance, limits) if count > limits.elements else _whole(given)
    size = sum(each.numel() * each.element_size() for each in tensors)
    if size <= limits.bytes and work_of(title, given) <= limits.work:
        return _whole(given)
    way = next((way for names, way in _WAYS if title in names), None)
    way = way or next((way for start, way in _BEGINNINGS if title.startswith(start)), None)
    part = way(given, chance, limits) if way is not None else None
    if part is None:
        return None
    size = sum(each.numel() * each.element_size() for each in tensors_of(part.arguments))
    most = limits.work * (LONG if title.startswith("_scaled_dot_product") else 4)
    return part if size <= LARGEST * limits.bytes and work_of(title, part.arguments) <= most else None


def _whole(given: Arguments) -> Part:
    return Part(given, lambda out: {n: each for n, each in enumerate(out) if isinstance(each, Tensor)}, whole=True)


def _of_elements(given: Arguments, chance: random.Random, limits: Limits) -> Part:
    sizes = broadcast(tensors_of(given))
    wheres, left = [slice(None)] * len(sizes), math.prod(sizes)
    for dim in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        if left <= limits.elements:
            break
        most = max(1, limits.elements * sizes[dim] // left)
        most = max(most, min(sizes[dim], 64))
        wheres[dim] = some_of(sizes[dim], most, chance)
        left = left // sizes[dim] * most

    def picked(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
            return [picked(each) for each in value]
        if not isinstance(value, Tensor):
            return value
        for dim in range(1, value.dim() + 1):
            value = at(value, -dim, wheres[-dim])
        return value

    chosen = {name: picked(value) for name, value in given.items()}
    return Part(chosen, lambda out: {n: picked(each) for n, each in enumerate(out) if isinstance(each, Tensor)})


Way = Callable[[Arguments, random.Random, Limits], "Part | None"]
_WAYS: list[tuple[tuple[str, ...], Way]] = [
    (("mm", "addmm", "bmm", "baddbmm"), of_product),
    (("convolution",), of_convolution),
    (("convolution_backward",), of_convolution_backward),
    (("_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), of_softmax),
    (("native_layer_norm", "native_layer_norm_backward"), of_layer_norm),
    (("native_group_norm", "native_group_norm_backward"), of_group_norm),
    (("embedding", "embedding_dense_backward"), of_embedding),
    (("sum", "mean"), of_sum),
    (
        ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm",
         "_batch_norm_with_update", "native_batch_norm_backward", "cudnn_batch_norm_backward",
         "miopen_batch_norm_backward", "batch_norm_backward"),
        of_channels,
    ),
]  # fmt: skip
_BEGINNINGS: list[tuple[str, Way]] = [
    ("_scaled_dot_product", of_attention),
    *((name, of_planes) for name in POOLS),
]
