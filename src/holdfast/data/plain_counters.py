"""Plain numbers that a loader, its sampler or its dataset counts by itself: `self.epoch += 1` in an `__iter__`.

    counters = Counters(loader)
    counters.changed()               # {"sampler.epoch": 2}: what is other than when the script built it
    counters.set_to({"sampler.epoch": 1})

Whoever goes on in a new process builds the loader anew, with the first values. Numbers and texts in attributes are
seen, through lists and objects; what is kept elsewhere (in a closure, in a list) is not.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_DEPTH = 5
_MOST = 400
"""Objects that are looked at."""
_PLAIN = (bool, int, float, str)
_NOT_INTO = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)


class Counters:
    """Of one loader, from here on."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._first = dict(self._values())

    def changed(self) -> dict[str, Any]:
        return {path: value for path, value in self._values() if self._first.get(path, value) != value}

    def set_to(self, saved: Mapping[str, Any]) -> None:
        """Those that are not named have their first values."""
        for path, holder, name in self._places():
            value = saved.get(path, self._first.get(path))
            if type(value) in _PLAIN and vars(holder)[name] != value:
                vars(holder)[name] = value

    def _values(self) -> Iterator[tuple[str, Any]]:
        return ((path, vars(holder)[name]) for path, holder, name in self._places())

    def _places(self) -> Iterator[tuple[str, Any, str]]:
        """(path, object, attribute) of each plain value."""
        waiting: list[tuple[str, Any, int]] = [("", self._loader, 0)]
        known: set[int] = set()
        while waiting and len(known) < _MOST:
            path, holder, depth = waiting.pop(0)
            if id(holder) in known or isinstance(holder, _NOT_INTO):
                continue
            known.add(id(holder))
            if isinstance(holder, (list, tuple)):
                waiting += [(f"{path}{place}.", each, depth + 1) for place, each in enumerate(holder[:32])]
                continue
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if type(value) in _PLAIN:
                    yield f"{path}{name}", holder, name
                elif depth < _DEPTH and (isinstance(value, (list, tuple)) or hasattr(value, "__dict__")):
                    waiting.append((f"{path}{name}.", value, depth + 1))
