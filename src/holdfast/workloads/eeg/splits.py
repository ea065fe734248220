"""Who trains, who validates, who is tested: whole subjects, by release where the releases allow it.

    parts = split(windows.table)                          # R5 is the test, the last other release validates
    parts = split(windows.table, valid="R4", test="R5")   # as asked
    parts.train, parts.valid, parts.test                  # row numbers
    parts.how                                             # "test R5 (12 subjects), validation R11 (9), training …"
    folds(windows.table, parts.train, 5)                  # a fold for each row: a release, or a group of subjects

No subject is ever on two sides; a data set in which one is, is refused. With fewer than three subjects there is no such
split: then every recording is cut in time, its last parts validate and test, and `how` says that this is what it is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import UserError
from holdfast.base.human import counted

Rows = NDArray[np.intp]
Table = dict[str, NDArray[Any]]

TEST_SHARE, VALID_SHARE = 0.25, 0.2
"""Of the subjects, where releases cannot decide."""
OFFICIAL = "R5"
"""The release that the competition set aside."""


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers of the three sides, and in words how they came about."""

    train: Rows
    valid: Rows
    test: Rows
    how: str


def split(table: Table, *, valid: str = "", test: str = "", keep: NDArray[np.bool_] | None = None) -> Split:
    """Three sides without a common subject. `keep` leaves rows out, for example those without a label."""
    kept = np.ones(len(table["subject"]), dtype=bool) if keep is None else keep
    releases = sorted(set(table["release"][kept].tolist()) - {""}, key=_number)
    if valid or test or (OFFICIAL in releases and len(releases) >= 3):
        sides = _by_release(table, releases, valid, test)
        word = f"test {', '.join(sides[1]) or '-'}, validation {', '.join(sides[0]) or '-'}"
        on_valid, on_test = (np.isin(table["release"], side) for side in sides)
    elif len(set(table["subject"][kept].tolist())) < 3:
        return _in_time(table, kept)
    else:
        people = in_order(table["subject"][kept])
        tested, validated = round(TEST_SHARE * len(people)), round(VALID_SHARE * len(people))
        on_test = np.isin(table["subject"], people[:tested])
        on_valid = np.isin(table["subject"], people[tested : tested + validated])
        word = "by subject"
    rows = {
        "training": np.flatnonzero(kept & ~on_test & ~on_valid),
        "validation": np.flatnonzero(kept & on_valid & ~on_test),
        "test": np.flatnonzero(kept & on_test),
    }
    _check(table, rows)
    counts = ", ".join(f"{_people(table, each)} {name}" for name, each in rows.items())
    return Split(rows["training"], rows["validation"], rows["test"], f"{word}: {counts} subjects")


def _in_time(table: Table, kept: NDArray[np.bool_]) -> Split:
    """The last parts of each recording, for sets of one or two subjects."""
    place = np.full(len(kept), -1.0)
    for name in set(table["recording"][kept].tolist()):
        rows = np.flatnonzero(kept & (table["recording"] == name))
        order = np.argsort(table["onset"][rows], kind="stable")
        place[rows[order]] = (np.arange(len(rows)) + 0.5) / len(rows)
    train, test = (place >= 0) & (place < 1 - TEST_SHARE - VALID_SHARE), place >= 1 - TEST_SHARE
    valid = (place >= 0) & ~train & ~test
    sides = {"training": np.flatnonzero(train), "validation": np.flatnonzero(valid), "test": np.flatnonzero(test)}
    if not all(len(each) for each in sides.values()):
        raise UserError(f"{int(kept.sum())} windows are too few to train on", cause="they cannot be split in three")
    counts = ", ".join(f"{len(each)} {name}" for name, each in sides.items())
    how = f"within {counted(_people(table, kept), 'subject')}, by time: {counts} windows"
    return Split(sides["training"], sides["validation"], sides["test"], how)


def _by_release(table: Table, releases: list[str], valid: str, test: str) -> tuple[list[str], list[str]]:
    tested = [each for each in test.split(",") if each] or ([OFFICIAL] if OFFICIAL in releases else [])
    others = [each for each in releases if each not in tested]
    validated = [each for each in valid.split(",") if each] or others[-1:]
    unknown = [each for each in (*tested, *validated) if each not in releases]
    if unknown:
        raise UserError(
            f"no window is of release {unknown[0]}", cause=f"the releases are {', '.join(releases) or 'none'}"
        )
    both = [each for each in tested if each in validated]
    if both:
        raise UserError(f"{both[0]} cannot validate and be the test as well")
    return validated, tested


def _check(table: Table, rows: dict[str, Rows]) -> None:
    for name in ("training", "validation"):
        if not len(rows[name]):
            raise UserError(
                f"no windows are left for {name}",
                cause=f"{_people(table, slice(None))} subjects, releases {sorted(set(table['release'].tolist()))}",
                hints=["prepare more subjects, or choose other releases: `valid=R4 test=R5`"],
            )
    sides = {name: set(table["subject"][each].tolist()) for name, each in rows.items()}
    for one, other in (("training", "validation"), ("training", "test"), ("validation", "test")):
        shared = sorted(sides[one] & sides[other])
        if shared:
            raise UserError(
                f"subject {shared[0]} is in {one} and in {other}",
                cause=f"{len(shared)} subjects are in more than one release: scores would be too good",
            )


def folds(table: Table, rows: Rows, count: int, *, mixed: bool = False) -> NDArray[np.int64]:
    """A fold for each of `rows`: releases where there are enough of them, else groups of subjects, and if `mixed`."""
    releases = sorted(set(table["release"][rows].tolist()) - {""}, key=_number)
    if len(releases) >= count and not mixed:
        place = {name: number % count for number, name in enumerate(releases)}
        return np.array([place.get(each, 0) for each in table["release"][rows].tolist()], dtype=np.int64)
    place = {name: number % count for number, name in enumerate(in_order(table["subject"][rows]))}
    return np.array([place[each] for each in table["subject"][rows].tolist()], dtype=np.int64)


def in_order(subjects: NDArray[Any]) -> list[str]:
    """An order that has nothing to do with names, and is the same everywhere."""
    return sorted(set(subjects.tolist()), key=lambda name: hashlib.sha256(str(name).encode()).hexdigest())


def _number(release: str) -> tuple[int, str]:
    digits = "".join(char for char in release if char.isdigit())
    return (int(digits) if digits else 1 << 30, release)


def _people(table: Table, rows: Rows | slice | NDArray[np.bool_]) -> int:
    return len(set(table["subject"][rows].tolist()))
