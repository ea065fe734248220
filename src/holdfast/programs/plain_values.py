"""Values of a notebook, written down as code: numbers, text, paths, and lists and dicts of those; arrays as a file.

text = literal({"lr": 3e-4})         # "{'lr': 0.0003}"; None for what cannot be written down
arrays = Arrays(); arrays.add("x", torch.ones(3))     # True: it goes to one safetensors file beside the script

Nothing is pickled. A value that cannot be written down exactly is not written down at all.
"""

from __future__ import annotations

import math
import sys
from pathlib import PurePath
from typing import Any

FILE = "values.safetensors"
_WORDS = (bool, int, str, bytes, complex, type(None), type(...))


def literal(value: object) -> str | None:
    """Python code that makes an equal value of the same type, with nothing but builtins, `pathlib` and `torch`."""
    try:
        return _literal(value)
    except RecursionError:  # a list that holds itself
        return None


def _literal(value: Any) -> str | None:
    kind = type(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind in _WORDS:
        return repr(value)
    if isinstance(value, PurePath):
        return f"__import__('pathlib').Path({str(value)!r})" if isinstance(value, type(_path(value))) else None
    if kind is range or kind is slice:
        return repr(value)
    if kind in (list, tuple, set, frozenset):
        return _sequence(value, kind)
    if kind is dict:
        pairs = [(_literal(key), _literal(inner)) for key, inner in value.items()]
        if any(key is None or inner is None for key, inner in pairs):
            return None
        return "{" + ", ".join(f"{key}: {inner}" for key, inner in pairs) + "}"
    return _of_torch(value)


def _path(value: PurePath) -> PurePath:
    from pathlib import Path

    return Path(value)


def _sequence(value: Any, kind: type) -> str | None:
    ordered = sorted(value, key=repr) if kind in (set, frozenset) else value
    inner = [_literal(each) for each in ordered]
    if any(each is None for each in inner):
        return None
    words = ", ".join(str(each) for each in inner)
    if kind is list:
        return f"[{words}]"
    if kind is tuple:
        return f"({words},)" if len(inner) == 1 else f"({words})"
    return f"{kind.__name__}([{words}])"


def _of_torch(value: object) -> str | None:
    """`torch.float32` and `torch.device("cpu")`; torch is not imported for this: who has such a value has it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return f"__import__('torch').{str(value).removeprefix('torch.')}"
    if torch is not None and isinstance(value, torch.device):
        return f"__import__('torch').device({str(value)!r})"
    return None


class Arrays:
    """Tensors and numpy arrays that a function uses: one safetensors file, and a line of the script for each."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, name: str, value: Any) -> str | None:
        """The line that makes it again in the worker; None if it is no array, or one that would not be the same."""
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and type(value) is torch.Tensor:
            plain = value.layout == torch.strided and value.grad_fn is None and not value.requires_grad
            if not plain or value.is_quantized or value.device.type == "meta":
                return None
            self._kept[name] = value.detach().cpu().contiguous().clone()
            return f"{name} = _values[{name!r}]"
        if numpy is not None and torch is not None and type(value) is numpy.ndarray:
            return self._add_array(name, value, torch, numpy)
        return None

    def _add_array(self, name: str, value: Any, torch: Any, numpy: Any) -> str | None:
        if value.dtype.kind not in "biuf" or not value.dtype.isnative:
            return None
        try:
            tensor = torch.from_numpy(numpy.ascontiguousarray(value).copy())
        except TypeError:  # a dtype that torch does not have
            return None
        self._kept[name] = tensor.reshape(value.shape)
        return f"{name} = _values[{name!r}].numpy()"

    def data(self) -> bytes:
        """The file."""
        from safetensors.torch import save

        return save(self._kept)
