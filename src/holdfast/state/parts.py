"""The kinds of objects that can be protected, each seen as live tensors and a JSON skeleton.

    part = make_part("model", model)
    part.refresh()                   # has a tensor been replaced since the last look?
    part.slots, part.skeleton()      # what to save
    part.restore(read, skeleton, device)

A module or an optimizer is looked at through its own containers, so that a step costs an identity check per
tensor. One that says how it wants to be saved (its own state_dict, hooks, extra state) is asked at each step.
"""

from __future__ import annotations

import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from holdfast.base.errors import UserError
from holdfast.state.flatten import Flattener, Node, Read, Slot, carrier, unflatten
from holdfast.state.layout import MODULE
from holdfast.state.torch_private import elements_share_memory


class Part(ABC):
    """One protected object. `slots`, `fresh` and `skeleton()` are those of the last `refresh()`."""

    kind: str

    def __init__(self, name: str) -> None:
        self.name = name
        self.slots: list[Slot] = []
        """Tensors that live on from step to step."""
        self.fresh: list[Slot] = []
        """Tensors that may be others at each look, in number too."""

    @abstractmethod
    def refresh(self, *, force: bool = False) -> bool:
        """Look again. True if `slots` is another list than before."""

    def _settle(self, drifting: Mapping[str, Tensor]) -> bool:
        """Move slots whose tensor is replaced again and again to `fresh`. True if there were any."""
        steady = [slot for slot in self.slots if slot.name not in drifting]
        moved = len(steady) != len(self.slots)
        if moved:
            self.slots = steady
        return moved

    @abstractmethod
    def skeleton(self) -> Node:
        """What is not a tensor. The same object again as long as nothing in it changed."""

    @abstractmethod
    def restore(self, read: Read, node: Node, device: torch.device) -> None:
        """Become what was saved, in place where possible."""

    def move(self, device: torch.device) -> None:  # noqa: B027 - objects that hold their own tensors stay
        """Go to a device, if the part is one that can."""

    def bytes_to_come(self) -> int:
        """How much larger than now the part will be once training runs."""
        return 0


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


_NOTHING: Node = Flattener("").encode({})


class ObjectPart(Part):
    """Anything with state_dict and load_state_dict, asked at each step."""

    def __init__(self, name: str, target: Stateful, kind: str = "object") -> None:
        super().__init__(name)
        self.kind = kind
        self._target = target
        self._node: Node = None
        self.refresh()

    def refresh(self, *, force: bool = False) -> bool:
        flat = Flattener(self.name)
        # No comparison with the last one: 1, 1.0 and True are equal, and are not the same to whoever saved them.
        self._node = flat.encode(self._target.state_dict())
        self.fresh = flat.slots
        return False

    def skeleton(self) -> Node:
        return self._node

    def restore(self, read: Read, node: Node, device: torch.device) -> None:
        self._target.load_state_dict(unflatten(node, read, device))

    def copied(self) -> tuple[Node, dict[str, Tensor]]:
        """What the object says of itself now, in memory of its own."""
        state = self._target.state_dict()
        if type(state) is dict and not state:  # a session whose script keeps nothing in it: asked in each step
            return _NOTHING, {}
        flat = Flattener(self.name)
        node = flat.encode(state)
        return node, {slot.name: slot.tensor.detach().clone() for slot in flat.slots}


