"""Which classes are trained on, and under which names: `classes=person,car:vehicle,truck:vehicle`.

    wanted = Classes.chosen("car:vehicle,truck:vehicle", ["person", "car", "truck"])
    wanted.names                         # ["vehicle"]
    wanted.applied(boxes, left)          # rows with the new numbers; boxes of classes that nobody wants are counted

A class is named by its name or its number; `*` is each that is not named. A class that is not wanted is background by
the user's own word, which is not the same as a label that cannot be read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from holdfast.base.errors import UserError
from holdfast.workloads.detection.labels import Boxes

MOST_NUMBER = 10_000


@dataclass
class Classes:
    """The old classes, the new ones, and which becomes which."""

    before: list[str]
    names: list[str]
    becomes: dict[int, int] = field(default_factory=dict)

    @classmethod
    def chosen(cls, text: str, names: list[str]) -> Classes:
        """As the words say; all of them under their own names if there are none."""
        before = list(names)
        pairs = [_pair(each) for each in text.split(",") if each.strip()]
        if not pairs:
            return cls(before, before, {number: number for number in range(len(before))})
        named: dict[int, str] = {}
        rest: str | None = None
        for old, new in pairs:
            if old == "*":
                rest = new
                continue
            number = _number(old, before)
            before += [f"class {each}" for each in range(len(before), number + 1)]
            if number in named:
                raise UserError(f"classes={text}", cause=f"`{old}` is named twice")
            named[number] = new or before[number]
        if rest is not None:
            for number, name in enumerate(before):
                named.setdefault(number, rest or name)
        new_names = list(dict.fromkeys(named.values()))
        return cls(before, new_names, {number: new_names.index(name) for number, name in sorted(named.items())})

    @property
    def plain(self) -> bool:
        return self.becomes == {number: number for number in range(len(self.before))}

    def applied(self, boxes: Boxes, left: Counter[str]) -> Boxes:
        """The rows under their new numbers; masks stay masks."""
        if self.plain or not len(boxes):
            return boxes
        rows = []
        for row in boxes:
            kind = int(row[0])
            if kind < 0:
                rows.append(row)
            elif kind in self.becomes:
                rows.append(np.concatenate([[self.becomes[kind]], row[1:]]))
            else:
                left[self.before[kind]] += 1
        return np.array(rows, np.float32).reshape(-1, 5)

    def note(self) -> str:
        """What became of the classes, in words."""
        told: dict[str, list[str]] = {}
        for old, new in self.becomes.items():
            told.setdefault(self.names[new], []).append(self.before[old])
        return "classes: " + "; ".join(
            name if olds == [name] else f"{name} is {', '.join(olds[:8])}{' …' if len(olds) > 8 else ''}"
            for name, olds in list(told.items())[:20]
        )


def _pair(text: str) -> tuple[str, str]:
    old, _, new = text.strip().partition(":")
    return old.strip(), new.strip()


def _number(old: str, names: list[str]) -> int:
    if old in names:
        return names.index(old)
    if old.isdigit() and int(old) <= MOST_NUMBER:
        return int(old)
    raise UserError(
        f"there is no class `{old}`",
        cause=f"there are: {', '.join(names[:20])}{' …' if len(names) > 20 else ''}",
        hints=["write `classes=person,car:vehicle,truck:vehicle`; a class may be given by its number"],
    )
