"""Any plain Python state as JSON and tensors, and back. No pickle.

    flat = Flattener("world")
    node = flat.encode(world.state_dict())       # JSON; flat.slots lists (name, tensor)
    unflatten(node, read, device)                # the same values, tensors read by name

Taken: None, bool, int, float (inf and nan too), complex, str, bytes, dict, list, tuple, set, deque and their
standard-library kin, tensors, numpy arrays and scalars, torch dtypes and devices. Anything else raises a
UserError that names the place. What JSON has itself stands for itself; the rest is an object with a "$".
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from holdfast.base.errors import UserError
from holdfast.state.shared_out import Shard, is_shared_out, local, problem_of
from holdfast.state.torch_private import is_traceable_wrapper_subclass

Node = Any
"""A JSON value."""
Read = Callable[[str], Tensor]
"""Gives the stored tensor of that name as a CPU tensor, which may be a view of memory that will be reused."""

MAX_DEPTH = 100
LONG_LIST = 16
"""From this length on a list is tried as a whole before its members are looked at one by one."""
INLINE_BYTES = 256
"""Byte strings up to this long stand in the JSON; longer ones become a tensor."""

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""What every safetensors since 0.4.3 can name. Other dtypes are stored through a `carrier` of these."""

TORCH_DTYPES: dict[str, torch.dtype] = {code: dtype for dtype, code in DTYPES.items()}

_FACTORIES: dict[str, Callable[[], Any]] = {f.__name__: f for f in (int, float, str, list, dict, set, tuple)}
_SIMPLE = frozenset((str, int, bool, type(None)))
_SAFE_INT = 2**63


class Slot(NamedTuple):
    """A live tensor and the name it is stored under."""

    name: str
    tensor: Tensor
    lazy: bool = False
    """Only optimizer.step() changes it."""
    foreign: bool = False
    """Its memory is numpy's: torch does not see it written to."""
    shard: Shard | None = None
    """Which part of the tensor this is, where ranks share it out among themselves."""


def carrier(tensor: Tensor) -> Tensor:
    """The tensor itself, this rank's part of it, or a view of that in a dtype that safetensors can name."""
    tensor = local(tensor)
    if tensor.dtype in DTYPES:
        return tensor
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach())
    return tensor.detach().view(torch.uint8)


