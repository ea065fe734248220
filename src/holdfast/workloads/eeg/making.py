"""The windows of one recording, from its files to an array: what a process of `prepare` does.

made = making.make(recording, subject, recipe, channels)        # DataFault if nothing of it can be used
made.signals          # (windows, channels, samples) float32 volts
made.columns          # what differs from window to window
made.outcome          # counts, for the report
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.workloads.eeg import bids, mains, reading, sidecars, windowing
from holdfast.workloads.eeg import channels as channels_
from holdfast.workloads.eeg.bids import Recording, Subject
from holdfast.workloads.eeg.faults import DataFault
from holdfast.workloads.eeg.filters import Impossible
from holdfast.workloads.eeg.recipe import AUTO, Recipe
from holdfast.workloads.eeg.report import Outcome

_BLOCK = 32 << 20
"""Bytes of double precision that are filtered at a time."""

PER_WINDOW = ("onset", "event", "response_time", "correct")


@dataclass
class Made:
    """What one recording gave."""

    signals: NDArray[np.float32]
    columns: dict[str, list[Any]]
    constants: dict[str, Any]
    outcome: Outcome
    chain: list[str]


def make(recording: Recording, subject: Subject, recipe: Recipe, channels: Sequence[str]) -> Made:
    """Read, filter, cut. Nothing in the data makes this raise anything but DataFault."""
    if recording.subject.removeprefix("sub-") in recipe.exclude:
        raise DataFault("excluded", "named by the competition's starter kit")
    label = dict(recipe.labels).get(recording.subject)
    if recipe.labels and label is None:
        raise DataFault("no label", "participants.tsv has no value for it in this column")
    if recipe.kind == "challenge2" and not subject.factors:
        raise DataFault("no label", "none of its four factors is in participants.tsv")
    outcome = Outcome(recording.name)
    events = _events(recording, recipe, outcome)
    source = reading.open(recording.path)
    rows = _rows(recording, source.channels, channels, recipe)
    if disagreement := sidecars.rates_disagree(recording, source.rate):
        outcome.notes.append(f"{disagreement}: the header counts")
    if other := sidecars.renamed(recording, source.channels):
        outcome.notes.append(f"{other}: the header counts")
    chain = _chain(recipe, recording, source, outcome)
    cut = _cut(events, chain.length(source.samples), recipe)
    outcome.drops = dict(cut.drops)
    if not cut.windows:
        return Made(np.empty((0, len(channels), recipe.samples), np.float32), _columns([]), {}, outcome, chain.lines())
    whole, broken = _filtered(source, rows, chain)
    marked = [row["name"] for row in bids.channel_table(recording) if row.get("status") == "bad" and "name" in row]
    outcome.bad_channels = channels_.judge(whole, channels, marked)
    channels_.repair(whole, channels, outcome.bad_channels, recipe.bad)
    kept = [each for each in cut.windows if not broken[each.start : each.start + recipe.samples].any()]
    if len(kept) < len(cut.windows):
        outcome.drops["not finite"] = len(cut.windows) - len(kept)
    signals = np.empty((len(kept), len(channels), recipe.samples), np.float32)
    for number, each in enumerate(kept):
        signals[number] = whole[:, each.start : each.start + recipe.samples]
    outcome.windows = len(kept)
    columns = _columns(kept)
    if recipe.labels:
        del columns["event"]  # the label is the subject's
    return Made(signals, columns, _constants(recording, subject, recipe), outcome, chain.lines())


def _events(recording: Recording, recipe: Recipe, outcome: Outcome) -> list[bids.Event]:
    fixed = recipe.kind in ("challenge2", "pretrain") or bool(recipe.labels)
    try:
        events = bids.events(recording)
    except DataFault as fault:
        if not fixed:
            raise
        outcome.notes.append(str(fault))  # windows of fixed length need none
        return []
    events, again = bids.once(events)
    if again:
        outcome.notes.append("events that stand there twice count once")
    if not fixed:
        wanted = recipe.names.stimulus if recipe.kind == "challenge1" else recipe.values
        if not events:
            raise DataFault("no events", "its events.tsv has no rows")
        if recipe.column:
            if not any(each.extra.get(recipe.column) in wanted for each in events):
                raise DataFault("no stimuli", f"none of its {len(events)} events has a label in `{recipe.column}`")
        elif not any(windowing.is_one(each, wanted) for each in events):
            raise DataFault("no stimuli", f"none of its {len(events)} events is one of {', '.join(wanted)}")
    return events


def _rows(recording: Recording, there: Sequence[str], wanted: Sequence[str], recipe: Recipe) -> list[int]:
    """Where the wanted channels are in this recording."""
    places = {name: i for i, name in enumerate(there)}
    missing = [name for name in wanted if name not in places]
    if missing:
        names = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        if not recipe.channels and (other := sidecars.renamed(recording, there)):
            raise DataFault("renamed channels", other)
        reason = "missing channel" if recipe.channels else "channel count"
        raise DataFault(reason, f"it has {len(there)} channels, and not {names}")
    return [places[name] for name in wanted]


def _chain(recipe: Recipe, recording: Recording, source: reading.Source, outcome: Outcome) -> Any:
    found = mains.of(recording, source) if recipe.notch == AUTO else None
    if found is not None and found.doubt:
        outcome.notes.append(found.doubt)
    try:
        return recipe.chain(source.rate, found)
    except Impossible as error:
        raise DataFault("sampling rate", error.message) from error


def _cut(events: list[bids.Event], samples: int, recipe: Recipe) -> windowing.Cut:
    if recipe.kind == "challenge1":
        names, shift = recipe.names, recipe.shift or 0.0
        return windowing.challenge1(events, samples, recipe.rate, names=names, shift=shift, size=recipe.size)
    if recipe.kind == "events" or recipe.column:
        values, shift = recipe.values, recipe.shift or 0.0
        return windowing.around(events, samples, recipe.rate, values=values, shift=shift, size=recipe.size,
                                column=recipe.column)  # fmt: skip
    return windowing.fixed(events, samples, recipe.rate, size=recipe.size, stride=recipe.stride)


def _filtered(source: reading.Source, rows: list[int], chain: Any) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Every channel filtered, a block at a time; and which samples stand where some channel was not finite."""
    length = chain.length(source.samples)
    whole = np.empty((len(rows), length), np.float32)
    broken = np.zeros(source.samples, bool)
    at_once = max(1, _BLOCK // (8 * source.samples))
    for first in range(0, len(rows), at_once):
        block = source.read(rows[first : first + at_once])
        wrong = ~np.isfinite(block)
        if wrong.any():
            dead = wrong.all(axis=1)
            broken |= wrong[~dead].any(axis=0)
            block[wrong] = 0
        whole[first : first + at_once] = chain.apply(block)
        if wrong.any():
            whole[first : first + at_once][dead] = np.nan
    if not broken.any():
        return whole, np.zeros(length, bool)
    places = np.minimum((np.flatnonzero(broken) * float(chain.ratio)).astype(int), length - 1)
    marks = np.zeros(length, bool)
    marks[places] = True
    return whole, marks


def _columns(windows: list[windowing.Window]) -> dict[str, list[Any]]:
    return {name: [each.row.get(name) for each in windows] for name in PER_WINDOW}


def _constants(recording: Recording, subject: Subject, recipe: Recipe) -> dict[str, Any]:
    return {
        "recording": recording.name,
        "subject": recording.subject,
        "release": subject.release,
        "task": recording.task,
        "kind": recipe.kind,
        "sex": subject.sex,
        "age": subject.age,
        **subject.factors,
        **({"event": dict(recipe.labels)[recording.subject]} if recipe.labels else {}),
    }
