"""The modules that a script trains, found by what its optimizers update.

find_models(optimizers)                # the outermost modules that hold the parameters, in the order of discovery
owned(models)                          # {"0.fc.weight": tensor}: what these modules hold, by a name
"""

from __future__ import annotations

import gc
from typing import Any

import torch


class Loose(torch.nn.Module):
    """Parameters that belong to no module."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        for at, each in enumerate(tensors):
            self.register_buffer(f"parameter_{at}", each)


def find_models(optimizers: list[torch.optim.Optimizer]) -> list[torch.nn.Module]:
    """The same objects again as long as the optimizers train the same parameters."""
    params = {id(param): param for each in optimizers for group in each.param_groups for param in group["params"]}
    known = _cache.get("params")
    if known is not None and known == set(params):
        return list(_cache["models"])
    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    chosen = _outermost([each for each in modules if any(id(param) in params for param in each.parameters())])
    chosen.sort(key=lambda module: _first(module, params))
    held = {id(param) for module in chosen for param in module.parameters()}
    loose = [param for number, param in params.items() if number not in held]
    _cache["params"], _cache["models"] = set(params), [*chosen, *([Loose(loose)] if loose else [])]
    return list(_cache["models"])


def owned(models: list[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Parameters and buffers. The same names in another process, where its optimizers train the same modules."""
    return {
        f"{at}.{name}": tensor
        for at, module in enumerate(models)
        for name, tensor in module.state_dict(keep_vars=True).items()
    }


_cache: dict[str, Any] = {}


def _outermost(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in inner]


def _first(module: torch.nn.Module, params: dict[int, Any]) -> int:
    order = {number: at for at, number in enumerate(params)}
    return min(order.get(id(param), len(order)) for param in module.parameters())
