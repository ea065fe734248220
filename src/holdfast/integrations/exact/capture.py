"""What the variables of a script hold, as JSON and tensors. No pickle.

    capture = Capture(owned, constants)
    capture.frames(frames)                 # a row for each frame: its place, variables and loops
    capture.text(), capture.tensors        # what to save
    capture.unsaved                        # {"envs.ale": "ALEInterface"}: objects whose state cannot be read

A value that has no parts stands for itself. One that has is a node, and `["@", 7]` speaks of node 7: two variables that
hold one list hold one list afterwards. Node kinds are the first word of each node; restore.py has the way back.
Tensors of modules and optimizers are `owned`, by name: state/ saves them. Large data that the set-up makes and nobody
changes are `constants`: only a checksum is saved, because a new process makes them again.
"""

from __future__ import annotations

import base64
import collections
import enum
import functools
import itertools
import json
import pathlib
import random
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from holdfast.integrations.exact import frames as places
from holdfast.integrations.exact.constants import LARGE, Constants
from holdfast.integrations.exact.loaders import begun_json, processes
from holdfast.integrations.exact.ours import is_own, library
from holdfast.integrations.exact.packages import Packages
from holdfast.state.torch_private import is_loader_iterator

MOST_NODES = 300_000
MOST_DEPTH = 80
LONG = 1000
"""Members of a container below a Dataset from which on it is taken as part of the data, which set-up makes again."""
SIMPLE = frozenset((type(None), bool, int, float, str))
BUILDERS: dict[str, Any] = {
    each.__name__: each
    for each in (
        iter, enumerate, zip, map, filter, reversed, itertools.chain, itertools.islice, itertools.cycle,
        itertools.count, itertools.repeat, itertools.starmap, itertools.accumulate, itertools.zip_longest,
        itertools.product,
    )
}  # fmt: skip
"""What an iterator of Python's own may say that it is made with."""
_SOURCES: tuple[Any, ...] = (range(0), [], (), "", b"", {}, {}.values(), {}.items(), set())
_ITERATORS: set[type] = {
    *(type(iter(each)) for each in _SOURCES), *(type(reversed(each)) for each in _SOURCES[:2]),
    type(iter(range(1 << 70))), type(iter(int, 1)), enumerate, zip, map, filter,
    *(each for each in vars(itertools).values() if isinstance(each, type) and not each.__name__.startswith("_")),
}  # fmt: skip
_SILENT = (
    types.ModuleType, types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.CodeType,
    types.MethodDescriptorType, types.GetSetDescriptorType, types.MappingProxyType, staticmethod, classmethod, property,
    np.dtype, torch.dtype, torch.layout, torch.memory_format, torch.Stream, torch.Event, BaseException,
)  # fmt: skip
"""What a new process has as well, or what nobody goes on with."""
_OPTIMIZER = ("state", "param_groups", "defaults", "step")
_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}
_LIBRARIES = frozenset(
    [
        "logging",
        "threading",
        "multiprocessing",
        "subprocess",
        "socket",
        "asyncio",
        "concurrent",
        "selectors",
        "ssl",
        "wandb",
        "tensorboard",
        "tensorboardX",
        "matplotlib",
        "weakref",
        "io",
        "_io",
        "contextvars",
        "importlib",
        "unittest",
        "inspect",
        "queue",
        "mlflow",
        "comet_ml",
        "neptune",
        "clearml",
    ]
)
"""Packages whose objects belong to one process: a new process has its own."""


class Unsaved(Exception):
    """The state cannot be saved, and the message says why."""


