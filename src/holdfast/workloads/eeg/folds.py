"""Who is held out when every subject is tested once: whole subjects, in as many folds as asked for.

    plan = folds.plan(table, keep, "auto")       # leave-one-subject-out for a few subjects, five folds for many
    plan.fold                                    # the fold of each kept row
    plan.groups                                  # the subject of each kept row: what a fold never cuts through
    plan.how                                     # "leave one subject out: 8 subjects"

With fewer than three subjects whole recordings are held out, and `how` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import UserError
from holdfast.base.human import counted
from holdfast.workloads.eeg.splits import in_order

_FEW = 8
"""Subjects up to which each is left out alone."""
_USUAL = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """A fold for each kept row."""

    fold: NDArray[np.int64]
    groups: NDArray[Any]
    count: int
    how: str
    by_subject: bool


def plan(table: dict[str, NDArray[Any]], rows: NDArray[np.intp], asked: str, *, labels: Any = None) -> Plan:
    """Folds over subjects, or over recordings where there are too few subjects; UserError where that is not possible.

    `labels`: one of each subject, where the label is the subject's; then every fold has some of each class.
    """
    subjects = table["subject"][rows]
    by_subject = len(set(subjects.tolist())) >= 3
    groups = subjects if by_subject else table["recording"][rows]
    names = in_order(groups)
    if labels is not None:
        first = {name: labels[int(np.flatnonzero(groups == name)[0])] for name in names}
        names = sorted(names, key=lambda name: str(first[name]))  # stable: in turn, so that classes are spread
    count = _count(asked, len(names))
    place = {name: number % count for number, name in enumerate(names)}
    what = "subject" if by_subject else "recording"
    how = f"leave one {what} out: {counted(len(names), what)}"
    if count < len(names):
        how = f"{count} folds by {what}: {counted(len(names), what)}"
    if not by_subject:
        how += f" of {counted(len(set(subjects.tolist())), 'subject')}, so nothing is said about other people"
    return Plan(np.array([place[each] for each in groups.tolist()], np.int64), groups, count, how, by_subject)


def _count(asked: str, groups: int) -> int:
    if groups < 2:
        raise UserError(
            "there is nothing to hold out", cause="the windows are of one recording of one subject", hints=["add one"]
        )
    if asked in ("", "auto"):
        return groups if groups <= _FEW else _USUAL
    if asked == "subject":
        return groups
    try:
        count = int(asked)
    except ValueError:
        raise UserError(f"folds is {asked!r}", cause="it is a number, subject or auto") from None
    if not 2 <= count <= groups:
        raise UserError(f"folds is {count}", cause=f"there are {groups} to hold out: 2 to {groups} folds are possible")
    return count
