"""Whether the data of a stage can be trained on: asked before a run is made, in a moment and without torch.

    ready.challenge1({"data": "cache"})       # UserError with the reason and a command that works; None if all is well

`workload.toml` names these functions. Nothing is asked where no data are named: the simulated set is always good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.workloads.eeg import bids, response_windows
from holdfast.workloads.eeg.inputs import opened
from holdfast.workloads.eeg.splits import split

START = response_windows.USUAL
"""Seconds from the stimulus to the first sample of a window, as the competition cuts them."""


def start_of(windows: Any) -> float:
    """The same for these windows, which may have been cut in another way: `holdfast eeg prepare --shift`."""
    recipe = windows.meta.get("recipe")
    return files.number(recipe.get("shift"), START) if isinstance(recipe, dict) else START


def challenge1(arguments: Mapping[str, str]) -> None:
    """Windows with response times that lie inside of them."""
    windows = _windows(arguments, "challenge1")
    if windows is not None:
        times = response_times(windows)
        response_windows.judge(times, start_of(windows), windows.samples / windows.rate)
        _split(windows, np.isfinite(times), arguments)


def response_times(windows: Any) -> Any:
    """The column, if it has a value."""
    times = windows.table["response_time"]
    if not np.isfinite(times).any():
        raise UserError(
            f"no window in {windows.folder} has a response time",
            cause=f"they are windows of the kind {windows.kind}",
            hints=["make windows at responses: `holdfast eeg prepare DATA CACHE --kind challenge1`"],
        )
    return times


def challenge2(arguments: Mapping[str, str]) -> None:
    """Windows of subjects with a factor."""
    windows = _windows(arguments, "challenge2")
    if windows is not None:
        _split(windows, factors(windows, bids.FACTORS), arguments)


def factors(windows: Any, names: tuple[str, ...]) -> Any:
    """Which windows are of a subject with one of these labels, if any is."""
    known = np.stack([np.isfinite(windows.table[name]) for name in names], axis=1).any(axis=1)
    if not known.any():
        raise UserError(
            f"no subject in {windows.folder} has a label",
            cause=f"participants.tsv has no values for {', '.join(names)}",
            hints=["other columns are learned by `holdfast train eeg-classify data=DATA target=COLUMN`"],
        )
    return known


def pretrain(arguments: Mapping[str, str]) -> None:
    """Windows of any kind."""
    windows = _windows(arguments, "pretrain")
    if windows is not None:
        _split(windows, None, arguments)


def _windows(arguments: Mapping[str, str], kind: str) -> Any:
    return opened(arguments["data"], kind) if arguments.get("data") else None


def _split(windows: Any, keep: Any, arguments: Mapping[str, str]) -> None:
    split(windows.table, valid=arguments.get("valid", ""), test=arguments.get("test", ""), keep=keep)
