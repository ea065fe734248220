"""The random generators that a DataLoader has for itself: `generator=`, and those of its sampler and its dataset.

    own = OwnGenerators(loader)
    begun = own.state_dict()          # {"0": …, "1": …}: every generator that was found, as it is now
    own.load_state_dict(begun)

They are looked for anew each time: a script may give the loader another sampler.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from holdfast.state.parts import NumpyGeneratorState, PythonRandomState, TorchGeneratorState

_DEPTH = 4
"""A loader's batch sampler's sampler's data source: so deep."""
_INNER = ("sampler", "batch_sampler", "dataset", "datasets", "data_source", "collate_fn", "transform", "transforms")


class OwnGenerators:
    """Of one loader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        return {str(number): each.state_dict() for number, each in enumerate(self.found())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for number, each in enumerate(self.found()):
            if str(number) in state:
                each.load_state_dict(state[str(number)])

    def found(self) -> list[Any]:
        """Those there are now, each with state_dict and load_state_dict."""
        known: set[int] = set()
        return [each for found in self._generators(self._loader, _DEPTH, known) if (each := _wrapped(found))]

    def _generators(self, holder: Any, depth: int, known: set[int]) -> list[Any]:
        if depth == 0 or id(holder) in known:
            return []
        known.add(id(holder))
        if isinstance(holder, (list, tuple)):
            return [found for each in holder[:32] for found in self._generators(each, depth - 1, known)]
        found: list[Any] = []
        for name, value in sorted(getattr(holder, "__dict__", {}).items()):
            if _wrapped(value) is not None:
                if id(value) not in known:
                    known.add(id(value))
                    found.append(value)
            elif name.strip("_").lower() in _INNER or (hasattr(value, "__getitem__") and hasattr(value, "__dict__")):
                found += self._generators(value, depth - 1, known)
        return found


def _wrapped(value: Any) -> Any | None:
    if isinstance(value, torch.Generator):
        return TorchGeneratorState(value)
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return NumpyGeneratorState(value)
    return PythonRandomState(value) if isinstance(value, random.Random) else None
