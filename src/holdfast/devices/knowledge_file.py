"""The file of knowledge: the one that comes with holdfast, or a newer one that was named. No torch here.

    book = current()                   # HOLDFAST_KNOWLEDGE, or knowledge.json of the package
    book.digest                        # "3f9c1a0be2d4": the beginning of its SHA-256
    book.age_days(date.today())        # 12
    read(Path("knowledge.json"))       # UserError that names the row where it is none of ours

A file from outside is looked at before a word of it is used: every row has its source and says how it is known, the
commands in it are of a few harmless kinds, and addresses are https. It decides nothing about a device, as ours does
not; but what it says is printed, and a person may type it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError

VARIABLE = "HOLDFAST_KNOWLEDGE"
SCHEMA = 2
OURS = Path(__file__).parent / "knowledge.json"
NEWER = "`pip install --upgrade holdfast`, or the project's knowledge.json with `holdfast doctor --knowledge FILE`"
TABLES = ("cards", "support", "wheels", "overrides", "platforms", "bugs", "ways_out")
KNOWN = ("document", "source", "many reports", "one report", "measured", "computed")
"""How a row is known: said by the maker, read in source code, seen by others, measured by us, computed from data."""
OLD_DAYS = 90
"""From this age on the doctor calls it old."""
_LARGEST = 4 << 20
_NEEDED = {
    "cards": ("arch", "vendor"),
    "support": ("toolkit", "from", "to", "os", "channel", "archs"),
    "wheels": ("name", "toolkit", "os", "channel", "archs"),
    "overrides": ("same", "means", "text"),
    "platforms": ("os", "vendor", "text"),
    "bugs": ("id", "title", "text"),
    "ways_out": ("id", "text"),
}
_TEXTS = {"arch", "vendor", "toolkit", "from", "to", "channel", "name", "same", "means", "text", "id", "title", "index"}
_COMMAND = re.compile(
    r"(?:export [A-Z][A-Z0-9_]*=[\w.,:-]+|unset [A-Z][A-Z0-9_]*|holdfast [\w .:=-]+|wsl(?:\.exe)? --\w+"
    r"|pip install [\w .:/=\[\]\"-]+)"
)
"""What a row may tell a person to type: a variable, a build of torch, holdfast itself. No pipes, no sudo."""


@dataclass(frozen=True, slots=True)
class Book:
    """One file of knowledge, looked at and found to be one."""

    path: Path
    data: Mapping[str, Any]
    sha256: str

    @property
    def digest(self) -> str:
        return self.sha256[:12]

    @property
    def collected(self) -> str:
        return str(self.data["collected"])

    @property
    def ours(self) -> bool:
        return self.path == OURS

    def age_days(self, today: date) -> int:
        return max((today - date.fromisoformat(self.collected)).days, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "collected": self.collected,
            "age_days": self.age_days(date.today()),
            "sha256": self.sha256,
            "file": "knowledge.json of holdfast" if self.ours else str(self.path),
            "newer": NEWER,
        }


def sentence(book: Book, today: date) -> str:
    """The line of `holdfast doctor`: "Knowledge of 2026-11-16 (12 days old, 3f9c1a0be2d4)." """
    days = book.age_days(today)
    age = "today's" if not days else "1 day old" if days == 1 else f"{days} days old"
    where = "" if book.ours else f", from {book.path}"
    old = " It is old." if days >= OLD_DAYS else ""
    return f"Knowledge of {book.collected} ({age}, sha256 {book.digest}){where}.{old} Newer: {NEWER}."


def use(path: Path) -> Book:
    """This file from now on, here and in every process that is started; UserError where it is none."""
    book = read(path.expanduser().resolve())
    os.environ[VARIABLE] = str(book.path)
    return book


def current() -> Book:
    """What HOLDFAST_KNOWLEDGE names, or ours; read once for each name."""
    named = os.environ.get(VARIABLE)
    return _read_once(Path(named) if named else OURS)


@lru_cache(maxsize=4)
def _read_once(path: Path) -> Book:
    return read(path)


def read(path: Path) -> Book:
    """A file of knowledge; UserError that says which row is wrong, and how."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}", cause=error.strerror or str(error)) from None
    if len(raw) > _LARGEST:
        raise _wrong(path, f"it has more than {_LARGEST >> 20} MB")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"it is not JSON: {error}") from None
    problem = next(problems(data), None)
    if problem:
        raise _wrong(path, problem)
    return Book(path, data, hashlib.sha256(raw).hexdigest())