class Capture:
    """One picture of what is reachable. Its tensors are the live ones."""

    def __init__(self, owned: dict[int, str], constants: Constants) -> None:
        self.nodes: list[list[Any]] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.unsaved: dict[str, str] = {}
        self._owned = owned
        self._constants = constants
        self._index: dict[int, int] = {}
        self._alive: list[Any] = []
        """Objects made on the way: a number of `id` is theirs as long as they live."""
        self.writers: list[Any] = []
        """Objects that write to files, and may have something in a buffer."""
        self._optimizers: set[int] = set()
        self._scalers: list[tuple[list[Any], Any, str]] = []
        """GradScalers whose optimizers are looked up once everything else was walked."""
        self._in_data = 0

    def text(self) -> str:
        """The nodes. Call it after all frames and modules: what scalers hold of optimizers is added here."""
        while self._scalers:
            self._scaler_states(*self._scalers.pop())
        return json.dumps(self.nodes, separators=(",", ":"))

    def has(self, value: Any) -> bool:
        """Whether a variable of the script leads to this object."""
        return id(value) in self._index

    def reached(self) -> list[Any]:
        """Every object that was walked."""
        return list(self._alive)

    # -- frames --------------------------------------------------------------------------------------------

    def frames(self, found: list[types.FrameType]) -> list[Any]:
        return [self._frame(frame, frame.f_code.co_name) for frame in found]

    def modules(self, packages: Packages) -> list[Any]:
        """Variables of the modules that are the script's own, `__main__` aside."""
        names = sorted(name for name in tuple(sys.modules) if name != "__main__" and is_own(name))
        return [[name, self._names(vars(sys.modules[name]), name)] for name in packages.saved(names)]

    def _frame(self, frame: types.FrameType, path: str) -> list[Any]:
        path = "" if path == "<module>" else path
        variables = self._names(frame.f_locals, path)
        loops = [self.value(each, f"{path}.for{number}") for number, each in enumerate(places.iterators(frame))]
        read = [[at, self.value(each, f"{path}.read{at}")] for at, each in places.waiting(frame) if plain(each)]
        return [places.where(frame), variables, loops, read]

    def _names(self, known: Any, path: str) -> list[list[Any]]:
        taken = []
        for name, each in list(known.items()):
            if name.startswith("__") or isinstance(each, _SILENT):
                continue
            taken.append([name, self.value(each, f"{path}.{name}" if path else name)])
        return taken

    # -- values --------------------------------------------------------------------------------------------

    def value(self, value: Any, path: str) -> Any:
        """The value itself, or `["@", node]`, or a small list that says how to make it."""
        kind = type(value)
        if kind in SIMPLE:
            return value
        leaf = _LEAVES.get(kind)
        if leaf is not None:
            return leaf(value)
        known = self._index.get(id(value))
        if known is not None:
            return ["@", known]
        if path.count(".") > MOST_DEPTH:
            return ["keep"]
        if len(self.nodes) > MOST_NODES:
            raise Unsaved(f"its variables reach more than {MOST_NODES:,} objects")
        number = len(self.nodes)
        self._index[id(value)] = number
        self._alive.append(value)
        self.nodes.append([])
        self.nodes[number] = self._node(value, kind, path)
        return ["@", number]

    def _node(self, value: Any, kind: type, path: str) -> list[Any]:
        make = _NODES.get(kind)
        if make is not None:
            return make(self, value, path)
        for base, make in _FAMILIES:
            if isinstance(value, base):
                return make(self, value, path)
        if is_loader_iterator(value):
            return self._loader_iterator(value, path)
        return self._object(value, kind, path)

    def _members(self, values: Iterable[Any], path: str) -> list[Any]:
        simple = SIMPLE
        return [each if type(each) in simple else self.value(each, f"{path}.{at}") for at, each in enumerate(values)]

    def _sequence(self, value: Any, path: str) -> list[Any]:
        if self._in_data and len(value) > LONG:
            return ["data", type(value).__name__, len(value)]
        return [_word(value, (list, tuple, frozenset, set)), type(value).__name__, self._members(value, path)]

    def _set(self, value: Any, path: str) -> list[Any]:
        """A set of plain values. One of objects has no order by which they could be found again."""
        if not all(map(_is_flat, value)):
            return ["keep"]
        return self._sequence(value, path)

    def _deque(self, value: Any, path: str) -> list[Any]:
        return ["deque", value.maxlen, self._members(value, path)]

    def _dict(self, value: Any, path: str) -> list[Any]:
        if self._in_data and len(value) > LONG:
            return ["data", type(value).__name__, len(value)]
        rows = [
            [self.value(key, f"{path}.key"), self.value(each, f"{path}.{key}")] for key, each in list(value.items())
        ]
        return ["dict", type(value).__name__, rows]

    def _tensor(self, value: torch.Tensor, path: str) -> list[Any]:
        if id(value) in self._owned:
            return ["owned", self._owned[id(value)]]
        if type(value).__module__.startswith("torch._subclasses") or value.is_sparse or value.is_meta:
            self.unsaved[path] = type(value).__name__
            return ["keep"]
        base = value._base
        if base is not None and value.grad_fn is None and value.dtype == base.dtype and not value.is_conj():
            shape = [list(value.shape), list(value.stride()), value.storage_offset()]
            return ["view", self.value(base, f"{path}.base"), *shape]
        if value.nbytes >= LARGE and (mark := self._constants.mark(value, bool(self._in_data), path)) is not None:
            return ["constant", mark, path]
        about = [bool(value.requires_grad), isinstance(value, torch.nn.Parameter), value.is_leaf, str(value.device)]
        return ["tensor", self._keep(path, value.detach()), about, list(value.stride())]

    def _keep(self, path: str, tensor: torch.Tensor) -> str:
        name = path
        while name in self.tensors:
            name += "'"
        self.tensors[name] = tensor
        return name

    def _array(self, value: np.ndarray[Any, Any], path: str) -> list[Any]:
        if value.dtype == object:
            return ["objects", list(value.shape), self._members(value.ravel().tolist(), path)]
        base = value.base
        if type(base) is np.ndarray and base.base is None and base.dtype != object:
            offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
            shape = [value.dtype.str, list(value.shape), list(value.strides), offset, bool(value.flags.writeable)]
            return ["array_view", self.value(base, f"{path}.base"), *shape]
        if value.nbytes >= LARGE and (mark := self._constants.mark_array(value, bool(self._in_data))) is not None:
            return ["constant", mark, path]
        if value.dtype.kind not in "biufc" or not value.dtype.isnative:
            return ["raw", value.dtype.str, list(value.shape), _base64(value.tobytes())]
        plain = value if value.flags.writeable and all(step >= 0 for step in value.strides) else value.copy()
        return ["array", self._keep(path, torch.from_numpy(plain)), type(value).__name__]

    def _generator(self, value: types.GeneratorType[Any, Any, Any], path: str) -> list[Any]:
        frame = value.gi_frame
        if frame is None:
            return ["ended"]
        if value.gi_running:
            return ["running", value.__qualname__]
        return ["generator", self._frame(frame, path)]

    def _iterator(self, value: Any, path: str) -> list[Any]:
        try:
            told: Any = value.__reduce__()
        except TypeError:
            self.unsaved[path] = type(value).__name__
            return ["keep"]
        builder, arguments, *state = told if isinstance(told, tuple) else (None, ())
        if getattr(builder, "__name__", "") not in BUILDERS:
            self.unsaved[path] = type(value).__name__
            return ["keep"]
        self._alive.append(told)
        rest = self.value(state[0], f"{path}.state") if state else None
        return ["iterator", builder.__name__, self._members(arguments, path), rest]

    def _loader_iterator(self, value: Any, path: str) -> list[Any]:
        loader = getattr(value, "_holdfast_loader", None)
        if loader is None:
            self.unsaved[path] = type(value).__name__
            return ["keep"]
        lasting = processes(value)
        if lasting is None:
            raise Unsaved(
                "a DataLoader keeps its processes over epochs (persistent_workers=True), and its dataset is changed "
                "there or in the script, or cannot be looked at, or they are not forked"
            )
        inner, own = self.value(loader, f"{path}.loader"), self.value(value._holdfast_own, f"{path}.own")
        made, states = lasting
        made_own = self.value(value._holdfast_made_own, f"{path}.made_own") if made else None
        return ["batches", inner, int(value._num_yielded), begun_json(value), own, made, list(states), made_own]

    def _function(self, value: types.FunctionType, path: str) -> list[Any]:
        if not is_own(value.__module__ or ""):
            return ["keep"]
        cells = [self.value(_contents(cell), f"{path}.{name}") for cell, name in cells_of(value)]
        defaults = self.value(value.__defaults__, f"{path}.defaults")
        return ["function", value.__qualname__, cells, defaults, self._names(vars(value), path)]

    def _method(self, value: Any, path: str) -> list[Any]:
        return ["method", self.value(value.__self__, path)]

    def _partial(self, value: functools.partial[Any], path: str) -> list[Any]:
        return ["partial", self.value(value.func, f"{path}.func"), self.value(value.args, path)]

    def _class(self, value: type, path: str) -> list[Any]:
        if not is_own(value.__module__):
            return ["keep"]
        names = {name: each for name, each in vars(value).items() if not isinstance(each, types.FunctionType)}
        return ["class", value.__qualname__, self._names(names, path)]

    def _torch_generator(self, value: torch.Generator, path: str) -> list[Any]:
        return ["torch_random", self._keep(path, value.get_state())]

    def _numpy_generator(self, value: Any, path: str) -> list[Any]:
        state = value.state if isinstance(value, np.random.BitGenerator) else value.bit_generator.state
        self._alive.append(state)
        return ["numpy_random", self.value(state, f"{path}.state")]

    def _numpy_random_state(self, value: np.random.RandomState, path: str) -> list[Any]:
        state = value.get_state(legacy=False)
        self._alive.append(state)
        return ["numpy_random_state", self.value(state, f"{path}.state")]

    def _random(self, value: random.Random, path: str) -> list[Any]:
        state = value.getstate()
        self._alive.append(state)
        return ["random", self.value(state, f"{path}.state")]

    def _optimizer(self, value: torch.optim.Optimizer, path: str) -> list[Any]:
        self._optimizers.add(id(value))
        names = {name: each for name, each in vars(value).items() if name not in _OPTIMIZER and not _hooks(name)}
        return ["object", _class_name(value), self._names(names, path)]

    def _module(self, value: torch.nn.Module, path: str) -> list[Any]:
        """`training` and the module's other attributes; its tensors only where they are not saved with the model."""
        rows = []
        for name, each in vars(value).items():
            if name not in _MODULE and not isinstance(each, _SILENT):
                rows.append([name, each if type(each) in SIMPLE else self.value(each, f"{path}.{name}")])
        for table in ("_parameters", "_buffers"):
            for name, each in vars(value)[table].items():
                if each is not None and id(each) not in self._owned:
                    rows.append([f"{table}:{name}", self.value(each, f"{path}.{name}")])
        for name, each in vars(value)["_modules"].items():
            if each is not None:
                rows.append([f"_modules:{name}", self.value(each, f"{path}.{name}")])
        return ["object", _class_name(value), rows]

    def _scaler(self, value: Any, path: str) -> list[Any]:
        names = {name: each for name, each in vars(value).items() if name != "_per_optimizer_states"}
        states: list[Any] = []
        self._scalers.append((states, value, path))
        return ["scaler", _class_name(value), self._names(names, path), states]

    def _scaler_states(self, states: list[Any], value: Any, path: str) -> None:
        """What it holds of each optimizer since the last `update()`: infs that were found, and unscaled or stepped.

        The keys are numbers of `id`, which another process does not have: the optimizer's own node stands for it.
        """
        for number, state in getattr(value, "_per_optimizer_states", {}).items():  # one that is off has none
            if number in self._optimizers:  # else the script has no such optimizer any more
                states.append([["@", self._index[number]], self.value(state, f"{path}.optimizer{len(states)}")])

    def _enum(self, value: enum.Enum, path: str) -> list[Any]:
        known = value.name in type(value).__members__
        return ["enum", _class_name(value), value.name if known else None, None if known else value.value]

    def _dataset(self, value: Any, path: str) -> list[Any]:
        self._in_data += 1
        try:
            return self._object(value, type(value), path)
        finally:
            self._in_data -= 1

    def _object(self, value: Any, kind: type, path: str) -> list[Any]:
        if library(kind.__module__) in _LIBRARIES or kind.__module__.startswith("torch.utils.tensorboard"):
            if hasattr(value, "flush"):
                self.writers.append(value)
            return ["keep"]
        known = getattr(value, "__dict__", None)
        slots = slot_names(kind)
        if not isinstance(known, dict) and not slots:
            if library(kind.__module__) not in (
                "torch",
                "builtins",
                "_thread",
                "re",
                "PIL",
                "functools",
                "typing",
                "abc",
            ):
                self.unsaved[path] = kind.__qualname__
            return ["keep"]
        names = dict(known) if isinstance(known, dict) else {}
        names |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
        return ["object", _class_name(value), self._names(names, path)]


