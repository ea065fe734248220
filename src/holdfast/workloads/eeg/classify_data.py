"""The windows and labels of `eeg-classify`: of any BIDS set, made once and found again. No torch here.

asked = Asked(data="set", target="trial_type")
windows, wanted = windows(asked)              # prepared into the user's cache folder
task = task(windows, wanted, asked)           # rows, targets, folds, names of classes
ready({"data": "set", "target": "sx"})        # UserError before there is a run
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.errors import UserError
from holdfast.base.human import counted
from holdfast.workloads.eeg import bids, cache, class_scores, foreign, labels, scores
from holdfast.workloads.eeg import folds as folds_
from holdfast.workloads.eeg.prepare import OtherCache, prepare

KEPT = "HOLDFAST_EEG_WINDOWS"
"""Where windows are kept, if not in the user's cache folder."""
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says about data, labels and folds."""

    data: str
    target: str
    tasks: str = ""
    classes: str = ""
    predicts: str = "auto"
    folds: str = "auto"
    shift: float = 0.0
    size: float = 0.0
    rate: float = 100.0
    band: str = "0.5-45"
    channels: str = ""
    model: str = "tempo"

    def words(self, text: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in text.split(",") if word.strip())


@dataclass(frozen=True)
class Task:
    """Which windows count, what is to be said about each, and who is held out with it."""

    wanted: labels.Wanted
    rows: Any
    targets: Any
    names: list[str]
    """Of the classes; none where it is an amount."""
    folds: folds_.Plan

    def words(self) -> str:
        counts = Counter(self.targets[:, 0].astype(int).tolist())
        what = ", ".join(f"{name} {counts[number]}" for number, name in enumerate(self.names)) or "an amount"
        return f"`{self.wanted.target}` of {self.wanted.of}: {what}; {self.folds.how}"

    def judged(self, said: Any) -> tuple[Any, Any, Any]:
        """Truth, answers and who they are of: for a label of the subject, all windows of a person speak together."""
        if self.wanted.of == labels.EVENTS:
            return self.targets, said, self.folds.groups
        names, number = np.unique(self.folds.groups, return_inverse=True)
        counts = np.bincount(number)[:, None]
        mean = np.stack([np.bincount(number, weights=column) for column in said.T], axis=1) / counts
        first = [int(np.flatnonzero(number == each)[0]) for each in range(len(names))]
        return self.targets[first], mean, names


def find(asked: Asked) -> tuple[bids.DataSet, labels.Wanted]:
    """The set and its column."""
    if not asked.target:
        raise UserError("no target was named", hints=["name a column, as in `target=trial_type`"])
    if asked.predicts not in ("auto", "classes", "amount"):
        raise UserError(f"predicts is {asked.predicts!r}", cause="there are: auto, classes, amount")
    dataset = bids.look(Path(asked.data).expanduser())
    return dataset, labels.find(dataset, asked.target, asked.words(asked.tasks))


def ready(arguments: Mapping[str, str]) -> None:
    """UserError if these cannot be trained on: asked before there is a run, from tables alone."""
    if not arguments.get("data"):
        raise UserError("no data were named", hints=["`holdfast train eeg-classify data=./set target=trial_type`"])
    names = {field.name for field in dataclasses.fields(Asked)} - {"shift", "size", "rate"}
    given: dict[str, Any] = {name: value for name, value in arguments.items() if name in names}
    asked = Asked(**{"target": "", **given})
    if asked.model not in foreign.OWN:
        foreign.check(asked.model)
    dataset, wanted = find(asked)
    kept = [value for value in wanted.values if labels.matches(value, asked.words(asked.classes))]
    if not is_amount(wanted, asked) and len(kept) < 2:
        there = ", ".join(f"{name} ({count})" for name, count in wanted.values.most_common(6))
        raise UserError(f"`{asked.target}` has fewer than two classes", cause=f"its values: {there}")
    if len({each.name for each in dataset.recordings}) < 2:
        raise UserError("there is nothing to hold out", cause="the set has one recording")


def is_amount(wanted: labels.Wanted, asked: Asked) -> bool:
    return asked.predicts == "amount" or (asked.predicts == "auto" and wanted.is_number)


def windows(asked: Asked, progress: Progress | None = None) -> tuple[Any, labels.Wanted]:
    """Prepared once; the same question finds them again."""
    dataset, wanted = find(asked)
    parameters = {**wanted.recipe(asked.words(asked.classes)), "rate": asked.rate, "band": _band(asked.band)}
    parameters |= {"shift": asked.shift, "size": asked.size or wanted.seconds}
    parameters["channels"] = asked.words(asked.channels)
    folder = (
        kept_in()
        / hashlib.sha256(
            json.dumps([str(dataset.root.absolute()), parameters], sort_keys=True, default=str).encode()
        ).hexdigest()[:16]
    )
    try:
        made = prepare(dataset.root, folder, progress=progress, **parameters)
    except OtherCache:  # the recordings or the code are others now; nothing of value is lost
        made = prepare(dataset.root, folder, progress=progress, rebuild=True, **parameters)
    if not made.windows:
        reasons = {**made.left_out, **made.drops}
        raise UserError(
            f"no window of {asked.data} has a label in `{asked.target}`",
            cause=f"left out: {', '.join(reasons)}",
            hints=[f"{made.folder / 'report.json'} has the reason for each recording"],
        )
    return cache.open(made.folder), wanted


def kept_in() -> Path:
    if os.environ.get(KEPT):
        return Path(os.environ[KEPT])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "eeg-windows"


def _band(text: str) -> tuple[float, float] | None:
    if text == "none":
        return None
    low, _, high = text.partition("-")
    try:
        return float(low), float(high)
    except ValueError:
        raise UserError(f"band is {text!r}", hints=["as in `band=0.5-45`, or `band=none`"]) from None


def task(found: Any, wanted: labels.Wanted, asked: Asked) -> Task:
    """Targets and folds."""
    cells = found.table["event"]
    if is_amount(wanted, asked):
        values = np.array([bids.number(cell) for cell in cells.tolist()])
        rows, names = np.flatnonzero(np.isfinite(values)), []
    else:
        names = sorted(set(cells.tolist()))
        values = np.searchsorted(np.array(names), cells).astype(np.float64)
        rows = np.arange(len(cells))
        if len(names) < 2:
            raise UserError(f"the windows have one class, {', '.join(names)}", cause="there is nothing to tell apart")
    of_subjects = values[rows] if wanted.of == labels.PARTICIPANTS and names else None
    plan = folds_.plan(found.table, rows, asked.folds, labels=of_subjects)
    return Task(wanted, rows, values[rows, None].astype(np.float32), names, plan)


def amounts(truth: Any, guess: Any, groups: Any) -> dict[str, Any]:
    """The metrics of an amount, from answers about people that were held out."""
    people = len(set(groups.tolist()))
    found = scores.measured(truth, guess, groups, float(np.mean(truth)))
    if people < class_scores.FEWEST:
        found |= {name: None for name in found if name.endswith(("_low", "_high"))} | {"inside_noise": True}
    return {"windows": len(truth), "groups": people, **found}


def amount_lines(found: dict[str, Any]) -> list[str]:
    """For people."""

    def spread(name: str) -> str:
        if found.get(f"{name}_low") is None:
            return f" (no interval: {counted(found['groups'], 'subject')})"
        return f" [{found[f'{name}_low']:.3f}, {found[f'{name}_high']:.3f}]"

    if found["nrmse"] is None:
        return [f"  no nrmse: {found['no_nrmse']}"]
    value = "none" if found["r"] is None else f"{found['r']:.3f}"
    noise = ["    the gain over the mean is inside the noise"] if found["inside_noise"] else []
    return [f"  nrmse {found['nrmse']:.3f}{spread('nrmse')} (the mean gets 1)   r {value}{spread('r')}", *noise]
