"""Remedies that are switched inside of a process that uses torch, named in HOLDFAST_REMEDIES.

    HOLDFAST_REMEDIES=sdpa-math,microbatch=4     # in the environment of a worker or a probe
    flags.apply()                                # there, before the device is touched; returns what was done
    flags.keep_free(device)                      # there, after it was: `headroom=BYTES`

A worker applies them before the script is imported. A script that sets the same switches itself has the last word.
torch is imported by the functions only, so that whoever needs the names need not have it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

VARIABLE = "HOLDFAST_REMEDIES"
MASQUERADE = "HSA_OVERRIDE_GFX_VERSION"


def named(env: Mapping[str, str] | None = None) -> list[str]:
    """The flags that the environment asks for, those we know."""
    asked = (os.environ if env is None else env).get(VARIABLE, "")
    return [word for word in dict.fromkeys(word.strip() for word in asked.split(",")) if word in FLAGS]


def amount(name: str, env: Mapping[str, str] | None = None) -> int | None:
    """The number of one that has a number: `microbatch=4`, `headroom=3221225472`."""
    for word in (os.environ if env is None else env).get(VARIABLE, "").split(","):
        key, sign, value = word.strip().partition("=")
        if key == name and sign and value.isascii() and value.isdigit() and 0 < int(value) < 1 << 62:
            return int(value)
    return None


def keep_free(device: Any) -> None:
    """Leave as much of the device's memory alone as the verdict says; after the device was opened."""
    wanted = amount("headroom")
    backend: Any = getattr(_torch(), device.type, None)
    if wanted is None or not hasattr(backend, "set_per_process_memory_fraction"):
        return
    try:
        total = backend.get_device_properties(device).total_memory
        backend.set_per_process_memory_fraction(max(0.05, 1.0 - wanted / total), device)
    except (AttributeError, RuntimeError, ValueError, TypeError):  # a build that has no such limit
        return


def pieces(samples: int | None) -> int:
    """In how many pieces a batch is computed at least."""
    most = amount("microbatch")
    return 1 if most is None or samples is None else -(-samples // most)


def apply(env: MutableMapping[str, str] | None = None) -> list[str]:
    """Switch what is asked for. A build of torch that lacks a switch has nothing to switch off."""
    names = named(env)
    for name in names:
        try:
            FLAGS[name]()
        except (AttributeError, RuntimeError, ImportError):
            continue
    return names


def _torch() -> Any:
    import torch

    return torch


def _no_masquerade() -> None:
    """The runtime reads it when the first device is used, and an empty one is an error there: it has to go."""
    for name in [name for name in os.environ if name.startswith(MASQUERADE)]:
        del os.environ[name]


def _tf32_off() -> None:
    torch = _torch()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def _without(precision: str) -> Callable[[], None]:
    """autocast to it does nothing any more: the script asks for it, and we do not change scripts."""

    def switch() -> None:
        torch = _torch()
        from torch.amp.autocast_mode import autocast

        refused = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
        enter: Any = autocast.__enter__

        def enter_or_not(self: Any) -> Any:
            enabled = self._enabled
            self._enabled = enabled and self.fast_dtype != refused
            try:
                return enter(self)
            finally:
                self._enabled = enabled

        autocast.__enter__ = enter_or_not  # type: ignore[method-assign]

    return switch


def _exact_reductions() -> None:
    products = _torch().backends.cuda.matmul
    products.allow_fp16_reduced_precision_reduction = False
    products.allow_bf16_reduced_precision_reduction = False


def _sdpa_math() -> None:
    cuda = _torch().backends.cuda
    cuda.enable_flash_sdp(False)
    cuda.enable_mem_efficient_sdp(False)
    cuda.enable_math_sdp(True)
    cuda.enable_cudnn_sdp(False)


def _cudnn_off() -> None:
    _torch().backends.cudnn.enabled = False


def _rnn_plain() -> None:
    """Only while a recurrent layer computes: convolutions keep the library."""
    torch = _torch()
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        kind.forward = _without_library(kind.forward)


def _without_library(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def plain(*args: Any, **kwargs: Any) -> Any:
        backend: Any = _torch().backends.cudnn
        before, backend.enabled = backend.enabled, False
        try:
            return forward(*args, **kwargs)
        finally:
            backend.enabled = before

    return plain


def _cudnn_benchmark_off() -> None:
    _torch().backends.cudnn.benchmark = False


def _miopen_immediate() -> None:
    _torch().backends.miopen.immediate = True


def _cublas() -> None:
    _torch().backends.cuda.preferred_blas_library("cublas")


def _mkldnn_off() -> None:
    torch = _torch()
    torch.backends.mkldnn.enabled = False


def _one_thread() -> None:
    _torch().set_num_threads(1)


FLAGS: dict[str, Callable[[], None]] = {
    "no-masquerade": _no_masquerade,
    "tf32-off": _tf32_off,
    "fp16-off": _without("fp16"),
    "bf16-off": _without("bf16"),
    "exact-reductions": _exact_reductions,
    "sdpa-no-flash": lambda: _torch().backends.cuda.enable_flash_sdp(False),
    "sdpa-no-efficient": lambda: _torch().backends.cuda.enable_mem_efficient_sdp(False),
    "sdpa-no-cudnn": lambda: _torch().backends.cuda.enable_cudnn_sdp(False),
    "sdpa-math": _sdpa_math,
    "cudnn-off": _cudnn_off,
    "rnn-plain": _rnn_plain,
    "cudnn-benchmark-off": _cudnn_benchmark_off,
    "miopen-immediate": _miopen_immediate,
    "cublas": _cublas,
    "mkldnn-off": _mkldnn_off,
    "one-thread": _one_thread,
}
