"""A command that works for this data set, made of its own tasks and events: what a hint names.

suggestions.preparing(dataset, "challenge1", "cache")
# "holdfast eeg prepare muse cache --kind challenge1 --tasks cueing --trial '' --stimulus 'target_*' --response …"
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable

from holdfast.workloads.eeg import bids
from holdfast.workloads.eeg.bids import DataSet, Event, Recording
from holdfast.workloads.eeg.faults import DataFault

_RESPONSE = re.compile(r"press|respon|button|^rt$|_rt$|keypress|^key", re.IGNORECASE)
_LOOKED_AT = 6
"""Recordings of each task that are looked at."""


def preparing(dataset: DataSet, kind: str, folder: str | os.PathLike[str] = "CACHE") -> str:
    """The command that makes windows of this kind of the set, or of the nearest kind that it has."""
    words = ["holdfast", "eeg", "prepare", str(dataset.root), str(folder)]
    by_task = _events_by_task(dataset.recordings)
    if kind == "challenge1":
        for task, recordings in by_task.items():
            stimuli, responses = trial_names(recordings)
            if stimuli and responses:
                words += ["--kind", "challenge1", "--tasks", task, "--trial", ""]
                return shlex.join([*words, "--stimulus", ",".join(stimuli), "--response", ",".join(responses)])
    if kind == "events" or kind == "challenge1":
        for task, recordings in by_task.items():
            values = Counter(each.value for events in recordings for each in events if each.value)
            if len(values) >= 2:
                named = ",".join(sorted(value for value, _ in values.most_common(2)))
                return shlex.join([*words, "--kind", "events", "--tasks", task, "--events", named])
    tasks = sorted({each.task for each in dataset.recordings})
    return shlex.join([*words, "--kind", "pretrain", "--tasks", ",".join(tasks[:1]) or "*"])


def _events_by_task(recordings: Iterable[Recording]) -> dict[str, list[list[Event]]]:
    found: dict[str, list[list[Event]]] = {}
    for each in recordings:
        some = found.setdefault(each.task, [])
        if len(some) < _LOOKED_AT:
            try:
                some.append(sorted(bids.events(each), key=lambda event: event.onset))
            except DataFault:
                continue
    return found


def trial_names(recordings: Iterable[list[Event]]) -> tuple[list[str], list[str]]:
    """What seem to be the stimuli and the responses: patterns for names; none where nothing looks like a response."""
    before: Counter[str] = Counter()
    values: set[str] = set()
    for events in recordings:
        values.update(each.value for each in events if each.value)
        for one, other in itertools.pairwise(events):
            if _RESPONSE.search(other.value) and not _RESPONSE.search(one.value):
                before[one.value] += 1
    responses = {value for value in values if _RESPONSE.search(value)}
    often = sum(before.values()) * 0.02
    stimuli = {value for value, count in before.items() if value and count > often}
    return _patterns(stimuli, values), _patterns(responses, values)


def _patterns(names: set[str], every: set[str]) -> list[str]:
    """`target_*` for all that begin so, if nothing else does; else the names themselves."""
    starts = {re.split(r"(?<=[_\-./ ])", name, maxsplit=1)[0] for name in names}
    start = starts.pop() if len(starts) == 1 else ""
    if len(names) > 1 and start and {each for each in every if each.startswith(start)} == names:
        return [f"{start}*"]
    return sorted(names)