# -- helpers -------------------------------------------------------------------------------------------------------


def slot_names(kind: type) -> list[str]:
    import copyreg

    slotnames: Callable[[type], Any] = copyreg._slotnames  # type: ignore[attr-defined]
    return list(slotnames(kind) or ())


def plain(value: Any) -> bool:
    """Whether a variable would get another object instead of a changed one."""
    return type(value) in SIMPLE or type(value) in _LEAVES or isinstance(value, (torch.Tensor, tuple))


def _is_flat(value: Any) -> bool:
    return type(value) in SIMPLE or (type(value) is tuple and all(map(_is_flat, value)))


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _word(value: Any, kinds: tuple[type, ...]) -> str:
    return next(kind.__name__ for kind in kinds if isinstance(value, kind))


def _hooks(name: str) -> bool:
    return name.startswith("_") and name.endswith(("_hooks", "_hook", "_hooks_with_kwargs"))


def cells_of(value: types.FunctionType) -> list[tuple[Any, str]]:
    return list(zip(value.__closure__ or (), value.__code__.co_freevars, strict=True))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned to it yet
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _numpy_scalar(value: Any) -> list[Any]:
    return ["number", value.dtype.str, _base64(value.tobytes())]


_LEAVES: dict[type, Callable[[Any], list[Any]]] = {
    bytes: lambda value: ["bytes", _base64(value)],
    complex: lambda value: ["complex", value.real, value.imag],
    range: lambda value: ["range", value.start, value.stop, value.step],
    torch.Size: lambda value: ["size", list(value)],
    torch.device: lambda value: ["device", str(value)],
    type(...): lambda value: ["keep"],
    **dict.fromkeys((pathlib.PosixPath, pathlib.WindowsPath), lambda value: ["path", str(value)]),
    **{
        kind: _numpy_scalar
        for kind in np.sctypeDict.values()
        if isinstance(kind, type) and issubclass(kind, (np.number, np.bool_))
    },
}

