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

    def add(self, dtype: torch.dtype) -> None:
        self.names.add(NAMES.get(dtype, "bf16"))


@contextlib.contextmanager
def watch_precision(device: torch.device | None = None) -> Iterator[Seen]:
    """Notes what autocast is asked for, and what was on already around the step; changes nothing."""
    seen = Seen()
    for kind in {"cpu", device.type if device is not None else "cpu"}:
        if torch.is_autocast_enabled(kind):
            seen.add(torch.get_autocast_dtype(kind))
    original: Any = autocast.__enter__

    def enter(self: Any) -> Any:
        if self._enabled and original is not _enter_without:
            seen.add(self.fast_dtype)
        return original(self)

    autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        autocast.__enter__ = original  # type: ignore[method-assign]


def coarsest(names: set[str], parameters: set[torch.dtype], device: torch.device, *, convolves: bool = True) -> str:
    """The least exact of what was in use: by autocast, by the parameters themselves, and by TF32 on a device.

    cuDNN uses TF32 unless told otherwise, which matters only where something `convolves` or recurs.
    """
    found = {*names, *(NAMES[dtype] for dtype in parameters if dtype in NAMES)}
    if device.type == "cuda" and _uses_tf32(convolves):
        found.add("tf32")
    return max(found or {"fp32"}, key=lambda name: ROUNDING[name])


Place = tuple[Any, str, Any]
"""A switch of TF32: where it is, its name, and its value for plain fp32."""


def _switches(convolves: bool = True) -> list[Place]:
    """torch has an old way and, since 2.9, a new one; reading the old one after the new one was used raises."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(matmul, "fp32_precision"):
        places: list[Place] = [(matmul, "fp32_precision", "ieee")]
        for name in ("conv", "rnn") if convolves else ():
            if hasattr(cudnn, name):
                places.append((getattr(cudnn, name), "fp32_precision", "ieee"))
        return places
    return [(matmul, "allow_tf32", False), *([(cudnn, "allow_tf32", False)] if convolves else [])]


def _uses_tf32(convolves: bool) -> bool:
    return any(getattr(place, name) in ("tf32", True) for place, name, _ in _switches(convolves))


def _tf32_off() -> list[Place]:
    """Returns what brings it back."""
    before: list[Place] = []
    for place, name, plain in _switches():
        now = getattr(place, name)
        if now in ("tf32", True):
            before.append((place, name, now))
            setattr(place, name, plain)
    return before


@contextlib.contextmanager
def as_plain_arithmetic(device: torch.device | None = None) -> Iterator[None]:
    """fp32 as written: no autocast, neither inside nor around the step, no TF32, no compiled code."""
    original: Any = autocast.__enter__
    before = _tf32_off()
    try:
        with contextlib.ExitStack() as stack:
            for kind in {"cpu", device.type if device is not None else "cpu"}:
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(autocast(kind, enabled=False))
            autocast.__enter__ = _enter_without  # type: ignore[method-assign]
            stack.enter_context(_eager())
            yield
            autocast.__enter__ = original  # type: ignore[method-assign]
    finally:
        autocast.__enter__ = original  # type: ignore[method-assign]
        for place, name, value in before:
            setattr(place, name, value)


def force_fp32() -> None:
    """No autocast and no TF32 in this process any more. Said again at each step: a script may switch it on."""
    _tf32_off()
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
