"""Kinds of fault that are a file each: how one is recognised, what it means, and what is done about it. No torch here.

    [licence_lost]
    code = "X001"                                  # X… from outside, the next free F… in this package
    slug = "licence-lost"
    level = "warning"
    title = "The licence server went away"
    seen = "…"                                     # these four are what `holdfast explain X001` prints
    means = "…"
    does = "…"
    you_can = "…"
    sentence = "{device} lost its licence"         # on the screen, with {device}, {how} and {what}
    health = "alive"                               # what is left of the process: alive, dead or machine
    family = "outside"                             # kinds that count against each other: the families of ladder.py
    ladder = ["retry", "replace 3", "give_up"]     # its row: actions of ladder.py, some with a number of tries

    [[licence_lost.messages]]
    text = ["licence server is unreachable"]       # or regex = "…"
    means = "the server that hands out licences does not answer"
    action = "start it again"
    backends = ["any"]                             # "any": on the CPU too; else cuda, rocm, mps, xpu or device

Such files are in `more/` beside this module, or in the folder `faults` of HOLDFAST_ADD. A kind that a file adds is a
`Kind` like the others; the code has no name for it, and treats it by its rows alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import additions
from holdfast.base.errors import UserError
from holdfast.faults.terms import Action, Family, Health, Level

TEXTS = ("slug", "level", "title", "seen", "means", "does", "you_can")
_HERE = Path(__file__).with_name("more")
_LAST = (Action.FAIL, Action.GIVE_UP)


_FIELDS: Mapping[str, type] = {
    **dict.fromkeys((*TEXTS, "code", "sentence", "health", "family"), str),
    "ladder": list,
    "messages": list,
}
_MESSAGE: Mapping[str, type] = {
    **dict.fromkeys(("id", "regex", "means", "action"), str),
    **dict.fromkeys(("text", "backends", "raised_as"), list),
}


@dataclass(frozen=True, slots=True)
class Added:
    """One kind, as its file has it."""

    name: str
    code: str
    texts: Mapping[str, str]
    """By the names of TEXTS."""
    sentence: str
    health: str
    family: Family
    ladder: tuple[tuple[str, int], ...]
    """Actions, and how often each."""
    messages: tuple[Mapping[str, Any], ...]
    """As rows of `signatures.json`."""

    @property
    def on_cpu(self) -> bool:
        """May it come where there is no device that could be at fault?"""
        return any("any" in message["backends"] for message in self.messages)


def read(kinds: Collection[str], codes: Collection[str]) -> dict[str, Added]:
    """What files add to the `kinds` and `codes` there are; UserError for a file that cannot be used."""
    found: dict[str, Added] = {}
    taken = set(codes)
    places = [(file, "F") for file in sorted(_HERE.glob("*.toml"))]
    places += [(file, "X") for file in additions.files("faults", "*.toml")]
    for file, letter in places:
        for name, table in additions.tables(file).items():
            where = f"the fault `{name}` in {file}"
            if name in kinds or name in found or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                raise UserError(f"{where} needs a name of its own", hints=["small letters and _, not used so far"])
            row = _row(name, table, where)
            if row.code in taken or not re.fullmatch(rf"{letter}\d{{3}}", row.code):
                hint = f"{letter} and three digits, not used so far"
                raise UserError(f"{where} needs a code of its own, not `{row.code}`", hints=[hint])
            taken.add(row.code)
            found[name] = row
    return found


def _row(name: str, table: Mapping[str, Any], where: str) -> Added:
    needed = [field for field in _FIELDS if field != "messages"]
    additions.check_fields(where, table, _FIELDS, needed)
    for field, allowed in (("level", tuple(Level)), ("health", tuple(Health)), ("family", tuple(Family))):
        if table[field] not in allowed:
            raise UserError(f"{where}: `{field}` is `{table[field]}`", hints=[f"use {', '.join(allowed)}"])
    try:
        table["sentence"].format(device="cpu", how="", what="")
    except (KeyError, IndexError, ValueError):
        raise UserError(f"{where}: `sentence` may use {{device}}, {{how}} and {{what}} alone") from None
    return Added(
        name=name,
        code=table["code"],
        texts={field: table[field].strip() for field in TEXTS},
        sentence=table["sentence"],
        health=table["health"],
        family=Family(table["family"]),
        ladder=tuple(_entry(word, where) for word in _ending(table["ladder"], where)),
        messages=tuple(
            _message(f"{name}-{number}", message, table["health"], where)
            for number, message in enumerate(table.get("messages", ()), 1)
        ),
    )


def _ending(words: list[Any], where: str) -> list[Any]:
    if not words or words[-1] not in _LAST:
        raise UserError(
            f"{where}: `ladder` must end with one of {', '.join(_LAST)}", cause="otherwise a run could retry forever"
        )
    return words


def _entry(word: object, where: str) -> tuple[str, int]:
    action, _, times = str(word).partition(" ")
    if action not in tuple(Action) or not (times == "" or (times.isdigit() and int(times) > 0)):
        raise UserError(
            f"{where}: `ladder` has `{word}`",
            hints=[f"use {', '.join(Action)}, with a number of tries behind it where one is not enough"],
        )
    return action, int(times or 1)


def _message(name: str, message: object, health: str, where: str) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise UserError(f"{where}: `messages` must be tables", hints=["write [[NAME.messages]]"])
    additions.check_fields(f"a message of {where}", message, _MESSAGE, ("means", "action"))
    if not (message.get("text") or message.get("regex")):
        raise UserError(f"a message of {where} has neither `text` nor `regex`")
    try:
        re.compile(message.get("regex", ""))
    except re.error as error:
        raise UserError(
            f"a message of {where} has a `regex` that is not a regular expression", cause=str(error)
        ) from None
    return {"id": name, "health": health, "backends": ["device"], **message}
