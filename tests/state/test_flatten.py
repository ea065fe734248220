"""Plain Python values survive JSON and tensors exactly, type and all; what cannot is refused by name."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.base.errors import UserError
from holdfast.state.flatten import DTYPES, Flattener, carrier, laid_out, order_of, uncarry, unflatten

CPU = torch.device("cpu")


def round_trip(value: Any) -> Any:
    flat = Flattener("world")
    text = json.dumps(flat.encode(value), allow_nan=False)
    stored = {slot.name: slot.tensor.detach().contiguous().clone() for slot in flat.slots}
    assert len(stored) == len(flat.slots)
    assert all(tensor.dtype in DTYPES for tensor in stored.values())
    result = unflatten(json.loads(text), stored.__getitem__, CPU)
    for tensor in stored.values():
        tensor.view(-1).view(torch.uint8).zero_() if tensor.numel() else None  # the slot is reused
    return result


def equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(map(equal, a.values(), b.values()))
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, (float, np.floating)) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


VALUES: dict[str, Any] = {
    "plain": [None, True, False, 0, -1, "text", "ä\n\0\ud800", 0.1, -0.0, 5e-324, 1e308],
    "not finite": [float("inf"), float("-inf"), float("nan")],
    "large integers": [2**63 - 1, 2**63, -(2**63) - 1, 2**20000],
    "complex": [1 + 2j, complex("inf"), complex(0.1, -0.0)],
    "bytes": [b"", b"\x00\xff", bytes(range(256)) * 9, bytearray(b"abc"), bytearray(9000)],
    "tuples": ((), (1, (2, [3])), [(1,)]),
    "sets": [set(), {1, "a", (2, 3)}, frozenset({4})],
    "keys": {1: "a", "1": "b", (2, "x"): "c", None: "d", 2.5: "e", False: "f", b"k": "g"},
    "dollar": {"$": "tensor", "at": "nowhere"},
    "nested": {"a": {"b": {"c": [{"d": 1}]}}},
    "ordered": OrderedDict([("b", 1), ("a", 2), (3, 4)]),
    "default": defaultdict(int, {"a": 1}),
    "default of lists": defaultdict(list, {2: [1]}),
    "counter": Counter("abracadabra"),
    "long lists": [
        *([0.5] * 20, list(range(20)), ["a"] * 20, [True, False] * 10, [1.0, float("nan")] * 10),
        *([1, 2.0] * 10, [2**70] * 20, [None] * 20, [True, 1] * 10, tuple(range(20)), deque(range(20))),
    ],
    "deque": deque([1, 2, 3], maxlen=5),
    "tensors": [torch.arange(6).view(2, 3), torch.zeros(()), torch.empty(0, 4), torch.eye(3)[:, 1]],
    "array kinds": [
        np.arange(4),
        np.array([1.5], np.float32),
        np.zeros((0, 2)),
        np.array(7),
        np.eye(3)[::-1],
        np.eye(3).T,
    ],
    "array types": [
        np.array(["ab", "c"]),
        np.array([b"ab"]),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        np.array([1 + 2j]),
        np.array([1, 2], dtype=">i4"),
        np.array([(1, 2.5)], dtype=[("n", "<i4"), ("x", "<f8")]),
        np.array([1.5], dtype=np.longdouble),
        np.array([True]),
        np.array([2**63], dtype=np.uint64),
    ],
    "scalars": [
        np.float64(0.1),
        np.float32(np.nan),
        np.int8(-3),
        np.bool_(True),
        np.uint64(2**63),
        np.complex64(1j),
    ],
    "torch words": [torch.float32, torch.device("cuda:1"), torch.Size([2, 3])],
    "paths that spell alike": {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, "a.b~2": torch.ones(2)},
}


@pytest.mark.parametrize("what", VALUES)
def test_round_trip(what: str) -> None:
    value = VALUES[what]
    assert equal(round_trip(value), value)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.complex128, torch.complex32])
def test_every_dtype(dtype: torch.dtype) -> None:
    bits = torch.randint(0, 2 if dtype is torch.bool else 100, (4, 16), dtype=torch.uint8)
    value = bits.view(dtype)
    result = round_trip({"t": value})["t"]
    assert result.dtype == dtype and result.shape == value.shape
    assert torch.equal(result.contiguous().view(torch.uint8), bits)


def test_float8_that_safetensors_cannot_name() -> None:
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
        dtype = getattr(torch, name, None)
        if dtype is not None:
            value = torch.arange(8, dtype=torch.uint8).view(dtype)
            assert torch.equal(round_trip([value])[0].view(torch.uint8), value.view(torch.uint8))


def test_carrier_is_a_live_view() -> None:
    value = torch.zeros(3, dtype=torch.complex64)
    view = carrier(value)
    value[1] = torch.tensor(2 + 3j)
    assert view.tolist() == [[0, 0], [2, 3], [0, 0]]
    assert torch.equal(uncarry(view, torch.complex64), value)


@given(st.lists(st.integers(0, 4), max_size=5), st.randoms(use_true_random=False))
def test_a_tensor_lies_in_memory_as_it_did(shape: list[int], chance: Any) -> None:
    order = list(range(len(shape)))
    chance.shuffle(order)
    inverse = [order.index(axis) for axis in range(len(shape))]
    there = torch.randn([shape[axis] for axis in order]).permute(inverse)
    again = laid_out(there.clone(memory_format=torch.contiguous_format), order_of(there), CPU)
    assert again.stride() == there.stride() and torch.equal(again, there)


def test_channels_last_comes_back_as_it_was() -> None:
    for shape in ((8, 3, 3, 3), (8, 4, 1, 1), (8, 1, 3, 3), (1, 4, 2, 2)):
        there = torch.randn(shape).to(memory_format=torch.channels_last)
        found = round_trip(there)
        assert found.stride() == there.stride() and torch.equal(found, there)


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 2], ["a", 0], [True, False], [1.0, 0.0]])
def test_an_order_that_is_none_is_passed_over(order: list[Any]) -> None:
    stored = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(laid_out(stored, order, CPU), stored)


def test_what_was_shared_is_shared_again() -> None:
    tensor, array = torch.ones(2), np.ones(2)
    a, b, c, d = round_trip([tensor, tensor, array, array])
    assert a is b and c is d


def test_arrays_are_shared_not_copied_while_saving() -> None:
    flat, array = Flattener("world"), np.zeros(4)
    flat.encode({"grid": array})
    array[2] = 5
    assert flat.slots[0].name == "world.grid"
    assert flat.slots[0].tensor.tolist() == [0, 0, 5, 0]


def test_a_list_that_grows_is_seen_to_have_grown() -> None:
    history = [0.5] * 20
    node = Flattener("world").encode({"history": history})
    history.append(1.5)
    assert len(node["history"]) == 20


def test_a_module_inside_a_state_dict_keeps_its_layer_versions() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    result = round_trip({"net": module.state_dict()})["net"]
    assert result._metadata == {"1": {"version": 2}}
    nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).load_state_dict(result)


class Pair(NamedTuple):
    a: int
    b: int


class Colour(Enum):
    RED = 1


class Mine(dict[str, int]):
    pass


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: dict[str, tuple[Any, str]] = {
    "object": ({"agents": [{}, {"brain": object()}]}, "world.agents[1].brain is a `object`"),
    "function": ({"f": len}, "world.f is a `builtin_function_or_method`"),
    "lambda default": (defaultdict(lambda: 3), "is a `defaultdict` whose default is made by `<lambda>`"),
    "named tuple": ({"p": Pair(1, 2)}, "world.p is a `Pair`"),
    "enum": ({"c": Colour.RED}, "world.c is a `Colour`"),
    "own dict": ({"odd key": Mine()}, "world['odd key'] is a `Mine`"),
    "path": ({"p": Path("x")}, "is a `PosixPath`"),
    "array of objects": ({"a": np.array([object()])}, "world.a is a numpy array of Python objects"),
    "sparse": ({"t": torch.eye(2).to_sparse()}, "world.t is a sparse tensor"),
    "meta": ({"t": torch.empty(2, device="meta")}, "world.t is on the meta device"),
    "tensor key": ({torch.ones(1): 1}, "has a key of type `Tensor`"),
    "endless": (endless(), "is nested too deeply"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_name(what: str) -> None:
    value, message = REFUSED[what]
    with pytest.raises(UserError) as caught:
        Flattener("world").encode(value)
    assert caught.value.message.startswith("state of `world` cannot be saved: world")
    assert message in caught.value.message
    assert "state_dict()" in caught.value.hints[0]
