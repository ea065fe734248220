"""A large package that lies beside the script, like timm beside its train.py: looked at, and saved where it changes.

    packages = Packages()
    packages.saved(names)                  # those of the script's modules whose variables are saved at this commit
    packages.changed(names)                # modules that an earlier process has saved: this one saves them as well

A package has tables of all it offers, which its import makes and nobody changes. Writing them at each commit would take
seconds. So two levels of each module of a large package are compared with what they were at the first step: which
objects its variables hold, and which objects and numbers those hold. A module that differs is saved whole from then on.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Collection, Iterable
from typing import Any

import torch

from holdfast.integrations.exact.ours import library

LARGE = 2000
"""Values of a package in two levels from which on it is large."""
_SIMPLE = frozenset((type(None), bool, int, float, str))
_MEMBERLESS = (
    int, float, str, type(None), types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType,
)  # fmt: skip


class Packages:
    """Of one process."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        """A fingerprint of each module of a large package at the first look."""
        self._small: set[str] = set()
        self._changed: set[str] = set()

    def saved(self, names: Iterable[str]) -> list[str]:
        known = list(names)
        self._note(known)
        for name in known:
            if name in self._first and name not in self._changed and fingerprint(name)[0] != self._first[name]:
                self._changed.add(name)
        return [name for name in known if name not in self._first or name in self._changed]

    def _note(self, names: list[str]) -> None:
        """Packages that are new here: are they large? One that is imported late is saved until it is known."""
        new: dict[str, list[str]] = {}
        for name in names:
            package = library(name)
            if package not in self._small and name not in self._first and hasattr(sys.modules.get(package), "__path__"):
                new.setdefault(package, []).append(name)
        for package, inner in new.items():
            looks = {name: fingerprint(name) for name in inner}
            large = any(library(name) == package for name in self._first)
            if large or sum(values for _, values in looks.values()) > LARGE:
                self._first |= {name: look for name, (look, _) in looks.items()}
            else:
                self._small.add(package)

    def changed(self, names: Iterable[str]) -> None:
        self._changed |= set(names)


def fingerprint(name: str) -> tuple[int, int]:
    """A number that is another one if the module's variables have changed in this process; and how many values it has.

    An object is known by its address, a plain value by itself: a counter may come back to an address it had before.
    """
    variables = vars(sys.modules[name])
    rows: list[Any] = []
    count = 0
    for key, value in tuple(variables.items()):
        if key.startswith("__"):
            continue
        rows.append((key, _mark(value)))
        members = _members(value, name)
        count += 1 + len(members)
        if members:
            rows.append(tuple([_mark(each) for each in members]))
            inner = [_members(each, name) for each in members if type(each) not in _SIMPLE]
            count += sum(map(len, inner))
            rows.append(tuple([_mark(each) for one in inner for each in one]))
    return hash(tuple(rows)), count


def _mark(value: Any) -> Any:
    if type(value) in _SIMPLE:
        return value
    return (id(value), value._version) if isinstance(value, torch.Tensor) and not value.is_inference() else id(value)


def _members(value: Any, module: str) -> Collection[Any]:
    """What it holds. A class belongs to the module that defines it, so it is looked at there alone."""
    if isinstance(value, _MEMBERLESS):
        return ()
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if isinstance(value, type) and value.__module__ != module:
        return ()
    inner = getattr(value, "__dict__", None)
    return inner.values() if isinstance(inner, (dict, types.MappingProxyType)) else ()
