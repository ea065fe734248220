"""The process-wide random generators: Python's, numpy's legacy one, torch's on the CPU and on the device.

    tensors, words = capture_rng(device)         # at each step, a few tens of microseconds
    restore_rng(tensors, words, device)

Names, dtypes and shapes never change for a device (`rng_specs`), so a layout keeps room for them once.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from holdfast.base.errors import UserError
from holdfast.state.layout import Spec

PYTHON = "holdfast.rng.python"
NUMPY = "holdfast.rng.numpy"
TORCH = "holdfast.rng.torch"
DEVICE = "holdfast.rng.device"

_MT_WORDS = 624
_PYTHON_VERSION = random.Random.VERSION
_pack_python = struct.Struct(f"{_MT_WORDS + 1}I").pack


def rng_specs(device: torch.device) -> list[Spec]:
    """The entries `capture_rng` will fill, for `Protected.layout(extra=...)`."""
    tensors, _ = capture_rng(device)
    codes = {torch.uint32: "U32", torch.uint8: "U8"}
    return [(name, codes[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()]


def capture_rng(device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of all generators, as CPU tensors and a few JSON words. No device synchronisation."""
    python, python_words = python_global.capture()
    numpy, numpy_words = numpy_global.capture()
    tensors = {PYTHON: python, NUMPY: numpy, TORCH: torch.default_generator.get_state()}
    kind = device.type
    if kind != "cpu":
        getter = _device_function(device, "get_rng_state")
        if getter is not None:
            tensors[DEVICE] = getter()
    return tensors, {"python": python_words, "numpy": numpy_words, "device": kind}


def restore_rng(tensors: Mapping[str, Tensor], words: Mapping[str, Any], device: torch.device) -> None:
    """Set every generator again. A device of another type than the captured one keeps its own state."""
    python_global.restore(tensors[PYTHON], words["python"])
    numpy_global.restore(tensors[NUMPY], words["numpy"])
    # Generators want memory of their own: what we are given may be a view of a slot.
    torch.set_rng_state(tensors[TORCH].clone())
    setter = _device_function(device, "set_rng_state")
    if setter is not None and words["device"] == device.type and DEVICE in tensors:
        setter(tensors[DEVICE].clone())


def _device_function(device: torch.device, name: str) -> Callable[..., Any] | None:
    """get/set_rng_state of the device's own module, bound to the device where it takes one."""
    if device.type in ("cuda", "xpu"):
        function = getattr(getattr(torch, device.type), name)
        return (lambda: function(device)) if name.startswith("get") else (lambda state: function(state, device))
    if device.type == "mps":
        return getattr(torch.mps, name)  # type: ignore[no-any-return]
    return None


class Exposed(NamedTuple):
    """The memory of a global Mersenne twister: what is written there is the generator's state."""

    words: memoryview
    """625 of 32 bits: the twister's 624, and the position among them."""
    first: int
    """Where the twister's words begin."""
    position: int
    """Where the position is. 624: the words are used up."""
    memory: ctypes.Array[ctypes.c_char]
    """The same as bytes."""
    owner: Any
    pair: ctypes.Array[ctypes.c_char] | None
    """numpy's kept half of a normal pair, with a mark before it. Python keeps it in `owner.gauss_next`."""
    half: memoryview | None
    """The mark: not zero if there is one."""

    def capture(self) -> tuple[bytes, Any]:
        """The whole state."""
        return self.memory.raw, self.owner.gauss_next if self.pair is None else self.pair.raw

    def restore(self, state: tuple[bytes, Any]) -> None:
        """Set what `capture` gave."""
        if self.pair is None:
            self.memory.raw, self.owner.gauss_next = state
        else:
            with self.owner._bit_generator.lock:  # another thread may be drawing, and hold the GIL no more
                self.memory.raw, self.pair.raw = state


class _NumpyGlobal:
    """numpy's global generator. Reading it whole costs 100 us and more, so an unused one is recognised.

    Its state is the Mersenne twister, whose memory numpy lets us see, and half of a normal pair, which it
    does not. The pair is only filled by drawing: twister untouched and no half pair then, no half pair now.
    """

    def __init__(self) -> None:
        self._memory: ctypes.Array[ctypes.c_char] | None = None
        self._owner: Any = None
        self._bytes = b""
        self._last: tuple[Tensor, dict[str, Any]] | None = None
        self._exposed: Exposed | None = None

    def capture(self) -> tuple[Tensor, dict[str, Any]]:
        last, memory = self._last, self._memory
        # Written out, without a call: several captures are made in each step.
        if last is not None and memory is not None and memory.raw == self._bytes and _bit_generator() is self._owner:
            return last
        state: Any = _numpy_state(legacy=False)
        if state["bit_generator"] != "MT19937":
            raise UserError(
                f"numpy's global generator was replaced by {state['bit_generator']}, which cannot be saved",
                hints=["use a generator of your own, numpy.random.default_rng(), and protect it by name"],
            )
        key = state["state"]["key"]
        words = {
            "pos": int(state["state"]["pos"]),
            "has_gauss": int(state["has_gauss"]),
            "gauss": state["gauss"],
        }
        result = torch.from_numpy(key), words
        self._locate(key, words)
        self._remember(words, result)
        return result

    def restore(self, key: Tensor, words: Mapping[str, Any]) -> None:
        np.random.set_state(("MT19937", key.numpy().copy(), words["pos"], words["has_gauss"], words["gauss"]))
        self._remember(words, (key.clone(), dict(words)))

    def exposed(self) -> Exposed | None:
        """The twister's memory; None where it is not found."""
        found = self._exposed
        if found is not None and np.random.mtrand._rand is found.owner and _bit_generator() is self._owner:
            return found
        self.capture()
        self._exposed = None
        offset, owner = _half_pair_offset(), np.random.mtrand._rand
        if offset is not None and type(owner) is np.random.RandomState and _bit_generator() is self._owner:
            assert self._memory is not None
            pair = (ctypes.c_char * 16).from_address(id(owner) + offset)
            words = memoryview(self._memory).cast("B").cast("I")
            half = memoryview(pair).cast("B").cast("i")
            self._exposed = Exposed(words, 0, _MT_WORDS, self._memory, owner, pair, half)
        return self._exposed

    def _locate(self, key: Any, words: Mapping[str, Any]) -> None:
        """The address is believed only if the twister is found there, word for word."""
        generator = _bit_generator()
        if generator is None or generator is self._owner:
            return
        expected = key.tobytes() + struct.pack("i", words["pos"])
        memory = (ctypes.c_char * len(expected)).from_address(generator.ctypes.state_address)
        self._owner, self._memory = (generator, memory) if memory.raw == expected else (None, None)

    def _remember(self, words: Mapping[str, Any], result: tuple[Tensor, dict[str, Any]]) -> None:
        self._last = None
        if self._memory is not None and not words["has_gauss"] and _bit_generator() is self._owner:
            self._bytes = self._memory.raw
            self._last = result


