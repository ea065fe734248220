"""Where the windows of a recording are, from its events alone; and which were left out, and why.

    cut = windowing.challenge1(events, samples=27_300, rate=100)
    cut.windows[0].start, cut.windows[0].row       # 4278, {"onset": 42.284, "response_time": 2.13, ...}
    cut.drops                                      # Counter({"no response": 2, "past the end": 1})

    windowing.fixed(events, samples, rate, size=4.0, stride=2.0)

Nothing here raises on data. An onset may be NaN, a duration is never looked at, a file may be shorter than a window:
each window that cannot be is counted under its reason. Sizes are always given, never inferred from a duration.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.workloads.eeg.bids import Event


@dataclass(frozen=True, slots=True)
class Names:
    """What the events of a trial are called; `*` stands for anything."""

    trial: str = "contrastTrial_start"
    """What begins a trial; empty where every stimulus does."""
    stimulus: tuple[str, ...] = ("left_target", "right_target")
    response: tuple[str, ...] = ("left_buttonPress", "right_buttonPress")
    latest: float = 5.0
    """Seconds after the stimulus; a later press answers something else. The last trial has no other end."""


@dataclass(frozen=True, slots=True)
class Window:
    """One window: its first sample, and what is known about it."""

    start: int
    row: dict[str, Any]


@dataclass(slots=True)
class Cut:
    """The windows of one recording, and how many were left out for which reason."""

    windows: list[Window] = field(default_factory=list)
    drops: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Trial:
    """From one start to the next: its first stimulus, and the first press after that. None is missing."""

    stimulus: Event | None
    response: Event | None


def trials(events: Sequence[Event], names: Names) -> tuple[list[Trial], int]:
    """The trials in order of time, and how many of the events that matter have no onset."""
    matter = [each for each in events if is_one(each, (names.trial, *names.stimulus, *names.response))]
    timed = sorted((each for each in matter if _is_time(each.onset)), key=lambda each: each.onset)
    lost = sum(1 for each in matter if not _is_time(each.onset) and is_one(each, names.stimulus))
    begins = (names.trial,) if names.trial else names.stimulus
    groups: list[list[Event]] = []
    for event in timed:
        if is_one(event, begins):
            groups.append([])
        if groups:
            groups[-1].append(event)
    return [_trial(group, names) for group in groups], lost


def _trial(group: list[Event], names: Names) -> Trial:
    stimulus = next((each for each in group if is_one(each, names.stimulus)), None)
    if stimulus is None:
        return Trial(None, None)
    until = stimulus.onset + names.latest
    pressed = [each for each in group if is_one(each, names.response) and stimulus.onset <= each.onset <= until]
    return Trial(stimulus, pressed[0] if pressed else None)


def challenge1(
    events: Sequence[Event],
    samples: int,
    rate: float,
    *,
    names: Names | None = None,
    shift: float = 0.5,
    size: float = 2.0,
    need_response: bool = True,
) -> Cut:
    """A window for each trial, `shift` seconds after its stimulus; the first press is what counts."""
    cut, cuts = Cut(), _boundaries(events, rate)
    found, lost = trials(events, names or Names())
    cut.drops["onset not a number"] += lost
    for trial in found:
        if trial.stimulus is None:
            cut.drops["no stimulus"] += 1
        elif trial.response is None and need_response:
            cut.drops["no response"] += 1
        else:
            start = round(trial.stimulus.onset * rate) + round(shift * rate)
            _add(cut, start, round(size * rate), samples, cuts, _row(trial.stimulus, trial.response))
    cut.drops = +cut.drops
    return cut


def around(
    events: Sequence[Event],
    samples: int,
    rate: float,
    *,
    values: Sequence[str],
    shift: float = -0.1,
    size: float = 1.0,
    column: str = "",
) -> Cut:
    """A window around each event of these values; what the event was is what is to be learned.

    `column`: the values are those of this column, each as it stands there.
    """
    cut, cuts = Cut(), _boundaries(events, rate)
    for event in events:
        if event.extra.get(column) not in values if column else not is_one(event, values):
            continue
        if not _is_time(event.onset):
            cut.drops["onset not a number"] += 1
            continue
        start = round(event.onset * rate) + round(shift * rate)
        row = {"onset": event.onset, "event": event.extra[column] if column else event.value}
        _add(cut, start, round(size * rate), samples, cuts, row)
    return cut


def fixed(events: Sequence[Event], samples: int, rate: float, *, size: float = 4.0, stride: float = 2.0) -> Cut:
    """Windows of one size, one after the other, from the first sample to the last that fits."""
    cut, cuts = Cut(), _boundaries(events, rate)
    wide, step = round(size * rate), max(1, round(stride * rate))
    if samples < wide:
        cut.drops["too short"] += 1
    for start in range(0, samples - wide + 1, step):
        _add(cut, start, wide, samples, cuts, {"onset": start / rate})
    return cut


def _add(cut: Cut, start: int, wide: int, samples: int, cuts: list[int], row: dict[str, Any]) -> None:
    if start < 0:
        cut.drops["before the start"] += 1
    elif start + wide > samples:
        cut.drops["past the end"] += 1
    elif any(start < place < start + wide for place in cuts):
        cut.drops["across a boundary"] += 1
    else:
        cut.windows.append(Window(start, row))


def _row(stimulus: Event, response: Event | None) -> dict[str, Any]:
    row: dict[str, Any] = {"onset": stimulus.onset, "event": stimulus.value}
    if response is not None:
        row["response_time"] = response.onset - stimulus.onset
        row["correct"] = {"smiley_face": 1.0, "sad_face": 0.0}.get(response.feedback, _given(response))
    return row


def _given(response: Event) -> float | None:
    """Sets that say `correct` in a column of their own."""
    try:
        return float(response.extra.get("correct", ""))
    except ValueError:
        return None


def _boundaries(events: Sequence[Event], rate: float) -> list[int]:
    """Where the recording was cut: samples on both sides of it have nothing to do with each other."""
    return [round(each.onset * rate) for each in events if each.value == "boundary" and _is_time(each.onset)]


def _is_time(onset: float) -> bool:
    """Seconds that can be counted in samples: a number, and not of the size of nonsense."""
    return math.isfinite(onset) and abs(onset) < 1e12


def is_one(event: Event, names: Sequence[str]) -> bool:
    return any(name and (event.value == name or fnmatch.fnmatchcase(event.value, name)) for name in names)
