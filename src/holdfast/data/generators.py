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


def capture(name: str) -> Any:
    """The state of one generator, for `restore`. A microsecond or two."""
    if name == "torch":
        return torch.default_generator.get_state()
    known = rng.numpy_global if name == "numpy" else rng.python_global
    exposed = known.exposed()
    return known.capture() if exposed is None else exposed.capture()


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
    if isinstance(one, torch.Tensor):  # by bytes: `torch.equal` takes longer
        return bool(one.numpy().tobytes() == other.numpy().tobytes())
    if isinstance(one[0], bytes) or one is other:
        return bool(one == other)
    return torch.equal(one[0], other[0]) and bool(one[1] == other[1])


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


@contextmanager
def borrowed(used: Collection[str]) -> Iterator[States]:
    """Leaves no trace in the generators that are in `used` at the end; the others are not touched by then.

    Gives the states of those that are not in `used` yet.
    """
    states = {name: capture(name) for name in NAMES}
    try:
        yield {name: state for name, state in states.items() if name not in used}
    finally:
        for name, state in states.items():
            if name in used:
                restore(name, state)


class Watch:
    """Which of the generators that are not in `used` is drawn from or looked at, from here on."""

    def __init__(self, used: Collection[str], before: States | None = None) -> None:
        """`before`: their states, where the caller has them."""
        self._before = {
            name: capture(name) if before is None or name not in before else before[name]
            for name in NAMES
            if name not in used
        }
        self._looks = dict(_looks)

    def found(self) -> set[str]:
        """Those used since; looking again costs a few microseconds."""
        return {
            name
            for name, state in self._before.items()
            if _looks[name] != self._looks[name] or not same(state, capture(name))
        }

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

    PLACES: tuple[tuple[str, Any, str], ...] = (
        ("torch", torch, "initial_seed"),
        ("torch", torch.random, "initial_seed"),
        ("torch", torch, "get_rng_state"),
        ("torch", torch.random, "get_rng_state"),
        ("numpy", np.random, "get_state"),
        ("python", random, "getstate"),
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._real: list[Any] = []
        self._ours = [_counted(name, getattr(module, attribute)) for name, module, attribute in self.PLACES]

    def install(self) -> None:
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._real = [getattr(module, attribute) for _, module, attribute in self.PLACES]
                self._set(self._ours)

    def remove(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._set(self._real)

    def _set(self, functions: list[Any]) -> None:
        for (_, module, attribute), function in zip(self.PLACES, functions, strict=True):
            setattr(module, attribute, function)


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def look(*args: Any, **kwargs: Any) -> Any:
        _looks[name] += 1
        return function(*args, **kwargs)

    return look


_lookouts = _Lookouts()