@lru_cache(maxsize=1)
def _half_pair_offset() -> int | None:
    """Where in a RandomState numpy marks the kept half of a normal pair; None where that is not certain.

    Found with an object of our own: a half pair is put in and taken out, and nothing else may change in its memory.
    """
    if sys.implementation.name != "cpython":
        return None
    trial, half = np.random.RandomState(0), 1.5e-67
    memory = (ctypes.c_char * np.random.RandomState.__basicsize__).from_address(id(trial))
    state: Any = trial.get_state()
    _, key, position = state[:3]
    seen = []
    for mark, value in ((0, 0.0), (1, half), (0, 0.0)):
        trial.set_state(("MT19937", key, position, mark, value))
        seen.append(memory.raw)
    place = seen[1].find(struct.pack("d", half))
    offset = place - 8
    if offset < object.__basicsize__ or seen[0] != seen[2]:
        return None
    empty = seen[0][:offset] + struct.pack("i", 1) + seen[0][offset + 4 : place] + struct.pack("d", half)
    known = seen[0][offset : offset + 4] == bytes(4) and empty + seen[0][place + 8 :] == seen[1]
    return offset if known else None


def _bit_generator() -> Any:
    return getattr(np.random.mtrand._rand, "_bit_generator", None)


class _PythonGlobal:
    """Python's global generator. Asking for its 625 numbers costs 25 us, so an unused one is recognised.

    The twister lies in the object, behind what every object has; the half pair of `gauss` is an attribute. The memory
    is believed only where the words of `getstate` are found in it, which is so in CPython.
    """

    def __init__(self) -> None:
        self._memory: ctypes.Array[ctypes.c_char] | None = None
        self._owner: Any = None
        self._bytes = b""
        self._last: tuple[Tensor, list[Any]] | None = None
        self._exposed: Exposed | None = None

    def capture(self) -> tuple[Tensor, list[Any]]:
        last, memory = self._last, self._memory
        if last is not None and memory is not None and memory.raw == self._bytes:
            owner: Any = getattr(random, "_inst", None)
            same = owner is self._owner
            if same and owner.gauss_next == last[1][1]:
                return last
        version, words, gauss = _python_state()
        packed = _pack_python(*words)
        result = torch.frombuffer(bytearray(packed), dtype=torch.uint32), [version, gauss]
        self._remember(packed, result)
        return result

    def restore(self, words: Tensor, about: Sequence[Any]) -> None:
        version, gauss = about
        exposed = self.exposed() if version == _PYTHON_VERSION and words.dtype == torch.uint32 else None
        if exposed is None or not 0 <= int(words[_MT_WORDS]) <= _MT_WORDS:  # the latter: `setstate` says what is wrong
            random.setstate((version, tuple(words.tolist()), gauss))
        else:  # ten times faster, and a loader that reads samples in this process does it at each batch
            given = words.contiguous().numpy().data.cast("B").cast("I")
            exposed.words[1:] = given[:_MT_WORDS]
            exposed.words[0] = given[_MT_WORDS]
            exposed.owner.gauss_next = gauss
        self._remember(words.numpy().tobytes(), (words.clone(), [version, gauss]))

    def exposed(self) -> Exposed | None:
        """The twister's memory; None where it is not found."""
        owner: Any = getattr(random, "_inst", None)
        if self._exposed is not None and owner is self._exposed.owner:
            return self._exposed
        self.capture()
        self._exposed = None
        if self._memory is not None and owner is self._owner:
            words = memoryview(self._memory).cast("B")[: 4 * (_MT_WORDS + 1)].cast("I")
            self._exposed = Exposed(words, 1, 0, self._memory, owner, None, None)
        return self._exposed

    def _remember(self, packed: bytes, result: tuple[Tensor, list[Any]]) -> None:
        self._last = None
        owner = getattr(random, "_inst", None)
        if owner is None or sys.implementation.name != "cpython":
            return
        if owner is not self._owner or self._memory is None:
            begin, end = object.__basicsize__, _random.Random.__basicsize__
            memory = (ctypes.c_char * (end - begin)).from_address(id(owner) + begin)
            # `getstate` tells the position last; the object has it first.
            if memory.raw[: len(packed)] != packed[-4:] + packed[:-4]:
                return
            self._owner, self._memory = owner, memory
        self._bytes = self._memory.raw
        self._last = result


_python_state = random.getstate
_numpy_state = np.random.get_state
"""Kept from here: `Watch` of generators.py replaces them in their modules for a while."""

python_global = _PythonGlobal()
numpy_global = _NumpyGlobal()
