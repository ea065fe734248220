"""Dataclasses of plain values as JSON and back, where the JSON may come from anywhere.

    write(option)                  # a dict of plain values
    read(Option, data)             # an Option; None if what it cannot do without is missing or of another type
    read_strictly(Option, data)    # an Option; ValueError names the first field that is not as it should be

For `read`, a field of the wrong type counts as not given: it gets its default, and without one there is no record.
A value with a `to_json` and a `from_json` of its own is written and read by those.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, TypeVar

T = TypeVar("T")
Count = Annotated[int, range(1 << 63)]
"""A whole number that is not negative. A file may be anybody's, and what is no count counts nothing."""
_MISSING = object()


def write(record: Any, *, defaults: bool = True) -> dict[str, Any]:
    """Fields by name; tuples become lists, pairs become objects. `defaults`: also those that are at their default."""
    return {
        field.name: plain(getattr(record, field.name))
        for field in dataclasses.fields(record)
        if defaults or getattr(record, field.name) != field.default
    }


def plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return write(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def read(cls: type[T], data: object) -> T | None:
    """One record, checked field by field."""
    try:
        return _read(cls, data, strict=False)
    except ValueError:
        return None


def read_strictly(cls: type[T], data: object) -> T:
    """One record of which every field that is given is as its type says."""
    return _read(cls, data, strict=True)


def _read(cls: type[T], data: object, *, strict: bool) -> T:
    if not isinstance(data, Mapping):
        raise ValueError(f"a {cls.__name__} is no JSON object")
    kept: dict[str, Any] = {}
    hints = _hints(cls)  # type: ignore[arg-type]
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        given = data.get(field.name, _MISSING)
        value = _as(hints[field.name], given, strict)
        if value is not _MISSING:
            kept[field.name] = value
        elif strict and given is not _MISSING:
            raise ValueError(f"{cls.__name__}: `{field.name}` is of another type: {given!r:.100}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{cls.__name__}: `{field.name}` is missing")
    return cls(**kept)


@lru_cache(maxsize=256)
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _as(kind: Any, value: Any, strict: bool) -> Any:
    """The value as this type, or _MISSING."""
    if value is _MISSING or kind in (Any, object):
        return value
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        found = (_as(each, value, strict) for each in inside)
        return next((each for each in found if each is not _MISSING), _MISSING)
    if kind is type(None):
        return None if value is None else _MISSING
    if origin is Annotated:
        found = _as(inside[0], value, strict)
        return found if found is not _MISSING and found in inside[1] else _MISSING
    if origin in (tuple, list):
        found = _tuple(inside if origin is tuple else (*inside, Ellipsis), value, strict)
        return list(found) if origin is list and found is not _MISSING else found
    if origin is Counter:
        found = _as(dict[str, Count], value, strict)
        return found if found is _MISSING else Counter(found)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return _MISSING
        return _whole({str(key): _as(inside[1], each, strict) for key, each in value.items()}, strict)
    try:
        if hasattr(kind, "from_json"):
            found = kind.from_json(value)
            return _MISSING if found is None else found
        if dataclasses.is_dataclass(kind):
            return _read(kind, value, strict=strict)  # type: ignore[arg-type]
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind(value)
    except (ValueError, TypeError, LookupError, AttributeError):
        return _MISSING
    return _simple(kind, value, strict)


def _whole(pairs: dict[Any, Any], strict: bool) -> Any:
    """What is of another type is left out, or makes all of it useless."""
    good = {key: each for key, each in pairs.items() if each is not _MISSING}
    return _MISSING if strict and len(good) < len(pairs) else good


def _tuple(inside: tuple[Any, ...], value: Any, strict: bool) -> Any:
    if not isinstance(value, (list, tuple)):
        return _MISSING
    if len(inside) == 2 and inside[1] is Ellipsis:
        found = _whole(dict(enumerate(_as(inside[0], each, strict) for each in value)), strict)
        return found if found is _MISSING else tuple(found.values())
    if len(inside) != len(value):
        return _MISSING
    pair = tuple(_as(kind, each, strict) for kind, each in zip(inside, value, strict=True))
    return _MISSING if _MISSING in pair else pair


def _simple(kind: Any, value: Any, strict: bool) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            return _MISSING
    if kind is float and isinstance(value, float) and not math.isfinite(value) and not strict:
        return _MISSING  # from a process of ours a loss may be nan, from a file it may not
    if kind in (str, int, float, bool) and type(value) is kind:
        return value
    return _MISSING
