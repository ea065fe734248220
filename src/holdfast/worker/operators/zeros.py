"""Kernels that write nothing: some devices give zeros, or what the memory held before, and raise no error.

    silent(device)                              # [] on a device that is well; else ["a matrix product in backward", …]
    silent(device, only=behind(loss))           # only operators of the kinds that this loss was computed with

Small whole numbers, whose products and sums are exact in every precision: the answer is known, and an operator that did
not run cannot give it. The memory is filled with a pattern before, so that it is not right by chance. Milliseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.state.torch_private import without_dispatch_modes

PATTERN = 77.0
ROOM = 1 << 20
_OWN_KERNELS = ("torch", "triton", "holdfast")
"""Packages that bring kernels of Triton which a script does not use by importing them."""
Function = Callable[..., Tensor]
PRODUCT, CONVOLUTION, ATTENTION = "a matrix product", "a convolution", "attention"
WIDE = (PRODUCT, CONVOLUTION, ATTENTION)
NARROW = "{} of bf16"
_NODES = {"Convolution": CONVOLUTION, "Attention": ATTENTION}
"""What is in the name of a node of the backward graph, and the operator it belongs to."""


def silent(
    device: torch.device, turn: int = 0, *, triton: bool = True, only: Collection[str] | None = None
) -> list[str]:
    """The operators whose answer is not the known one. What a device does not have is left out.

    `only`: the names of operators to ask; None for all.
    """
    found = []
    for name, function, inputs in [*_operators(turn), *(_narrow(turn) if device.type != "cpu" else ())]:
        if only is not None and name not in only:
            continue
        try:
            wrong = _wrong(function, inputs, device)
        except (RuntimeError, NotImplementedError):  # not there at all: an error is not silent
            continue
        found += [f"{name} in {part}" for part in wrong]
    if device.type == "cuda" and triton:
        found += silent_triton(device, turn)
    return found


def behind(loss: Tensor) -> frozenset[str] | None:
    """The operators of `silent` that a loss was computed with, by its backward graph; None where that does not show.

    Products are always among them: hardly a model does without. What torch.compile or an autograd function in Python
    computes is one node for torch, and may be anything. Reads names and precisions alone: a saved tensor of a node is
    not touched, for that may compute a checkpointed part of the model again.
    """
    used, seen = {PRODUCT, NARROW.format(PRODUCT)}, set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return None
        label = node.name()
        for part, name in _NODES.items():
            if part in label:
                used |= _by_precision(node, name)
        waiting += [each for each, _ in node.next_functions]
    return frozenset(used)


def _by_precision(node: torch.autograd.graph.Node, name: str) -> set[str]:
    """The operator in the precision in which the node's was computed; in both where torch does not say."""
    try:
        wide = node._input_metadata[0].dtype in (torch.float32, torch.float64)
    except (AttributeError, IndexError):
        return {name, NARROW.format(name)}
    return {name if wide else NARROW.format(name)}


def uses_triton() -> bool:
    """Whether the script has kernels of Triton: torch.compile was called, or a module of it or of a library has some.

    To compile one takes a second and more. That Triton is imported says nothing: torch's optimizers import it.
    """
    if "triton" not in sys.modules:
        return False
    if any(f"torch._inductor.{name}" in sys.modules for name in ("compile_fx", "compiler_bisector")):
        return True  # the call imports one of them, depending on the version
    modules = [each for name, each in list(sys.modules.items()) if name.partition(".")[0] not in _OWN_KERNELS]
    names = (list(getattr(each, "__dict__", {}).values()) for each in modules)
    return any(type(value).__name__ == "JITFunction" for values in names for value in values)


def _operators(turn: int) -> Iterator[tuple[str, Function, list[Tensor]]]:
    yield PRODUCT, torch.matmul, [_numbers(32, 48, turn=turn), _numbers(48, 16, turn=turn + 1)]
    yield CONVOLUTION, _convolution, [_numbers(2, 4, 9, 9, turn=turn), _numbers(8, 4, 3, 3, turn=turn + 1)]
    query, value = _numbers(2, 2, 8, 16, turn=turn), _numbers(2, 2, 8, 16, turn=turn + 1)
    yield ATTENTION, _attention, [query * 0.0 + 1.0, value]


def _narrow(turn: int) -> Iterator[tuple[str, Function, list[Tensor]]]:
    """The same in bf16: other kernels, on other units of a device. All of these numbers are exact in it."""
    for name, function, inputs in _operators(turn):
        yield NARROW.format(name), function, [each.bfloat16() for each in inputs]


def _numbers(*shape: int, turn: int) -> Tensor:
    """1, 2 or 3, never zero, in an order that differs from turn to turn."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * (7 + 2 * turn) + turn) % 3 + 1).float().reshape(shape)


def _convolution(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def _attention(query: Tensor, value: Tensor) -> Tensor:
    """All keys alike: every row is the mean of the eight values, which is exact."""
    return F.scaled_dot_product_attention(query, torch.ones_like(query), value)


def _wrong(function: Function, inputs: list[Tensor], device: torch.device) -> list[str]:
    """forward, backward, both or neither."""
    with without_dispatch_modes():
        right, right_grads = _computed(function, inputs)  # on the CPU, also where the device only pretends to be one
    here = [each.to(device) for each in inputs]
    torch.full((ROOM // 4,), PATTERN, device=device)  # given back at once: what comes next finds it there
    found, grads = _computed(function, here)
    parts = [] if _same(found, right) else ["forward"]
    if not all(_same(one, two) for one, two in zip(grads, right_grads, strict=True)):
        parts.append("backward")
    return parts


def _computed(function: Function, inputs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    with torch.enable_grad(), torch.autocast(inputs[0].device.type, enabled=False):
        out = function(*leaves)
        # A number has a gradient of its own. For one that is given, torch imports its symbolic shapes: 1 to 3 seconds.
        total = (out * torch.ones_like(out)).sum()
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return out.detach(), [
        torch.zeros_like(each) if grad is None else grad for each, grad in zip(leaves, grads, strict=True)
    ]


def _same(found: Tensor, right: Tensor) -> bool:
    """A hundredth apart is rounding of any kind; what was not computed is as far away as it is large."""
    distance = (found.cpu().double() - right.cpu().double()).norm()
    return bool(distance <= 0.01 * right.cpu().double().norm() + 1e-3)


def silent_triton(device: torch.device, turn: int = 0) -> list[str]:
    """The same for a kernel of Triton, which is compiled for that."""
    try:
        from holdfast.worker.operators import triton_kernel
    except Exception:  # no Triton, or one that does not fit this torch: then nothing is compiled with it either
        return []
    x = _numbers(1024, turn=turn).to(device)
    out = torch.full_like(x, PATTERN)
    try:
        triton_kernel.double(x, out)
        torch.cuda.synchronize(device)
    except Exception:  # it says that it does not work, which is all that is asked for
        return []
    return [] if _same(out, x.cpu() * 2) else ["a Triton kernel in forward"]