def _wrong(path: Path, problem: str) -> UserError:
    hints = [f"this holdfast reads schema {SCHEMA}; {NEWER}"]
    return UserError(f"{path} is not a knowledge file that holdfast can use", cause=problem, hints=hints)


def problems(data: object) -> Iterator[str]:
    """Everything that is wrong with it, each with its place: "bugs[3] (gfx1201-x): no `known`"."""
    if not isinstance(data, dict):
        yield "it is no object"
        return
    if data.get("schema") != SCHEMA:
        yield f"its schema is {data.get('schema')!r}, not {SCHEMA}"
        return
    if not _is_day(data.get("collected")):
        yield "`collected` is no day such as 2026-11-16"
    sources = data.get("sources")
    if not isinstance(sources, dict):
        yield "`sources` is no object"
        return
    for name, row in sources.items():
        if not isinstance(row, dict) or not isinstance(row.get("title"), str) or not isinstance(row.get("kind"), str):
            yield f"sources.{name}: a source has a title and a kind"
    for table in TABLES:
        rows = data.get(table)
        if not isinstance(rows, list) or not rows:
            yield f"`{table}` is no list, or has no rows"
            continue
        for number, row in enumerate(rows):
            for problem in _of_row(table, row, sources):
                name = row.get("id") or row.get("arch") or row.get("name") if isinstance(row, dict) else None
                yield f"{table}[{number}]{f' ({name})' if name else ''}: {problem}"


def _of_row(table: str, row: object, sources: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(row, dict):
        yield "it is no object"
        return
    for name in _NEEDED[table]:
        if name not in row:
            yield f"no `{name}`"
        elif name in _TEXTS and table != "platforms" and not isinstance(row[name], str):
            yield f"`{name}` is no text"
    cited = row.get("sources") or ([row["source"]] if "source" in row else [])
    if not cited or not all(isinstance(each, str) and each in sources for each in cited):
        yield "no source, or one that is not listed"
    if row.get("known") not in KNOWN:
        yield f"`known` is none of {', '.join(KNOWN)}"
    if not re.fullmatch(r"20\d\d-\d\d(-\d\d)?", str(row.get("checked"))):
        yield "`checked` is no date"
    if "unreached" in row and not _is_day(row["unreached"]):
        yield "`unreached`, when its source was looked for in vain, is no day"
    yield from _of_contents(table, row)


def _of_contents(table: str, row: Mapping[str, Any]) -> Iterator[str]:
    """What is printed for a person to type, and what is compared with a device."""
    if table in ("support", "wheels"):
        kind = dict if table == "support" else list
        if not isinstance(row.get("archs"), kind) or not isinstance(row.get("os"), list):
            yield "`archs` or `os` has another form"
    driver = row.get("driver") if table == "wheels" else None
    if driver is not None and not (isinstance(driver, dict) and re.fullmatch(r"[\d.]+", str(driver.get("from")))):
        yield "`driver` has no `from` that is a version"
    index = row.get("index")
    if index is not None and not re.fullmatch(r"https://[\w.-]+/[\w./-]*", str(index)):
        yield f"its index {index!r} is no https address"
    named = row.get("names", [])
    for pattern in named if isinstance(named, list) else ["("]:
        try:
            re.compile(str(pattern))
        except re.error:
            yield f"`names` has {pattern!r}, which is no pattern"
    cure = row.get("cure")
    if cure is None:
        return
    if not isinstance(cure, dict) or not isinstance(cure.get("text"), str):
        yield "`cure` has no text"
        return
    for command in cure.get("commands", ()):
        if not isinstance(command, str) or not _COMMAND.fullmatch(command):
            yield f"the command {command!r} is of a kind that is not printed"


def _is_day(value: object) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).year >= 2026
    except ValueError:
        return False
