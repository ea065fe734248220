"""Dataclasses of plain values as JSON and back, where the JSON may come from anywhere.

    write(option)                  # a dict of plain values
    read(Option, data)             # an Option; None if what it cannot do without is missing or of another type

A field of the wrong type counts as not given: it gets its default, and without one there is no record.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")
_MISSING = object()


def write(record: Any) -> dict[str, Any]:
    """Fields by name; tuples become lists, pairs become objects."""
    return {field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return write(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def read(cls: type[T], data: object) -> T | None:
    """One record, checked field by field."""
    if not isinstance(data, dict):
        return None
    kept: dict[str, Any] = {}
    hints = _hints(cls)  # type: ignore[arg-type]
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        value = _as(hints[field.name], data.get(field.name, _MISSING))
        if value is not _MISSING:
            kept[field.name] = value
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            return None
    return cls(**kept)


@lru_cache(maxsize=64)
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _as(kind: Any, value: Any) -> Any:
    """The value as this type, or _MISSING."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        for each in inside:
            found = _as(each, value)
            if found is not _MISSING:
                return found
        return _MISSING
    if kind is type(None):
        return None if value is None else _MISSING
    if dataclasses.is_dataclass(kind):
        found = read(kind, value)  # type: ignore[arg-type]
        return _MISSING if found is None else found
    if origin is tuple:
        return _tuple(inside, value)
    if origin is dict:
        if not isinstance(value, dict):
            return _MISSING
        pairs = {str(key): _as(inside[1], each) for key, each in value.items()}
        return {key: each for key, each in pairs.items() if each is not _MISSING}
    return _simple(kind, value)


def _tuple(inside: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return _MISSING
    if len(inside) == 2 and inside[1] is Ellipsis:
        found = [_as(inside[0], each) for each in value]
        return tuple(each for each in found if each is not _MISSING)
    if len(inside) != len(value):
        return _MISSING
    pair = tuple(_as(kind, each) for kind, each in zip(inside, value, strict=True))
    return _MISSING if _MISSING in pair else pair


def _simple(kind: Any, value: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is float and isinstance(value, float) and not math.isfinite(value):
        return _MISSING
    if kind in (str, int, float, bool) and type(value) is kind:
        return value
    return _MISSING
