"""TOML files read with the line of each value, so that a message can say where it was set.

    for parts, value, line in read(Path("holdfast.toml"), "./holdfast.toml"):
        ...                             # ("watchdog", "floor"), "5s", 7
    load(Path("remedies.toml"))         # the whole of a file that has to be there, as a dictionary

The parser is imported on first use: most runs have no such file, and `holdfast --help` should not pay.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError


def read(path: Path, shown: str, table: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object, int]]:
    """(key parts, value, line) of each value below `table`; nothing if the file is missing.

    `shown` is the file's name in messages. UserError if the file cannot be read or is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {shown}", cause=str(error)) from error
    if table and table[-1] not in text:
        return  # a pyproject.toml of somebody else: not even parsed
    for parts, value in _leaves(_inside(_parse_toml(text, shown), table)):
        yield parts, value, _line_of((*table, *parts), text)


def load(path: Path) -> dict[str, Any]:
    """The whole file; UserError if it cannot be read or is not TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}", cause=str(error)) from error
    return _parse_toml(text, str(path))


def _parse_toml(text: str, shown: str) -> dict[str, Any]:
    toml = _toml()
    try:
        data: dict[str, Any] = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise UserError(f"{shown} is not valid TOML", cause=str(error)) from None
    return data


def _toml() -> Any:
    """`tomllib`, or the package it came from on Python 3.10."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib


def _inside(data: Any, table: tuple[str, ...]) -> Any:
    for name in table:
        data = data.get(name, {}) if isinstance(data, dict) else {}
    return data


def _leaves(data: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _leaves(value, (*above, name))
    else:
        yield above, data


def _line_of(parts: tuple[str, ...], text: str) -> int:
    """The line that sets `parts`: the first line that mentions it and up to which the file holds it.

    The TOML parser tells no positions. Parsing the lines above a candidate is exact where a search for
    text is fooled by comments, quotes, inline tables and other tables with the same key.
    """
    toml = _toml()
    lines = text.splitlines()
    candidates = [number for number, line in enumerate(lines, 1) if parts[-1] in line]
    for number in candidates:
        try:
            data = toml.loads("\n".join(lines[:number]))
        except toml.TOMLDecodeError:
            continue
        if not isinstance(_inside(data, parts), dict):
            return number
    return candidates[0] if candidates else 1
