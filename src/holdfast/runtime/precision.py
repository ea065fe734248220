"""The precision a step is computed in: what the script asked for, and how to do without.

    with watch_precision() as seen: fn(batch)       # seen.names == {"bf16"}: what autocast was entered with
    with as_plain_arithmetic(): fn(batch)           # fp32 throughout: autocast and TF32 off, compiled code left aside
    force_fp32()                                    # for the rest of this process: a rung with precision fp32

`with torch.autocast(...)` stands in the script and we do not change scripts, so it is taught to do nothing. Code that
torch.compile has compiled with autocast inside keeps it: a rung change starts a new process, which compiles anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}
ROUNDING = {"fp64": 2.0**-53, "fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""The largest relative error of one rounding."""


@dataclass(slots=True)
class Seen:
    """The precisions autocast was entered with."""

    names: set[str] = field(default_factory=set)


@contextlib.contextmanager
def watch_precision() -> Iterator[Seen]:
    """Notes what autocast is asked for; changes nothing."""
    seen = Seen()
    original: Any = autocast.__enter__

    def enter(self: Any) -> Any:
        if self._enabled:
            seen.names.add(NAMES.get(self.fast_dtype, str(self.fast_dtype)))
        return original(self)

    autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        autocast.__enter__ = original  # type: ignore[method-assign]


def coarsest(names: set[str], parameters: set[torch.dtype], device: torch.device) -> str:
    """The least exact of what was in use: by autocast, by the parameters themselves, and by TF32 on a device."""
    found = {*names, *(NAMES[dtype] for dtype in parameters if dtype in NAMES)}
    if device.type == "cuda" and "fp32" in found | {"fp32"} and _tf32():
        found.add("tf32")
    return max(found or {"fp32"}, key=lambda name: ROUNDING[name])


def _tf32() -> bool:
    return bool(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)


@contextlib.contextmanager
def as_plain_arithmetic() -> Iterator[None]:
    """fp32 as written: no autocast, no TF32, no compiled code."""
    original = autocast.__enter__
    matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    autocast.__enter__ = _enter_without  # type: ignore[method-assign]
    try:
        with _eager():
            yield
    finally:
        autocast.__enter__ = original  # type: ignore[method-assign]
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution


def force_fp32() -> None:
    """No autocast and no TF32 in this process any more."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    autocast.__enter__ = _enter_without  # type: ignore[method-assign]


_enter: Any = autocast.__enter__


def _enter_without(self: Any) -> Any:
    enabled, self._enabled = self._enabled, False
    try:
        return _enter(self)
    finally:
        self._enabled = enabled


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Without code that torch.compile made. Importing dynamo takes a second, so only where it is here already."""
    import sys

    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
