"""A module as live tensors: parameters and persistent buffers, looked at through the module's own containers.

    part = make_module("model", model)
    part.refresh()      # about 50 ns a tensor while nothing was replaced

The skeleton is a few bytes: a restart builds the same module again, so only what changed since protect() is
written down (buffers that appeared, parameters that were frozen or unfrozen).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from holdfast.base.errors import UserError
from holdfast.state.flatten import Node, Read, Slot, carrier, check_tensor, uncarry
from holdfast.state.layout import MODULE
from holdfast.state.parts import CustomModulePart, Part, changed_kind, fill, is_successor
from holdfast.state.shared_out import local, shard_of

_SAVING = ("state_dict", "load_state_dict", "_save_to_state_dict", "get_extra_state", "set_extra_state")
_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_post_hooks")
# Load pre-hooks are left out: they translate older files, and a snapshot is never older than its module.

FORMS_PER_LOOK = 8
"""Tensors whose dtype and shape are checked at each look, in turn: `model.half()` changes all at once."""
FLAGS_PER_LOOK = 128
"""Parameters whose requires_grad is checked at each look, in turn."""


def make_module(name: str, module: Module) -> Part:
    """The fast part if the module is saved as its tensors alone, else one that calls state_dict()."""
    module = unwrap(module)
    _check(name, module)
    return CustomModulePart(name, module) if any(map(_is_custom, module.modules())) else ModulePart(name, module)


def unwrap(module: Module) -> Module:
    """The module inside a torch.compile wrapper. Known by name: importing dynamo takes a second and more."""
    while type(module).__name__ == "OptimizedModule" and isinstance(module._modules.get("_orig_mod"), Module):
        module = module._modules["_orig_mod"]  # type: ignore[assignment]
    return module


def _check(name: str, module: Module) -> None:
    for key, tensor in chain(module.named_parameters(), module.named_buffers()):
        check_tensor(tensor, f"{name}.{key}")
    if next(chain(module.parameters(), module.buffers()), None) is None:
        raise UserError(
            f"`{name}` has no parameters: there is nothing to train or to save",
            cause=f"{type(module).__name__}.parameters() and .buffers() give nothing",
            hints=["layers kept in a plain list or dict are not seen; use nn.ModuleList or nn.ModuleDict"],
        )


def _is_custom(module: Module) -> bool:
    cls = type(module)
    if isinstance(module, torch.jit.ScriptModule) or type(module._parameters) not in (dict, OrderedDict):
        return True
    if any(getattr(cls, key, None) is not getattr(Module, key) or key in module.__dict__ for key in _SAVING):
        return True
    if any(not _is_torchs(hook) for key in _HOOKS for hook in (getattr(module, key, None) or {}).values()):
        return True
    # torch's own layers translate older files there; a user's layer may rebuild what depends on the weights.
    loader: Any = cls._load_from_state_dict
    return not getattr(loader, "__module__", "").startswith("torch.nn.")


def _is_torchs(hook: Any) -> bool:
    """FSDP2 hooks into state_dict() to put its parts in place. A part is read where the optimizer writes it."""
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp.")


def _is_param(value: Any) -> bool:
    return isinstance(value, Parameter)


class ModulePart(Part):
    """Parameters and persistent buffers, live."""

    kind = MODULE

    def __init__(self, name: str, module: Module) -> None:
        super().__init__(name)
        self._module = module
        self._baseline: frozenset[str] = frozenset()
        self._frozen: dict[str, bool] = {}
        self._values: list[Any] = []
        self._form_at = self._flag_at = 0
        self.refresh(force=True)
        self._baseline = frozenset(self._places)
        self._frozen = {key: param.requires_grad for key, param in self._params()}
        self._write_skeleton()

    # Looking ------------------------------------------------------------------------------------------------

    def refresh(self, *, force: bool = False) -> bool:
        same_forms = not force and self._same_forms()
        if same_forms and self._same_structure():
            return False
        if same_forms and self._only_drifted():
            return self._settle(self._drifting)
        self._collect()
        if self._baseline:
            self._write_skeleton()
        return True

    def _look(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self._filled))

    def _same_structure(self) -> bool:
        return sum(map(len, self._containers)) == len(self._values) and all(map(is_, self._look(), self._values))

    def _same_forms(self) -> bool:
        """dtype and shape can change inside a tensor (`.data = ...`); a few are checked each time."""
        start, stop = self._form_at, self._form_at + FORMS_PER_LOOK
        self._form_at = stop if stop < len(self._forms) else 0
        return all(
            tensor.dtype is dtype and tensor.shape == shape for tensor, dtype, shape in self._forms[start:stop]
        ) and all(view.data_ptr() == local(tensor).data_ptr() for view, tensor in self._carried)

    def _only_drifted(self) -> bool:
        """Buffers may be assigned anew in every forward pass. Note them; that is no reason to start over."""
        values = list(self._look())
        if len(values) != len(self._values) or sum(map(len, self._containers)) != len(values):
            return False
        moved = [at for at, value in enumerate(values) if value is not self._values[at]]
        if not all(self._may_drift(self._keys[at], self._values[at], values[at]) for at in moved):
            return False
        self._values = values
        self._drifting |= {f"{self.name}.{self._keys[at]}": values[at] for at in moved if self._keys[at]}
        self.fresh = [Slot(name, carrier(tensor)) for name, tensor in self._drifting.items()]
        return True

    def _may_drift(self, key: str | None, old: Any, new: Any) -> bool:
        return key == "" or (key is not None and not _is_param(new) and is_successor(old, new))

    def _collect(self) -> None:
        self._containers: list[dict[str, Any]] = []
        self._owners: dict[str, Module] = {}
        self._places: dict[str, tuple[dict[str, Any], str]] = {}
        """Key in the state dict -> the container that holds the tensor, and its key there."""
        self._keys: list[str | None] = []
        """For each value of each container: its key in the state dict, "" if not saved, None for a module."""
        self._drifting: dict[str, Tensor] = {}
        self._walk(self._module, "")
        self._filled = [container for container in self._containers if container]
        self._values = list(self._look())
        self._take_slots()
        self._form_at = self._flag_at = 0
        self._flags = [(param, param.requires_grad) for _, param in self._params()]

    def _take_slots(self) -> None:
        self.slots, self.fresh = [], []
        self._carried: list[tuple[Tensor, Tensor]] = []
        self._forms: list[tuple[Tensor, torch.dtype, torch.Size]] = []
        for key, (container, own) in self._places.items():
            tensor = container[own]
            check_tensor(tensor, f"{self.name}.{key}")
            view = carrier(tensor)
            if view is not tensor:
                self._carried.append((view, tensor))
            self.slots.append(Slot(f"{self.name}.{key}", view, shard=shard_of(tensor)))
            self._forms.append((tensor, tensor.dtype, tensor.shape))

    def _walk(self, module: Module, prefix: str) -> None:
        """As state_dict() does: a module used twice is seen under both names."""
        module = unwrap(module)
        self._owners[prefix] = module
        tensors: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        self._containers += (*tensors, module._modules)
        for container in tensors:
            for own, tensor in container.items():
                saved = container is module._parameters or own not in module._non_persistent_buffers_set
                self._keys.append(prefix + own if saved else "")
                if saved and tensor is not None:
                    self._places[prefix + own] = (container, own)
        self._keys += [None] * len(module._modules)
        for key, child in module._modules.items():
            if child is not None:
                self._walk(child, f"{prefix}{key}.")

    def _params(self) -> list[tuple[str, Tensor]]:
        """Parameters by key, in the order of the state dict."""
        rows = ((key, container[own]) for key, (container, own) in self._places.items())
        return [(key, tensor) for key, tensor in rows if _is_param(tensor)]

    def named_params(self) -> dict[str, Tensor]:
        """Parameters by full name."""
        return {f"{self.name}.{key}": tensor for key, tensor in self._params()}

    # Saving -------------------------------------------------------------------------------------------------

    def skeleton(self) -> Node:
        start = self._flag_at
        self._flag_at = start + FLAGS_PER_LOOK if start + FLAGS_PER_LOOK < len(self._flags) else 0
        for param, flag in self._flags[start : start + FLAGS_PER_LOOK]:
            if param.requires_grad is not flag:
                self._flags = [(param, param.requires_grad) for _, param in self._params()]
                self._write_skeleton()
                break
        return self._node

    def _write_skeleton(self) -> None:
        node: dict[str, Node] = {"count": len(self._places)}
        added = [self._describe(key, place) for key, place in self._places.items() if key not in self._baseline]
        removed = sorted(self._baseline.difference(self._places))
        flipped = [key for key, param in self._params() if self._frozen.get(key, True) != param.requires_grad]
        node |= {"added": added} if added else {}
        node |= {"removed": removed} if removed else {}
        node |= {"flipped": flipped} if flipped else {}
        self._node = node

    def _describe(self, key: str, place: tuple[dict[str, Any], str]) -> Node:
        tensor = place[0][place[1]]
        return [key, isinstance(tensor, Parameter), str(tensor.dtype).removeprefix("torch.")]

    # Restoring ----------------------------------------------------------------------------------------------

    def restore(self, read: Read, node: Node, device: torch.device) -> None:
        if "custom" in node:
            raise changed_kind(self.name)
        self._collect()
        added = {key: (is_param, dtype) for key, is_param, dtype in node.get("added", ())}
        wanted = (self._baseline | added.keys()) - set(node.get("removed", ()))
        if len(wanted) != node["count"]:
            raise UserError(
                f"`{self.name}` has {len(self._baseline)} tensors here, {node['count']} were saved",
                hints=["resume with the script that started the run, or start a new run"],
            )
        for key in self._places.keys() - wanted:
            container, own = self._places[key]
            container[own] = None
        done: set[int] = set()
        for key in [*(key for key in self._places if key in wanted), *wanted.difference(self._places)]:
            stored = read(f"{self.name}.{key}")
            if key not in self._places:
                self._register(key, stored, *added.get(key, (False, "")), device)
            else:
                self._restore_one(key, stored, done)
        self.refresh(force=True)
        self._restore_flags(set(node.get("flipped", ())))

    def _restore_one(self, key: str, stored: Tensor, done: set[int]) -> None:
        container, own = self._places[key]
        live = container[own]
        if id(live) in done:
            return
        done.add(id(live))
        fits = carrier(live).shape == stored.shape
        if isinstance(live, Parameter) and carrier(live).is_floating_point() != stored.is_floating_point():
            kinds = [str(each.dtype).removeprefix("torch.") for each in (carrier(live), stored)]
            raise UserError(
                f"{self.name}.{key} is {kinds[0]} here, {kinds[1]} was saved",
                hints=["resume with the script that started the run, or start a new run"],
            )
        if fits and fill(live, stored):
            return
        if isinstance(live, Parameter) and not fits:
            raise UserError(
                f"{self.name}.{key} is {list(live.shape)} here, {list(stored.shape)} was saved",
                hints=["resume with the script that started the run, or start a new run"],
            )
        # A buffer may have grown during training; an expanded tensor cannot be written into.
        fresh = uncarry(stored, live.dtype).to(live.device, live.dtype, copy=True)
        if isinstance(live, Parameter):
            live.data = fresh
        else:
            container[own] = fresh

    def _register(self, key: str, stored: Tensor, is_param: bool, dtype: str, device: torch.device) -> None:
        prefix, dot, own = key.rpartition(".")
        owner = self._owners.get(prefix + dot)
        if owner is None:
            raise UserError(
                f"{self.name}.{key} was saved, but the module has no such place",
                cause="a layer was added during training",
                hints=["build all layers before protect()"],
            )
        tensor = uncarry(stored, getattr(torch, dtype, stored.dtype)).to(device, copy=True)
        if is_param:
            owner._parameters[own] = Parameter(tensor, requires_grad=tensor.is_floating_point())
        else:
            owner._buffers[own] = tensor

    def _restore_flags(self, flipped: set[str]) -> None:
        for key, param in self._params():
            param.requires_grad_(self._frozen.get(key, True) != (key in flipped))
        self._flags = [(param, param.requires_grad) for _, param in self._params()]
        self._write_skeleton()

    def move(self, device: torch.device) -> None:
        self._module.to(device)
        self.refresh(force=True)
