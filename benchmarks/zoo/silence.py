"""Kernels that write nothing, on a device: do the known answers find them, and how fast?

rows = asked("cuda:0")            # in this process; the first row is the first time a process asks

A kernel that does not run leaves what its memory held before: here zeros, and the same once more with old numbers.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.worker.operators import zeros

Row = dict[str, Any]
_ATTENDS = "_scaled_dot_product"
BROKEN: dict[str, Callable[[str, bool], bool]] = {
    "a matrix product in forward": lambda name, back: name in ("mm", "bmm", "addmm") and not back,
    "a matrix product in backward": lambda name, back: name in ("mm", "bmm", "addmm") and back,
    "a convolution in forward": lambda name, back: name == "convolution",
    "a convolution in backward": lambda name, back: name == "convolution_backward",
    "attention in forward": lambda name, back: name.startswith(_ATTENDS) and not name.endswith("backward"),
    "attention in backward": lambda name, back: name.startswith(_ATTENDS) and name.endswith("backward"),
}


class _Nothing(TorchDispatchMode):
    def __init__(self, is_broken: Callable[[str, bool], bool], value: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_broken, self.value = is_broken, value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        back = torch._C._current_graph_task_id() != -1
        if not self.is_broken(func._schema.name.partition("::")[2], back):
            return out
        fill = lambda each: torch.full_like(each, self.value) if _written(each) else each  # noqa: E731
        return fill(out) if isinstance(out, Tensor) else type(out)(fill(each) for each in out)


def _written(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def asked(device: str) -> list[Row]:
    place = torch.device(device)
    parts = _cold(place)
    rows = [parts, _row("nothing, the first time", place), _row("nothing", place)]
    for name, is_broken in BROKEN.items():
        for value in (0.0, 0.5):
            with _Nothing(is_broken, value):
                rows.append(_row(name, place) | {"left": value})
    if place.type == "cuda":
        rows.append(_triton(place))
    for row in rows:
        row["right"] = row["found"] == [] if row["broken"].startswith("nothing") else row["broken"] in row["found"]
    return rows


def _cold(place: torch.device) -> Row:
    """Where the time goes when a process asks for the first time."""
    took: dict[str, float] = {}

    def timed(name: str, do: Callable[[], Any]) -> None:
        began = time.perf_counter()
        do()
        if place.type == "cuda":
            torch.cuda.synchronize()
        took[name] = round(time.perf_counter() - began, 3)

    timed("the context", lambda: torch.zeros(1, device=place).item())
    for name, function, inputs in [*zeros._operators(0), *zeros._narrow(0)]:
        timed(name, lambda function=function, inputs=inputs: zeros._wrong(function, inputs, place))  # type: ignore[misc]
    if place.type == "cuda":
        timed("import triton", lambda: importlib.import_module("triton"))
        timed("a Triton kernel", lambda: zeros.silent_triton(place))
    return {"broken": "nothing, part by part", "found": [], "seconds": round(sum(took.values()), 3), "parts": took}


def _row(name: str, place: torch.device) -> Row:
    began = time.perf_counter()
    found = zeros.silent(place)
    again = zeros.silent(place, 1) if found else []
    return {"broken": name, "found": [each for each in again if each in found],
            "seconds": round(time.perf_counter() - began, 3)}  # fmt: skip


def _triton(place: torch.device) -> Row:
    try:
        from holdfast.worker.operators import triton_kernel
    except Exception as error:
        return {"broken": "a Triton kernel in forward", "found": [], "seconds": 0.0, "failed": str(error)[:200]}
    whole, triton_kernel.double = triton_kernel.double, lambda x, out: None
    try:
        return _row("a Triton kernel in forward", place)
    finally:
        triton_kernel.double = whole
