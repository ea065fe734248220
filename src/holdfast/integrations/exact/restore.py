"""The way back: the variables of a process that is at the same place become what another process saved there.

    restore = Restore(nodes, read, constants, owned)
    restore.frames(rows, frames)                # Different if this script cannot be led there, and why

Each saved value meets the value that is there now. A container or an object is changed in place, so that everything
that refers to it sees the change. Numbers and iterators are made anew. What was not saved stays what set-up made it.
"""

from __future__ import annotations

import base64
import collections
import enum
import math
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from holdfast.integrations.exact import frames as places
from holdfast.integrations.exact import loaders
from holdfast.integrations.exact.capture import BUILDERS, SIMPLE, cells_of
from holdfast.integrations.exact.constants import Constants
from holdfast.integrations.exact.ours import is_own

_NOTHING: Any = object()


class Different(Exception):
    """This process cannot become what was saved; the message says why."""


class Restore:
    """One way back."""

    def __init__(
        self,
        nodes: list[list[Any]],
        read: Callable[[str], torch.Tensor],
        constants: Constants,
        owned: dict[str, torch.Tensor],
    ) -> None:
        self._nodes = nodes
        self._read = read
        self._constants = constants
        self._owned_now = owned
        self._done: dict[int, Any] = {}
        self._alive: list[Any] = []
        self._claimed: dict[int, Any] = {}

    # -- frames --------------------------------------------------------------------------------------------

    def frames(self, rows: list[Any], found: list[types.FrameType]) -> None:
        for row, frame in zip(rows, found, strict=True):
            self._frame(row, frame, frame.f_code.co_name)

    def modules(self, rows: list[Any]) -> None:
        for name, variables in rows:
            module = sys.modules.get(str(name))
            if module is None or not is_own(str(name)):
                raise Different(f"the module {name} is not imported any more")
            self._names(variables, vars(module), vars(module).__setitem__, str(name))

    def _frame(self, row: list[Any], frame: types.FrameType, path: str) -> None:
        place, variables, loops, read = row
        if place != places.where(frame):
            raise Different(f"{path} is at another place, {places.line(frame)}")
        path = "" if path == "<module>" else path
        new: dict[str, Any] = {}
        self._names(variables, frame.f_locals, new.__setitem__, path)
        if new:
            places.set_locals(frame, new)
        for number, (saved, now) in enumerate(zip(loops, places.iterators(frame), strict=True)):
            made = self.value(saved, now, f"{path}.for{number}")
            if made is not now:
                places.set_iterator(frame, number, made)
        have = dict(places.waiting(frame))
        for at, saved in read:
            if at not in have:
                raise Different(f"{path} is in the middle of another expression, {places.line(frame)}")
            made = self.value(saved, have[at], f"{path}.read{at}")
            if made is not have[at]:
                places.set_waiting(frame, int(at), made)

    def _names(self, rows: list[Any], known: Any, put: Callable[[str, Any], Any], path: str) -> None:
        for name, saved in rows:
            _check_name(name, path)
            now = known.get(name, _NOTHING)
            made = self.value(saved, now, f"{path}.{name}" if path else str(name))
            if made is not now:
                put(name, made)

    # -- values --------------------------------------------------------------------------------------------

    def value(self, saved: Any, now: Any, path: str) -> Any:
        if type(saved) is not list:
            return now if _is(saved, now) else saved
        if saved[0] != "@":
            return self._leaf(saved, now, path)
        number = int(saved[1])
        if number in self._done:
            return self._done[number]
        node = self._nodes[number]
        make = _NODES.get(str(node[0]))
        if make is None:
            raise Different(f"{path} was saved as {node[0]!r}, which is unknown")
        made = make(self, node, self._claim(node, now), path, number)
        self._done[number] = made
        return made

    def _claim(self, node: list[Any], now: Any) -> Any:
        """The object that is changed in place. One that another node has become already is not changed twice: two
        variables that hold one list here may have held two when they were saved."""
        if node[0] not in _IN_PLACE or now is _NOTHING:
            return now
        if id(now) in self._claimed:
            return _NOTHING
        self._claimed[id(now)] = now
        return now

    def _leaf(self, saved: list[Any], now: Any, path: str) -> Any:
        kind = saved[0]
        if kind == "keep":
            return self._keep_now(now, path, "an object")
        make = _LEAVES.get(str(kind))
        if make is None:
            raise Different(f"{path} was saved as {kind!r}, which is unknown")
        return make(saved)

    def _keep_now(self, now: Any, path: str, what: str) -> Any:
        if now is _NOTHING:
            raise Different(f"{path} ({what}) is made later than in the first step")
        return now

    def _members(self, saved: list[Any], now: Any, path: str) -> list[Any]:
        have = list(now) if isinstance(now, (list, tuple, collections.deque)) else []
        return [
            self.value(each, have[at] if at < len(have) else _NOTHING, f"{path}.{at}") for at, each in enumerate(saved)
        ]

    def _list(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        target = now if isinstance(now, list) and type(now).__name__ == node[1] else []
        self._done[number] = target
        made = self._members(node[2], now, path)
        if len(made) != len(target) or any(new is not old for new, old in zip(made, target, strict=True)):
            list.__setitem__(target, slice(None), made)
        return target

    def _tuple(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        made = self._members(node[2], now, path)
        if isinstance(now, tuple) and len(now) == len(made) and all(map(_is, made, now)):
            return now
        if isinstance(now, tuple) and hasattr(now, "_make") and type(now).__name__ == node[1]:
            return now._make(made)
        if node[1] != "tuple":
            raise Different(f"{path} is a {node[1]} that is made later than in the first step")
        return tuple(made)

    def _set(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        target = now if isinstance(now, set) else set()
        made = self._members(node[2], sorted(target, key=repr) if target else (), path)
        _fill(target, made)
        return target

    def _frozenset(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        made = frozenset(self._members(node[2], (), path))
        return now if isinstance(now, frozenset) and now == made else made

    def _deque(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        same = isinstance(now, collections.deque) and now.maxlen == node[1]
        target = now if same else collections.deque(maxlen=node[1])
        self._done[number] = target
        made = self._members(node[2], now if same else (), path)
        target.clear()
        target.extend(made)
        return target

    def _dict(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        target = now if isinstance(now, dict) and type(now).__name__ == node[1] else _new_dict(node[1], path)
        self._done[number] = target
        keys = list(target)
        rows = []
        for at, (key, each) in enumerate(node[2]):
            name = self.value(key, keys[at] if at < len(keys) else _NOTHING, f"{path}.key")
            rows.append((name, self.value(each, target.get(name, _NOTHING), f"{path}.{name}")))
        if [name for name, _ in rows] != keys:
            target.clear()
        for name, each in rows:
            if target.get(name, _NOTHING) is not each:
                target[name] = each
        return target

    def _data(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        if type(now).__name__ != node[1] or len(now) != node[2]:
            raise Different(f"{path} holds other data than in the first process")
        return now

    def _constant(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        mark = None
        if isinstance(now, torch.Tensor):
            mark = self._constants.mark(now)
        elif isinstance(now, np.ndarray):
            mark = self._constants.mark_array(now, node[1].endswith("places"))
        if mark != node[1]:
            raise Different(f"{path} is other data than in the first process")
        return now

    def _owned(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        """Also for a variable that this process does not have yet, like the last parameter that a loop has visited."""
        found = self._owned_now.get(str(node[1]))
        return self._keep_now(_NOTHING if found is None else found, path, "a tensor of a model")

    def _kept(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        return self._keep_now(now, path, "an object that cannot be saved")

    def _view(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        """A part of another tensor: of the same one again, so that what is written to one is in both."""
        shape, stride, offset = node[2:5]
        is_view = isinstance(now, torch.Tensor) and now._base is not None
        base = self.value(node[1], now._base if is_view else _NOTHING, f"{path}.base")
        same = is_view and now._base is base and now.grad_fn is None
        if same and [list(now.shape), list(now.stride()), now.storage_offset()] == [shape, stride, offset]:
            return now
        return base.detach().as_strided(shape, stride, offset)

    def _array_view(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        dtype, shape, strides, offset, writeable = node[2:7]
        is_view = isinstance(now, np.ndarray) and type(now.base) is np.ndarray
        base = self.value(node[1], now.base if is_view else _NOTHING, f"{path}.base")
        memory = base if base.flags.c_contiguous else base.T
        made: np.ndarray[Any, Any] = np.ndarray(shape, np.dtype(dtype), memory, offset, strides)
        made.flags.writeable = made.flags.writeable and writeable
        same = is_view and now.base is base and now.__array_interface__ == made.__array_interface__
        return now if same else made

    def _tensor(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        stored = self._read(str(node[1]))
        (requires_grad, is_parameter, is_leaf, device), stride = node[2], node[3]
        same = (
            isinstance(now, torch.Tensor)
            and now.shape == stored.shape
            and now.dtype == stored.dtype
            and str(now.device) == device
            and list(now.stride()) == stride
        )
        if (
            same
            and now._base is None
            and now.is_leaf
            and is_leaf
            and now.requires_grad == requires_grad
            and not torch.is_inference(now)
        ):
            with torch.no_grad():
                now.copy_(stored)
            return now
        made = (
            torch.empty_strided(tuple(stored.shape), stride, dtype=stored.dtype, device=device)
            if _whole(stored, stride)
            else torch.empty_like(stored, device=device)
        )
        made.copy_(stored)
        if is_parameter:
            return torch.nn.Parameter(made, requires_grad)
        return made.requires_grad_(requires_grad and is_leaf)

    def _array(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        stored = self._read(str(node[1])).cpu().numpy()
        same = isinstance(now, np.ndarray) and now.shape == stored.shape and now.dtype == stored.dtype
        if same and now.flags.writeable and now.base is None:
            now[...] = stored
            return now
        return stored.copy()

    def _raw(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        return np.frombuffer(base64.b64decode(node[3]), dtype=np.dtype(node[1])).reshape(node[2]).copy()

    def _objects(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        have = now.ravel().tolist() if isinstance(now, np.ndarray) and now.dtype == object else []
        made = np.empty(len(node[2]), dtype=object)
        for at, each in enumerate(self._members(node[2], have, path)):
            made[at] = each
        return made.reshape(node[1])

    def _generator(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        if not isinstance(now, types.GeneratorType) or now.gi_frame is None:
            raise Different(f"{path} is a generator that is made later than in the first step")
        self._done[number] = now
        self._frame(node[1], now.gi_frame, path)
        return now

    def _running(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        return self._keep_now(now, path, "a generator")

    def _ended(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        if isinstance(now, types.GeneratorType) and now.gi_frame is not None:
            now.close()
        return self._keep_now(now, path, "a generator")

    def _iterator(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        """A new one. What the one that is there now draws from is the same object again where it can be."""
        have: Any = ()
        if now is not _NOTHING and hasattr(now, "__reduce__"):
            try:
                told = now.__reduce__()
                have = told[1] if isinstance(told, tuple) else ()
            except TypeError:
                have = ()
        self._alive.append(have)
        made = BUILDERS[node[1]](*self._members(node[2], have, path))
        state = self.value(node[3], _NOTHING, path)
        if state is not None:
            made.__setstate__(state)
        return made

    def _batches(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        have = getattr(now, "_holdfast_loader", _NOTHING)
        loader = self.value(node[1], have, f"{path}.loader")
        if number in self._done:  # a loader whose processes last has its iterator as an attribute
            return self._done[number]
        own = self.value(node[4], _NOTHING, path)
        made_own = self.value(node[7], _NOTHING, path) if node[5] else {}
        place = loaders.Place(int(node[2]), str(node[3]), own, str(node[5]), tuple(map(str, node[6])), made_own)
        return loaders.again(loader, place)

    def _function(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        if not isinstance(now, types.FunctionType) or now.__qualname__ != node[1]:
            raise Different(f"{path} is a function that is made later than in the first step")
        self._done[number] = now
        for (cell, name), saved in zip(cells_of(now), node[2], strict=True):
            try:
                have = cell.cell_contents
            except ValueError:
                have = _NOTHING
            made = self.value(saved, have, f"{path}.{name}")
            if made is not have and not (have is _NOTHING and made is None):
                cell.cell_contents = made
        self.value(node[3], now.__defaults__, path)
        self._names(node[4], vars(now), vars(now).__setitem__, path)
        return now

    def _method(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        self._keep_now(now, path, "a method")
        self.value(node[1], getattr(now, "__self__", _NOTHING), path)
        return now

    def _partial(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        self._keep_now(now, path, "a partial")
        self.value(node[1], now.func, f"{path}.func")
        self.value(node[2], now.args, path)
        return now

    def _class(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        self._keep_now(now, path, "a class")
        self._done[number] = now
        self._names(node[2], dict(vars(now)), lambda name, made: setattr(now, name, made), path)
        return now

    def _object(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        if f"{type(now).__module__}:{type(now).__qualname__}" != node[1]:
            now = _new_object(str(node[1]), path)
        self._done[number] = now
        known = getattr(now, "__dict__", {})
        for name, saved in node[2]:
            _check_name(name, path)
            table, _, key = str(name).partition(":")
            inner = known.get(table) if key and isinstance(now, torch.nn.Module) else None
            if inner is not None:
                have = inner.get(key, _NOTHING)
                made = self.value(saved, have, f"{path}.{key}")
                if made is not have:
                    inner[key] = made
                continue
            have = known.get(name, _NOTHING) if name in known else getattr(now, name, _NOTHING)
            made = self.value(saved, have, f"{path}.{name}")
            if made is not have:
                _set_attribute(now, name, made)
        return now

    def _scaler(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        made = self._object(node, now, path, number)
        states = getattr(made, "_per_optimizer_states", {})
        have = dict(states)
        states.clear()
        for saved, state in node[3]:
            optimizer = self.value(saved, _NOTHING, f"{path}.optimizer")
            known = have.get(id(optimizer), _NOTHING)
            states[id(optimizer)] = self.value(state, known, f"{path}.optimizer{len(states)}")
        return made

    def _enum(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        """A member of the class of the one that is there now, or of one of the script's classes."""
        kind = type(now)
        if f"{kind.__module__}:{kind.__qualname__}" != node[1]:
            kind = _class_of(str(node[1]))
        if not isinstance(kind, enum.EnumMeta):
            raise Different(f"{path} ({node[1]}) is made later than in the first step")
        return kind(node[3]) if node[2] is None else kind.__members__[node[2]]  # a sum of flags has no name

    def _torch_random(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        made = now if isinstance(now, torch.Generator) else torch.Generator()
        made.set_state(self._read(str(node[1])).cpu().clone())
        return made

    def _numpy_random(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        self._keep_now(now, path, "a generator")
        target = now if isinstance(now, np.random.BitGenerator) else now.bit_generator
        target.state = self.value(node[1], _NOTHING, path)
        return now

    def _numpy_random_state(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        made = now if isinstance(now, np.random.RandomState) else np.random.RandomState()
        made.set_state(self.value(node[1], _NOTHING, path))
        return made

    def _random(self, node: list[Any], now: Any, path: str, number: int) -> Any:
        import random

        made = now if isinstance(now, random.Random) else random.Random()
        made.setstate(self.value(node[1], _NOTHING, path))
        return made


_NODES: dict[str, Callable[[Restore, list[Any], Any, str, int], Any]] = {
    "list": Restore._list,
    "tuple": Restore._tuple,
    "set": Restore._set,
    "frozenset": Restore._frozenset,
    "deque": Restore._deque,
    "dict": Restore._dict,
    "data": Restore._data,
    "constant": Restore._constant,
    "owned": Restore._owned,
    "keep": Restore._kept,
    "tensor": Restore._tensor,
    "view": Restore._view,
    "array_view": Restore._array_view,
    "array": Restore._array,
    "raw": Restore._raw,
    "objects": Restore._objects,
    "generator": Restore._generator,
    "running": Restore._running,
    "ended": Restore._ended,
    "iterator": Restore._iterator,
    "batches": Restore._batches,
    "function": Restore._function,
    "method": Restore._method,
    "partial": Restore._partial,
    "class": Restore._class,
    "object": Restore._object,
    "scaler": Restore._scaler,
    "enum": Restore._enum,
    "torch_random": Restore._torch_random,
    "numpy_random": Restore._numpy_random,
    "numpy_random_state": Restore._numpy_random_state,
    "random": Restore._random,
}

_IN_PLACE = frozenset(("list", "dict", "set", "deque", "tensor", "array", "object", "scaler"))

_LEAVES: dict[str, Callable[[list[Any]], Any]] = {
    "bytes": lambda saved: base64.b64decode(saved[1]),
    "complex": lambda saved: complex(saved[1], saved[2]),
    "range": lambda saved: range(saved[1], saved[2], saved[3]),
    "size": lambda saved: torch.Size(saved[1]),
    "device": lambda saved: torch.device(saved[1]),
    "path": lambda saved: pathlib.Path(saved[1]),
    "number": lambda saved: np.frombuffer(base64.b64decode(saved[2]), dtype=np.dtype(saved[1]))[0],
}


def _check_name(name: Any, path: str) -> None:
    """Names with a meaning to Python itself are never saved."""
    if not isinstance(name, str) or name.startswith("__"):
        raise Different(f"{path} was saved with the name {name!r}")


def _fill(target: set[Any], made: list[Any]) -> None:
    """With these members, in this order where that can be had: it depends on how large the set has been before."""
    for room in (0, *(1 << power for power in range(2, 15))):
        if list(target) == made:
            return
        target.clear()
        target.update(made)
        others = {object() for _ in range(room)}
        target.update(others)
        for each in others:
            target.discard(each)  # difference_update would make the set small again


def _is(new: Any, old: Any) -> bool:
    if new is old or type(new) is not type(old) or type(new) not in SIMPLE:
        return new is old
    return bool(new == old) and (type(new) is not float or math.copysign(1.0, new) == math.copysign(1.0, old))


def _whole(stored: torch.Tensor, stride: list[int]) -> bool:
    """Whether a tensor of these strides is one block of memory without gaps."""
    order = sorted(range(stored.dim()), key=lambda axis: (-stride[axis], -stored.shape[axis]))
    step = 1
    for axis in reversed(order):
        if stored.shape[axis] != 1 and stride[axis] != step:
            return False
        step *= max(1, stored.shape[axis])
    return True


def _new_dict(name: str, path: str) -> Any:
    kinds: dict[str, Any] = {"dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter}
    made = kinds.get(name)
    if made is None:
        raise Different(f"{path} is a {name} that is made later than in the first step")
    return made()


def _new_object(name: str, path: str) -> Any:
    """An object of one of the script's own classes, or of a layer of torch, without a call of its constructor."""
    module, _, qualified = name.partition(":")
    found = _class_of(name)
    if not isinstance(found, type) or not (is_own(module) or module.startswith("torch.nn.modules.")):
        raise Different(f"{path} ({qualified}) is made later than in the first step")
    made: Any = object.__new__(found)
    if issubclass(found, torch.nn.Module):
        torch.nn.Module.__init__(made)
    return made


def _class_of(name: str) -> Any:
    """The class of this name in a module that is imported; None where there is none."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found


def _set_attribute(target: Any, name: str, value: Any) -> None:
    known = getattr(target, "__dict__", None)
    if isinstance(known, dict) and (name in known or not hasattr(type(target), name)):
        known[name] = value
    else:
        object.__setattr__(target, name, value)