_NODES: dict[type, Callable[[Capture, Any, str], list[Any]]] = {
    list: Capture._sequence,
    tuple: Capture._sequence,
    set: Capture._set,
    frozenset: Capture._set,
    dict: Capture._dict,
    collections.deque: Capture._deque,
    types.GeneratorType: Capture._generator,
    types.FunctionType: Capture._function,
    types.MethodType: Capture._method,
    functools.partial: Capture._partial,
    np.ndarray: Capture._array,
    np.memmap: Capture._array,
    **dict.fromkeys(_ITERATORS, Capture._iterator),
}

_FAMILIES: tuple[tuple[Any, Callable[[Capture, Any, str], list[Any]]], ...] = (
    (_SILENT, lambda capture, value, path: ["keep"]),
    (torch.Tensor, Capture._tensor),
    (torch.nn.Module, Capture._module),
    (torch.optim.Optimizer, Capture._optimizer),
    (torch.amp.grad_scaler.GradScaler, Capture._scaler),
    (enum.Enum, Capture._enum),
    (torch.Generator, Capture._torch_generator),
    ((np.random.Generator, np.random.BitGenerator), Capture._numpy_generator),
    (np.random.RandomState, Capture._numpy_random_state),
    (random.Random, Capture._random),
    (torch.utils.data.Dataset, Capture._dataset),
    (dict, Capture._dict),
    ((list, tuple), Capture._sequence),
    ((set, frozenset), Capture._set),
    (np.ndarray, Capture._array),
    (type, Capture._class),
)
