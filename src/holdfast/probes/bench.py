"""The device as probes see it: where tensors go, in which precision, how much memory there is.

    bench = wrong_kernels.open_bench("cuda:0", tell)
    bench.tell("backward")                          # on record before it begins
    with bench.on():
        loss.backward()
        bench.wait()                                # for the device; an error comes out here, not later
    free, total = bench.memory()

`Skip` is raised by a check that makes no sense here: a device without pinned memory has not failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
HALF_SCALE = 2.0**10
"""Of the loss in fp16: small gradients survive, large ones do not overflow in networks as small as ours."""


class Skip(Exception):
    """This check makes no sense on this device, and why."""


@dataclass(slots=True)
class Bench:
    """One device in one process."""

    label: str
    device: torch.device
    tell: Callable[[str], None] = lambda check: None
    """Says that a check is about to begin, and waits until that is on record."""
    part: str = ""
    """forward, backward, double backward or update: what is being computed now."""
    batch: int = 0
    planted: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """Kernels that are wrong on purpose (holdfast.testing)."""
    small: bool = True
    """Small inputs: on a CPU, and in the quick set, where it is time that counts."""
    opened: float = 0.0
    """When the process turned to the device, by the monotonic clock."""
    away: Callable[[], bool] = lambda: False
    """Whether something else computes now, although this is the bench in use."""

    @property
    def kind(self) -> str:
        return self.label.partition(":")[0]

    @property
    def real(self) -> bool:
        """An accelerator that torch knows."""
        return self.device.type != "cpu"

    @property
    def hip(self) -> bool:
        return self.device.type == "cuda" and torch.version.hip is not None

    @property
    def shares_memory(self) -> bool:
        """Its memory is that of the machine."""
        if self.device.type == "cuda":
            return bool(getattr(torch.cuda.get_device_properties(self.device), "is_integrated", False))
        return self.device.type in ("mps", "cpu")

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Whatever is computed inside is computed by this device."""
        with self.planted():
            yield

    @contextlib.contextmanager
    def doing(self, part: str) -> Iterator[None]:
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "mps":
            torch.mps.synchronize()
        elif self.real:
            getattr(torch, self.device.type).synchronize(self.device)

    def autocast(self, precision: str) -> contextlib.AbstractContextManager[Any]:
        """As a script would use it."""
        if precision not in DTYPES:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[precision])

    def set_precision(self, precision: str) -> None:
        """TF32 is on where it is asked for, and nowhere else."""
        tf32 = precision == "tf32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        if precision == "bf16" and self.device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise Skip("this device has no bf16")

    def to(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def memory(self) -> tuple[int, int] | None:
        """Bytes that are free and bytes that there are, by what the driver says."""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            return int(free), int(total)
        if self.device.type == "xpu":
            if hasattr(torch.xpu, "mem_get_info"):
                free, total = torch.xpu.mem_get_info(self.device)
                return int(free), int(total)
            total = int(torch.xpu.get_device_properties(self.device).total_memory)
            return total - int(torch.xpu.memory_reserved(self.device)), total
        if self.device.type == "mps":
            total = int(torch.mps.recommended_max_memory())
            return total - int(torch.mps.driver_allocated_memory()), total
        return None

    def allocate(self, size: int) -> Tensor:
        """Bytes of this device, not yet written."""
        return torch.empty(size // 4, dtype=torch.int32, device=self.device)

    def release(self) -> None:
        """Give back what torch keeps for later."""
        if self.device.type == "mps":
            torch.mps.empty_cache()
        elif self.real:
            getattr(torch, self.device.type).empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Some backends have a type for it, others only words."""
    text = str(error).lower()
    known = (
        "out of memory",
        "not enough memory",
        "can't allocate memory",
        "out_of_device_memory",
        "invalid buffer size",
    )
    return isinstance(error, torch.OutOfMemoryError) or any(words in text for words in known)


def is_missing(error: BaseException, precision: str) -> bool:
    """A kernel that was never written for this precision. That is a device with less, not a broken one."""
    words = ("not implemented for 'Half'", "not implemented for 'BFloat16'", "could not create a primitive")
    return precision in DTYPES and any(each in str(error) for each in words)


def first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
