"""The three global CPU generators while samples are read: which of them does the dataset use?

    used: set[str] = set()
    with Watch(used) as watch:              # watches those that are not in `used`
        dataset[4711]
        watch.found()                       # {"numpy"}: it drew from numpy's generator, or looked at its state

A generator that a dataset never touches need not be seeded for each sample: seeding all three costs more than reading
a cheap sample. Drawing shows in the state. A look at the state or at the seed (`torch.initial_seed()`) does not, so
those functions are replaced while a watch is open: a dataset that makes a seed out of them counts as one that draws.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from holdfast.state import rng

NAMES = ("torch", "numpy", "python")
"""In the order of the words that `sample_seeds` gives."""


def _captured(known: Any) -> Any:
    """Raw bytes where the twister's memory is found: they are quicker to put back."""
    exposed = known.exposed()
    return known.capture() if exposed is None else exposed.capture()


_CAPTURE: dict[str, Callable[[], Any]] = {
    "torch": torch.default_generator.get_state,
    "numpy": lambda: _captured(rng.numpy_global),
    "python": lambda: _captured(rng.python_global),
}


def capture(name: str) -> Any:
    """The state of one generator, for `restore`. A microsecond or two."""
    return _CAPTURE[name]()


def restore(name: str, state: Any) -> None:
    if name == "torch":
        torch.default_generator.set_state(state)
        return
    known: Any = rng.numpy_global if name == "numpy" else rng.python_global
    if isinstance(state[0], bytes):
        known.exposed().restore(state)
    else:
        known.restore(*state)


def same(one: Any, other: Any) -> bool:
    """Whether two captured states of one generator are equal."""
    if one is other:
        return True
    if type(one) is torch.Tensor:
        return _bytes(one) == _bytes(other)
    if type(one[0]) is bytes:
        return bool(one == other)
    return _bytes(one[0]) == _bytes(other[0]) and bool(one[1] == other[1])


def _bytes(state: torch.Tensor) -> bytes:
    # `state.numpy().tobytes()` takes six times as long, and this is asked twice for each batch.
    return ctypes.string_at(state.data_ptr(), state.nbytes) if state.is_contiguous() else state.numpy().tobytes()


def seed(words: Sequence[int], names: Collection[str]) -> None:
    """Seed those of the three that are named.

    Not `torch.manual_seed`: that one also reseeds every accelerator, which belongs to the model.
    """
    if "torch" in names:
        torch.default_generator.manual_seed(words[0])
    if "numpy" in names:
        np.random.seed(words[1] & 0xFFFFFFFF)  # a second word would cost more than all the rest of the seeding
    if "python" in names:
        random.seed(words[2])


States = dict[str, Any]
"""What `capture` gave, by name."""


def capture_all() -> States:
    """Of all three, for `give_back`."""
    return {name: take() for name, take in _CAPTURE.items()}


def give_back(states: States, used: Collection[str]) -> None:
    """Leaves no trace in the generators that are in `used`; the others were not touched."""
    for name in used:
        restore(name, states[name])


@contextmanager
def borrowed(used: Collection[str]) -> Iterator[States]:
    """Leaves no trace in the generators that are in `used` at the end. Gives the states of all three."""
    states = capture_all()
    try:
        yield states
    finally:
        give_back(states, used)


class Watch:
    """Which of the generators that are not in `used` is drawn from or looked at, from here on."""

    def __init__(self, used: Collection[str], before: States | None = None) -> None:
        """`before`: the states of all three, where the caller has them. `fetch` goes on to add to `used`."""
        if before is None:
            self._before = {name: capture(name) for name in NAMES if name not in used}
        else:
            self._before = {name: before[name] for name in NAMES if name not in used} if used else before
        self._looks = _looks.copy()
        self.now: States = {}
        """The states when `found` looked last."""

    def found(self) -> set[str]:
        """Those used since; looking again costs a few microseconds."""
        looked, looks, found, states = self._looks, _looks, set(), self.now
        for name, state in self._before.items():
            now = states[name] = _CAPTURE[name]()
            if looks[name] != looked[name] or not (now is state or same(state, now)):
                found.add(name)
        return found

    def looked(self) -> set[str]:
        """Those of which the whole state was looked at since, also if they are in `used`."""
        return {name for name, count in self._looks.items() if _looks[name] != count}

    def __enter__(self) -> Watch:
        _lookouts.install()
        return self

    def __exit__(self, *error: object) -> None:
        _lookouts.remove()


_looks = dict.fromkeys(NAMES, 0)
"""How often each was looked at while a watch was open."""


class _Lookouts:
    """The functions that look at a state, replaced while at least one watch is open.

    Watches of two threads may overlap: the last one to end puts the real functions back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._ours = tuple(map(_counted, _OF, _functions()))
        self._real = _functions()

    def install(self) -> None:
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._real = _functions()
                _put(self._ours)

    def remove(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                _put(self._real)


_OF = ("torch", "torch", "torch", "torch", "numpy", "python")
"""Whose state each of `_functions` looks at."""


def _functions() -> tuple[Any, ...]:
    """As they are now. Written out, as is `_put`: a watch is opened for each batch."""
    return (
        torch.initial_seed,
        torch.random.initial_seed,
        torch.get_rng_state,
        torch.random.get_rng_state,
        np.random.get_state,
        random.getstate,
    )


def _put(functions: tuple[Any, ...]) -> None:
    (
        torch.initial_seed,
        torch.random.initial_seed,
        torch.get_rng_state,
        torch.random.get_rng_state,
        np.random.get_state,
        random.getstate,
    ) = functions


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def look(*args: Any, **kwargs: Any) -> Any:
        _looks[name] += 1
        return function(*args, **kwargs)

    return look


_lookouts = _Lookouts()


def keep_lookouts() -> None:
    """For a process that does nothing but read samples: the functions are not put back after each batch."""
    _lookouts.install()
