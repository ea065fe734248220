"""Which kernels compute the gradients of convolutions on a CPU: oneDNN's, or plain matrix products.

    compute = gemm_backward(compute)             # forward as always, backward of its loss by im2col and BLAS
    worth_a_try()                                # whether the tuner should measure it on this CPU

oneDNN has fast forward kernels nearly everywhere, but fast backward ones only for some CPUs: x86, and ARM with SVE.
Elsewhere a matrix product beats what it falls back to. Measured on a Neoverse-N1 (torch 2.12, one thread, 3x3 kernels
of 64 channels): gradients at 14 GFLOP/s against 27. NNPACK, which takes over for batches of 16 and more where oneDNN is
off, is no faster and is passed over as well. The gradients are the same up to rounding, and the same bits every time.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable

from holdfast.state.torch_private import cpu_libraries, use_cpu_libraries


class _Flags:
    """What is switched off during a backward; process-wide settings of torch, so put back as soon as it is over."""

    def __init__(self) -> None:
        self.onednn, self.nnpack = cpu_libraries()

    def off(self) -> None:
        use_cpu_libraries(False, False)

    def restore(self) -> None:
        use_cpu_libraries(self.onednn, self.nnpack)


class _Mark(torch.autograd.Function):
    """The loss itself; its backward is the first of all, and switches the kernels until the last is done."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, flags: _Flags) -> torch.Tensor:
        ctx.flags = flags
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.flags.off()
        Variable._execution_engine.queue_callback(ctx.flags.restore)
        return grads[0], None


def gemm_backward(compute: Callable[[Any], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
    """The same loss, whose backward computes convolutions as matrix products."""
    flags = _Flags()
    if not flags.onednn:
        return compute  # a remedy has switched it off: it stays off

    def computed(batch: Any) -> torch.Tensor:
        flags.restore()  # a backward that raised could not
        loss: torch.Tensor = _Mark.apply(compute(batch), flags)  # type: ignore[no-untyped-call]
        return loss

    return computed


def worth_a_try() -> bool:
    """Whether to measure it at all. Not on x86, where oneDNN has kernels of its own for it."""
    known = platform.machine().lower() in ("x86_64", "amd64", "x86", "i686")
    return not known and torch.backends.mkldnn.is_available() and cpu_libraries()[0]
