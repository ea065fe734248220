"""Any column of a BIDS set as what is to be learned: of its events, or of its subjects.

    wanted = labels.find(dataset, "trial_type", tasks=("P300",))     # UserError that names the columns there are
    wanted.of                   # "events" or "participants"
    wanted.values               # Counter({"target": 120, "other": 480}), or of subjects
    wanted.is_number            # True where most values are numbers, and many different ones
    wanted.recipe(classes)      # the windows that hold it, for `prepare`

Nothing is read here but tables.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import bids
from holdfast.workloads.eeg.bids import DataSet, Recording
from holdfast.workloads.eeg.faults import DataFault

EVENTS, PARTICIPANTS = "events", "participants"
_UNKNOWN = ("", "n/a", "N/A", "nan", "NaN")
_MANY = 10
"""Different numbers: more of them are an amount, fewer are names of classes."""
_NOT_TARGETS = ("onset", "duration", "sample", "participant_id")
AT_EVENTS_S, OF_SUBJECTS_S = 1.0, 4.0
"""Seconds of a window, where the events have no duration, and where the label is the subject's."""
_SHORTEST, _LONGEST = 0.5, 4.0


@dataclass(frozen=True)
class Wanted:
    """A column, what stands in it, and where."""

    target: str
    of: str
    values: Counter[str]
    tasks: tuple[str, ...]
    durations: list[float] = field(default_factory=list)
    subjects: dict[str, str] = field(default_factory=dict)
    """The label of each subject, for a column of participants.tsv."""

    @property
    def is_number(self) -> bool:
        """Whether it is an amount rather than a class."""
        numbers = [value for value in self.values if not math.isnan(bids.number(value))]
        return len(numbers) > _MANY and len(numbers) == len(self.values)

    @property
    def seconds(self) -> float:
        """How long a window is: as the events last, where they say so."""
        if self.of == PARTICIPANTS:
            return OF_SUBJECTS_S
        if not self.durations:
            return AT_EVENTS_S
        return float(np.clip(round(float(np.median(self.durations)), 2), _SHORTEST, _LONGEST))

    def recipe(self, classes: Sequence[str] = ()) -> dict[str, Any]:
        """Parameters of `prepare` that make windows with this label in their column `event`."""
        kept = tuple(sorted(value for value in self.values if matches(value, classes)))
        if self.of == PARTICIPANTS:
            named = tuple(sorted((name, value) for name, value in self.subjects.items() if value in kept))
            return {"kind": "labelled", "labels": named, "tasks": self.tasks or ("*",), "size": self.seconds}
        return {"kind": "labelled", "column": self.target, "values": kept, "tasks": self.tasks or ("*",)}


def matches(value: str, classes: Sequence[str]) -> bool:
    """Whether a label is one of those that were asked for; all are where none was."""
    return not classes or any(fnmatch.fnmatchcase(value, each) for each in classes)


def known(cell: str | None) -> bool:
    return cell is not None and cell not in _UNKNOWN


def find(dataset: DataSet, target: str, tasks: Sequence[str] = ()) -> Wanted:
    """The column of this name, in events.tsv of the tasks or else in participants.tsv."""
    recordings = [each for each in dataset.recordings if not tasks or each.task in tasks]
    if not recordings:
        there = ", ".join(sorted({each.task for each in dataset.recordings}))
        raise UserError(f"{dataset.root} has no task {', '.join(tasks)}", cause=f"its tasks are {there or 'none'}")
    columns: Counter[str] = Counter()
    values: Counter[str] = Counter()
    durations: list[float] = []
    holding: set[str] = set()
    for recording in recordings:
        for row in _rows(recording):
            columns.update(name for name, cell in row.items() if known(cell))
            if known(row.get(target)):
                values[row[target]] += 1
                holding.add(recording.task)
                duration = bids.number(row.get("duration"))
                durations += [duration] if duration > 0 else []
    if values:
        return Wanted(target, EVENTS, values, tuple(sorted(holding)), durations)
    people = {name: row for folder in dataset.sets for name, row in bids.people(folder).items()}
    here = {each.subject for each in recordings}
    labels = {name: row[target] for name, row in people.items() if name in here and known(row.get(target))}
    if labels:
        return Wanted(target, PARTICIPANTS, Counter(labels.values()), tuple(tasks), subjects=labels)
    raise _unknown(dataset, target, columns, people)


def _rows(recording: Recording) -> list[dict[str, str]]:
    try:
        return [event.extra for event in bids.events(recording)]
    except DataFault:  # it is left out of the windows, with its reason
        return []


def _unknown(dataset: DataSet, target: str, columns: Counter[str], people: dict[str, dict[str, str]]) -> UserError:
    of_events = [name for name in columns if name not in _NOT_TARGETS]
    of_people = sorted({name for row in people.values() for name, cell in row.items() if known(cell)} - {*_NOT_TARGETS})
    close = difflib.get_close_matches(target, [*of_events, *of_people], n=1) or of_events[:1] or of_people[:1]
    return UserError(
        f"no event and no subject in {dataset.root} has a value for `{target}`",
        cause=f"columns of events: {', '.join(of_events) or 'none'}; of subjects: {', '.join(of_people) or 'none'}",
        hints=[f"`target={close[0]}` exists"] if close else [],
    )