class CustomModulePart(ObjectPart):
    """A module that has a say in how it is saved. Its keys become tensor names as they are."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self._module = module
        super().__init__(name, module, MODULE)

    def refresh(self, *, force: bool = False) -> bool:
        flat = Flattener(self.name)
        state = self._module.state_dict()
        rows = [[key, flat.encode(value, key.replace("_orig_mod.", ""))] for key, value in state.items()]
        self._node = {"custom": rows}
        self.fresh = flat.slots
        return False

    def restore(self, read: Read, node: Node, device: torch.device) -> None:
        if "custom" not in node:
            raise changed_kind(self.name)
        # The live dict carries the versions of the layers, which load_state_dict looks at.
        state = self._module.state_dict()
        saved = {key: unflatten(value, read, torch.device("cpu")) for key, value in node["custom"]}
        for key in [key for key in state if key not in saved]:
            del state[key]
        state.update(saved)
        self._module.load_state_dict(state)

    def move(self, device: torch.device) -> None:
        self._module.to(device)


class ScalerPart(Part):
    """GradScaler. Its tensors are taken directly, because its state_dict() waits for the device."""

    kind = "scaler"
    _NUMBERS = (
        "_growth_factor",
        "_backoff_factor",
        "_growth_interval",
        "_init_scale",
        "_init_growth_tracker",
    )
    _TENSORS = ("_scale", "_growth_tracker")

    def __init__(self, name: str, scaler: GradScaler) -> None:
        super().__init__(name)
        self._scaler: Any = scaler
        self._node: Node = None
        self.refresh(force=True)

    def _live(self) -> list[Tensor]:
        found = [getattr(self._scaler, key, None) for key in self._TENSORS]
        return [tensor for tensor in found if tensor is not None]

    def refresh(self, *, force: bool = False) -> bool:
        live = self._live()
        if not force and [id(t) for t in live] == [id(slot.tensor) for slot in self.slots]:
            return False
        self.slots = [
            Slot(f"{self.name}.{key.strip('_')}", tensor) for key, tensor in zip(self._TENSORS, live, strict=False)
        ]
        return True

    def skeleton(self) -> Node:
        scaler = self._scaler
        node = {key: getattr(scaler, key, None) for key in self._NUMBERS}
        node |= {"enabled": scaler._enabled, "tensors": bool(self.slots)}
        if node != self._node:
            self._node = node
        return self._node

    def restore(self, read: Read, node: Node, device: torch.device) -> None:
        scaler = self._scaler
        if not scaler._enabled or not node["enabled"]:
            return
        for key in self._NUMBERS:
            setattr(scaler, key, node[key])
        # A step that was broken off has left notes here ("unscale_() has already been called").
        scaler._per_optimizer_states.clear()
        if not node["tensors"]:
            scaler._scale = scaler._growth_tracker = None
            return
        for key in self._TENSORS:
            stored, live = read(f"{self.name}.{key.strip('_')}"), getattr(scaler, key)
            if live is None:
                setattr(scaler, key, stored.to(device, copy=True))
            else:
                live.copy_(stored)

    def move(self, device: torch.device) -> None:
        for key, tensor in zip(self._TENSORS, self._live(), strict=False):
            setattr(self._scaler, key, tensor.to(device))


class SchedulerState:
    """A learning-rate scheduler without its functions, which cannot change. Those inside it are followed."""

    def __init__(self, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        self._scheduler = scheduler

    def _split(self) -> tuple[dict[str, Any], dict[str, SchedulerState], dict[str, Any]]:
        own: dict[str, Any] = {}
        inner: dict[str, SchedulerState] = {}
        fixed: dict[str, Any] = {}
        for key, value in self._scheduler.state_dict().items():
            if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
                inner[key] = SchedulerState(value)
            elif callable(value) or isinstance(value, torch.optim.Optimizer):
                fixed[key] = value
            else:
                own[key] = value
        return own, inner, fixed

    def state_dict(self) -> dict[str, Any]:
        own, inner, _ = self._split()
        return {"own": own, "inner": {key: item.state_dict() for key, item in inner.items()}} if inner else own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _, inner, fixed = self._split()
        own = state["own"] if inner else state
        for key, item in inner.items():
            item.load_state_dict(state["inner"][key])
            fixed[key] = item._scheduler
        self._scheduler.load_state_dict({**fixed, **own})


class TorchGeneratorState:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.get_state(), "device": self._generator.device.type}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["device"] == self._generator.device.type:
            self._generator.set_state(state["state"])
        else:
            # Another kind of device has another kind of state. Go on from a seed that depends on it.
            data = state["state"].numpy().tobytes()
            self._generator.manual_seed(int.from_bytes(data[:8], "little") ^ int.from_bytes(data[8:16], "little"))


class NumpyGeneratorState:
    def __init__(self, generator: np.random.Generator | np.random.RandomState) -> None:
        self._generator: Any = generator

    def state_dict(self) -> dict[str, Any]:
        if isinstance(self._generator, np.random.RandomState):
            return dict(self._generator.get_state(legacy=False))
        return dict(self._generator.bit_generator.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(self._generator, np.random.RandomState):
            self._generator.set_state(state)
        else:
            self._generator.bit_generator.state = state


class PythonRandomState:
    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self._generator.getstate()
        return {"version": version, "words": struct.pack(f"<{len(words)}I", *words), "gauss": gauss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        words = struct.unpack(f"<{len(state['words']) // 4}I", state["words"])
        self._generator.setstate((state["version"], words, state["gauss"]))


def changed_kind(name: str) -> UserError:
    return UserError(
        f"`{name}` is saved in another way than it was built now",
        cause="its class, its state-dict hooks or its extra state differ from those of the run that saved it",
        hints=["resume with the script that started the run, or start a new run"],
    )


def is_same(target: Tensor, stored: Tensor) -> bool:
    """Can `stored` be copied into `target` and leave exactly what was saved?"""
    return target.shape == stored.shape and target.dtype == stored.dtype


def is_successor(old: Any, new: Any) -> bool:
    """Is `new` a tensor that took the place of one of the same form on the same device?"""
    return (
        isinstance(old, Tensor)
        and isinstance(new, Tensor)
        and is_same(old, new)
        and old.device == new.device
        and old.layout == new.layout
    )


def fill(target: Tensor, stored: Tensor) -> bool:
    """Copy into the live tensor. False if its elements share memory (an expanded tensor): replace it then."""
    if elements_share_memory(target):
        return False
    carrier(target).copy_(stored)
    return True


def make_other(name: str, target: Any) -> Part:
    """A part for everything that is neither a module nor an optimizer."""
    if isinstance(target, GradScaler) and type(target).state_dict is GradScaler.state_dict:
        return ScalerPart(name, target)
    for cls, wrap, kind in _WRAPPED:
        if isinstance(target, cls):
            return ObjectPart(name, wrap(target), kind)
    if isinstance(target, Stateful) and not isinstance(target, type):
        return ObjectPart(name, target)
    raise _not_stateful(name, target)


_WRAPPED: tuple[tuple[Any, Callable[[Any], Stateful], str], ...] = (
    (torch.optim.lr_scheduler.LRScheduler, SchedulerState, "scheduler"),
    (torch.Generator, TorchGeneratorState, "generator"),
    ((np.random.Generator, np.random.RandomState), NumpyGeneratorState, "generator"),
    (random.Random, PythonRandomState, "generator"),
)


def _not_stateful(name: str, target: Any) -> UserError:
    if isinstance(target, type):
        return UserError(
            f"`{name}` cannot be protected: it is the class `{target.__name__}`, not an object of it",
            hints=[f"pass {name}={target.__name__}(...)"],
        )
    lacks = [key for key in ("state_dict", "load_state_dict") if not hasattr(target, key)]
    hints = [f"give `{type(target).__name__}` the methods state_dict() and load_state_dict(state)"]
    if isinstance(target, Tensor):
        hints = ["make it a parameter or a buffer of a module and protect the module"]
    elif isinstance(target, (Mapping, list, tuple)):
        hints = [f"protect its members by name: protect({name}_0=..., {name}_1=...)"]
    return UserError(
        f"`{name}` cannot be protected: a `{type(target).__name__}` has no {' and no '.join(lacks)}",
        hints=hints,
    )