def uncarry(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo `carrier`: see stored bytes as `dtype` again if they were written through another one."""
    if dtype in DTYPES or stored.dtype == dtype:
        return stored
    if dtype.is_complex:
        return torch.view_as_complex(stored.clone())  # a clone, because a view must start at an even element
    return stored.view(dtype)


def order_of(tensor: Tensor) -> tuple[int, ...] | None:
    """The axes as they lie in memory, for a layout like channels_last; None for the usual one, and if there are gaps.

    Kernels may round otherwise for another layout, so a tensor that is made again has to lie as it did.
    """
    shape, strides = tensor.shape, tensor.stride()
    if len(shape) < 2 or strides == _strides(shape, range(len(shape))):
        return None
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis])))
    return order if strides == _strides(shape, order) else None


def _strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Of a tensor without gaps whose axes lie in that order."""
    found, step = [0] * len(shape), 1
    for axis in reversed(order):
        found[axis] = step
        step *= max(1, shape[axis])
    return tuple(found)


def laid_out(stored: Tensor, order: Sequence[int] | None, device: torch.device) -> Tensor:
    """A copy that lies in memory as `order_of` said."""
    if order is None or not all(type(axis) is int for axis in order) or sorted(order) != list(range(stored.dim())):
        return stored.to(device, copy=True)
    return torch.empty_strided(
        stored.shape, _strides(stored.shape, order), dtype=stored.dtype, device=device
    ).copy_(stored)  # fmt: skip


def check_tensor(tensor: Tensor, place: str) -> None:
    """Raise a UserError if the tensor has no plain bytes to save."""
    problem, hint = _tensor_problem(tensor)
    if problem:
        raise UserError(f"{place} cannot be saved: it is {problem}", hints=[hint] if hint else [])


def _tensor_problem(tensor: Tensor) -> tuple[str, str]:
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        return "not initialized yet", "run one forward pass of the lazy module before protect()"
    if is_shared_out(tensor):
        return _shared_out_problem(tensor)
    wrapper: bool = is_traceable_wrapper_subclass(tensor)
    if wrapper:
        return f"a `{type(tensor).__name__}`, which has no plain storage", ""
    if tensor.layout != torch.strided:
        return "a sparse tensor", "save its indices and values, or call .to_dense()"
    if tensor.is_quantized:
        return "a quantized tensor", "save tensor.int_repr() and its scale"
    if tensor.is_meta:
        return (
            "on the meta device, without data",
            "give it data with module.to_empty(device=...) and initialize it",
        )
    if tensor.is_conj() or tensor.is_neg():
        return "a conjugate or negative view", "call .resolve_conj() or .resolve_neg() on it"
    return "", ""


def _shared_out_problem(tensor: Tensor) -> tuple[str, str]:
    problem = problem_of(tensor)
    return (problem, "") if problem else _tensor_problem(local(tensor))


class Flattener:
    """Encodes the state of one part. Tensors met are gathered in `slots` under names made of their path."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.slots: list[Slot] = []
        self._names: set[str] = set()
        self._seen: dict[int, str] = {}
        # A state_dict may make tensors on the fly; `_seen` goes by id, so they must outlive the pass.
        self._alive: list[Any] = []

    def encode(self, value: Any, *path: Any) -> Node:
        """The JSON of `value`, which lies at `path` below the part."""
        return self._encode(value, path)

    def _encode(self, value: Any, path: tuple[Any, ...]) -> Node:
        kind = type(value)
        if kind in _SIMPLE and (kind is not int or -_SAFE_INT <= value < _SAFE_INT):
            return value
        if kind is float and math.isfinite(value):
            return value
        if len(path) > MAX_DEPTH:
            raise self._refuse(path[:6], "is nested too deeply; does it contain itself?")
        encoder = _ENCODERS.get(kind)
        if encoder is not None:
            return encoder(self, value, path)
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.generic):
            return {"$": "scalar", "dtype": value.dtype.str, "v": value.tobytes().hex()}
        if isinstance(value, np.ndarray):
            return self._array(np.asarray(value), path)
        raise self._refuse(path, f"is a `{kind.__name__}`")

    def _refuse(self, path: tuple[Any, ...], why: str) -> UserError:
        place = self.part + "".join(_step(key) for key in path)
        return UserError(
            f"state of `{self.part}` cannot be saved: {place} {why}",
            hints=[
                f"let `{self.part}.state_dict()` return only tensors, numpy arrays, numbers, strings, bytes, "
                "and dicts, lists, tuples and sets of them",
            ],
        )

    def _name(self, path: tuple[Any, ...]) -> str:
        """A stored name for the path; different paths may spell the same, so it is made unique."""
        base = name = ".".join((self.part, *(str(key) for key in path)))
        count = 1
        while name in self._names:
            count += 1
            name = f"{base}~{count}"
        self._names.add(name)
        return name

    def _store(self, tensor: Tensor, path: tuple[Any, ...], *, foreign: bool = False) -> str:
        name = self._name(path)
        self.slots.append(Slot(name, tensor, foreign=foreign))
        return name

    def _items(self, values: Sequence[Any], path: tuple[Any, ...]) -> list[Node]:
        if len(values) >= LONG_LIST and _is_uniform(values):
            return list(values)
        return [self._encode(value, (*path, index)) for index, value in enumerate(values)]

    def _dict(self, value: dict[Any, Any], path: tuple[Any, ...]) -> Node:
        if all(type(key) is str for key in value) and "$" not in value:
            return {key: self._encode(item, (*path, key)) for key, item in value.items()}
        return {"$": "dict", "v": self._pairs(value, path)}

    def _pairs(self, value: dict[Any, Any], path: tuple[Any, ...]) -> list[list[Node]]:
        return [[self._key(key, path), self._encode(item, (*path, key))] for key, item in value.items()]

    def _key(self, key: Any, path: tuple[Any, ...]) -> Node:
        before = len(self.slots)
        node = self._encode(key, (*path, key))
        if len(self.slots) != before:
            raise self._refuse(path, f"has a key of type `{type(key).__name__}`")
        return node

    def _ordered(self, value: OrderedDict[Any, Any], path: tuple[Any, ...]) -> Node:
        node: dict[str, Node] = {"$": "odict", "v": self._pairs(value, path)}
        # The layer versions a module's state_dict() carries; nearly all are the default.
        metadata = getattr(value, "_metadata", None)
        if isinstance(metadata, dict):
            unusual = {key: row for key, row in metadata.items() if row != {"version": 1}}
            node["meta"] = self._encode(unusual, (*path, "_metadata"))
        return node

    def _default(self, value: defaultdict[Any, Any], path: tuple[Any, ...]) -> Node:
        factory = value.default_factory
        name = getattr(factory, "__name__", "")
        if factory is not None and _FACTORIES.get(name) is not factory:
            raise self._refuse(path, f"is a `defaultdict` whose default is made by `{name or factory}`")
        return {"$": "default", "of": name, "v": self._pairs(value, path)}

    def _deque(self, value: deque[Any], path: tuple[Any, ...]) -> Node:
        return {"$": "deque", "v": self._items(value, path), "max": value.maxlen}

    def _bytes(self, value: bytes | bytearray, path: tuple[Any, ...]) -> Node:
        kind = type(value).__name__
        if len(value) <= INLINE_BYTES:
            return {"$": kind, "v": value.hex()}
        return {"$": kind, "at": self._store(torch.frombuffer(bytearray(value), dtype=torch.uint8), path)}

    def _tensor(self, value: Tensor, path: tuple[Any, ...]) -> Node:
        name = self._seen.get(id(value))
        if name is None:
            problem, _ = _tensor_problem(value)
            if problem:
                raise self._refuse(path, f"is {problem}")
            if is_shared_out(value):
                raise self._refuse(path, "is a `DTensor` outside of a module or an optimizer's state")
            name = self._store(carrier(value), path)
            self._seen[id(value)] = name
            self._alive.append(value)
        node: dict[str, Node] = {"$": "tensor", "at": name}
        if value.device.type != "cpu":
            node["device"] = 1
        if value.dtype not in DTYPES:
            node["dtype"] = str(value.dtype).removeprefix("torch.")
        order = order_of(value)
        if order is not None:
            node["order"] = list(order)
        return node

    def _array(self, value: np.ndarray[Any, Any], path: tuple[Any, ...]) -> Node:
        name = self._seen.get(id(value))
        dtype = value.dtype
        if dtype.hasobject:
            raise self._refuse(path, "is a numpy array of Python objects")
        plain = dtype.isnative and dtype.kind in "biuf" and dtype.itemsize <= 8
        if name is None:
            name = self._store(_array_tensor(value, plain), path, foreign=True)
            self._seen[id(value)] = name
            self._alive.append(value)
        node: dict[str, Node] = {"$": "array", "at": name}
        if not plain:
            node["dtype"] = self._encode(dtype.str if dtype.names is None else dtype.descr, path)
            node["shape"] = list(value.shape)
        return node


def _array_tensor(value: np.ndarray[Any, Any], plain: bool) -> Tensor:
    """The array's memory as a tensor, shared where torch can; else a copy of its bytes."""
    if not plain:
        raw = value.tobytes()
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    if not value.flags.writeable or any(stride < 0 for stride in value.strides):
        value = value.copy()
    return torch.from_numpy(value)


def _is_uniform(values: Sequence[Any]) -> bool:
    """Plain values of one type that JSON takes as they are: a history of losses should not cost a call for each."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return all(map(math.isfinite, values))
    if kinds == {int}:
        return bool(min(values) >= -_SAFE_INT and max(values) < _SAFE_INT)
    return kinds in ({str}, {bool})


def _step(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


_Encoder = Callable[[Flattener, Any, tuple[Any, ...]], Node]
_ENCODERS: dict[type, _Encoder] = {
    float: lambda flat, value, path: {"$": "float", "v": repr(value)},
    int: lambda flat, value, path: {"$": "int", "v": hex(value)},
    complex: lambda flat, value, path: {"$": "complex", "v": [value.real.hex(), value.imag.hex()]},
    dict: Flattener._dict,
    list: Flattener._items,
    tuple: lambda flat, value, path: {"$": "tuple", "v": flat._items(value, path)},
    set: lambda flat, value, path: {"$": "set", "v": [flat._key(item, path) for item in value]},
    frozenset: lambda flat, value, path: {"$": "frozenset", "v": [flat._key(item, path) for item in value]},
    deque: Flattener._deque,
    OrderedDict: Flattener._ordered,
    defaultdict: Flattener._default,
    Counter: lambda flat, value, path: {"$": "counter", "v": flat._pairs(value, path)},
    bytes: Flattener._bytes,
    bytearray: Flattener._bytes,
    Tensor: Flattener._tensor,
    np.ndarray: Flattener._array,
    torch.Size: lambda flat, value, path: {"$": "size", "v": list(value)},
    torch.dtype: lambda flat, value, path: {"$": "dtype", "v": str(value).removeprefix("torch.")},
    torch.device: lambda flat, value, path: {"$": "device", "v": str(value)},
}


def unflatten(node: Node, read: Read, device: torch.device) -> Any:
    """The value a Flattener encoded. Tensors are copies; those that were on an accelerator go to `device`."""
    return _Unflattener(read, device).decode(node)


class _Unflattener:
    def __init__(self, read: Read, device: torch.device) -> None:
        self._read = read
        self._device = device
        self._made: dict[str, Any] = {}

    def decode(self, node: Node) -> Any:
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        tag = node.get("$")
        if tag is None:
            return {key: self.decode(item) for key, item in node.items()}
        return _DECODERS[tag](self, node)

    def pairs(self, node: Node) -> list[tuple[Any, Any]]:
        return [(self.decode(key), self.decode(value)) for key, value in node["v"]]

    def values(self, node: Node) -> list[Any]:
        return [self.decode(item) for item in node["v"]]

    def default(self, node: Node) -> defaultdict[Any, Any]:
        return defaultdict(_FACTORIES.get(node["of"]), self.pairs(node))

    def ordered(self, node: Node) -> OrderedDict[Any, Any]:
        result = OrderedDict(self.pairs(node))
        if "meta" in node:
            result._metadata = self.decode(node["meta"])  # type: ignore[attr-defined]
        return result

    def raw(self, node: Node) -> bytes:
        if "v" in node:
            return bytes.fromhex(node["v"])
        return self._read(node["at"]).numpy().tobytes()

    def tensor(self, node: Node) -> Tensor:
        """Each stored tensor becomes one object, so what was shared is shared again."""
        name = node["at"]
        if name not in self._made:
            stored = self._read(name)
            if "dtype" in node:
                stored = uncarry(stored, getattr(torch, node["dtype"]))
            target = self._device if node.get("device") else torch.device("cpu")
            self._made[name] = laid_out(stored, node.get("order"), target)
        return self._made[name]  # type: ignore[no-any-return]

    def array(self, node: Node) -> Any:
        name = node["at"]
        if name not in self._made:
            stored = self._read(name).clone().numpy()
            if "dtype" in node:
                descr = self.decode(node["dtype"])
                stored = np.frombuffer(bytearray(stored.tobytes()), np.dtype(descr)).reshape(node["shape"])
            self._made[name] = stored
        return self._made[name]


_DECODERS: dict[str, Callable[[_Unflattener, Node], Any]] = {
    "float": lambda un, node: float(node["v"]),
    "int": lambda un, node: int(node["v"], 16),
    "complex": lambda un, node: complex(*(float.fromhex(part) for part in node["v"])),
    "dict": lambda un, node: dict(un.pairs(node)),
    "odict": _Unflattener.ordered,
    "default": _Unflattener.default,
    "counter": lambda un, node: Counter(dict(un.pairs(node))),
    "tuple": lambda un, node: tuple(un.values(node)),
    "set": lambda un, node: set(un.values(node)),
    "frozenset": lambda un, node: frozenset(un.values(node)),
    "deque": lambda un, node: deque(un.values(node), node["max"]),
    "bytes": _Unflattener.raw,
    "bytearray": lambda un, node: bytearray(un.raw(node)),
    "tensor": _Unflattener.tensor,
    "array": _Unflattener.array,
    "scalar": lambda un, node: np.frombuffer(bytes.fromhex(node["v"]), np.dtype(node["dtype"]))[0],
    "size": lambda un, node: torch.Size(node["v"]),
    "dtype": lambda un, node: getattr(torch, node["v"]),
    "device": lambda un, node: torch.device(node["v"]),
}
