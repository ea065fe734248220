"""The tensors of a file of weights, by name, and nothing else of it: safetensors, or a checkpoint of PyTorch.

    read(Path("yolov8n.pt"))          # {"model.0.conv.weight": …}; UserError if it cannot be read

A checkpoint is opened with `torch.load(weights_only=True)`. Some hold whole objects of another program (ultralytics
keeps its model that way). Their classes are not imported: each is replaced by an empty shell that only keeps what is
put into it, so nothing of the file is ever run, and the tensors are taken out of the shells.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.base.errors import UserError

DEPTH = 64
"""Modules inside of modules; more is no network."""


class Shell:
    """Stands for an object of a class that is not imported."""

    def __init__(self, *_: object, **__: object) -> None:
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        self.state = state if isinstance(state, dict) else {}


def read(path: Path) -> dict[str, Tensor]:
    """Every tensor of the file under its name."""
    if path.suffix == ".safetensors":
        return _safetensors(path)
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
        with torch.serialization.safe_globals([_shell(name) for name in names]):
            whole = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, AttributeError, TypeError) as error:
        raise _unreadable(path, error) from None
    except (pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None
    found = dict(_tensors(whole, "", 0))
    if not found:
        raise UserError(f"{path} holds no weights", cause="there is no tensor in it")
    return found


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    hints = ["it has to be safetensors, or a checkpoint of PyTorch with tensors in it (.pt, .pth)"]
    cause = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return UserError(f"{path} cannot be read", cause=cause, hints=hints)


def _shell(name: str) -> Any:
    module, _, plain = name.rpartition(".")
    return type(plain, (Shell,), {"__module__": module, "__qualname__": plain})


def _tensors(value: Any, name: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    """Of a state dict, a module that became a shell, or a checkpoint with one of them in it."""
    if depth > DEPTH:
        return
    if isinstance(value, Tensor):
        yield name, value.detach()
    elif isinstance(value, Shell):
        for part in ("_parameters", "_buffers", "_modules"):
            inner = value.state.get(part)
            if isinstance(inner, dict):
                yield from _tensors(inner, name, depth + 1)
    elif isinstance(value, dict):
        chosen = value
        if depth == 0:  # a checkpoint: the averaged weights before the others
            for key in ("ema", "model", "state_dict", "model_state_dict"):
                if isinstance(value.get(key), (dict, Shell)):
                    chosen = {"": value[key]}
                    break
        for key, inner in chosen.items():
            yield from _tensors(inner, f"{name}.{key}" if name and key else name or str(key), depth + 1)
