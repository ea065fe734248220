"""Dataclasses as JSON and back: what is of another type counts as not given, or makes no record."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.base.dataclass_json import Count, read, read_strictly, write


@dataclass
class Lap:
    seconds: float = 0.0
    names: list[str] = field(default_factory=list)


@dataclass
class Book:
    steps: Count = 0
    limit: Count | None = None
    faults: Counter[str] = field(default_factory=Counter)
    laps: list[Lap] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


FULL = Book(7, 3, Counter(hang=2), [Lap(0.5, ["a", "b"])], [{"device": "cpu"}])


def test_lists_counters_and_counts_come_back_as_they_were() -> None:
    assert read_strictly(Book, json.loads(json.dumps(write(FULL)))) == FULL


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({"steps": -1, "limit": -1}, Book()),
        ({"steps": True, "limit": 1 << 70}, Book()),
        ({"steps": "7", "laps": {}}, Book()),
        ({"faults": {"hang": -2, "crash": 1, "exit": "x"}}, Book(faults=Counter(crash=1))),
        ({"laps": [{"seconds": 1}, 5, {"names": "ab"}]}, Book(laps=[Lap(1.0), Lap()])),
        ({"rows": [{"a": 1}, [], None]}, Book(rows=[{"a": 1}])),
    ],
)
def test_what_is_of_another_type_is_left_out_or_refused(data: dict[str, Any], kept: Book) -> None:
    assert read(Book, data) == kept
    with pytest.raises(ValueError, match=next(iter(data))):
        read_strictly(Book, data)
