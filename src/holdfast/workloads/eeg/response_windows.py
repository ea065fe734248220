"""Windows that can hold the response: they begin where the response times ask for, and what lies outside is said.

placed = response_windows.place(recordings, recipe)     # UserError if most responses lie outside of the windows
placed.shift, placed.words                              # 0.0, "0 to 2 s after the stimulus, chosen from …"
response_windows.judge(times, start=0.5, size=2.0)      # the same about windows that are made already
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import bids, windowing
from holdfast.workloads.eeg.bids import Recording
from holdfast.workloads.eeg.faults import DataFault
from holdfast.workloads.eeg.recipe import Recipe

USUAL = 0.5
"""Seconds after the stimulus: where the competition's windows begin."""
FEW, MOST = 0.05, 0.5
"""Shares of responses outside of the windows: above the first there is a warning, above the second no windows."""
_LATEST_START = 3.0


@dataclass(frozen=True, slots=True)
class Placed:
    """Where windows begin, in words too; `warning` is empty where nearly every response lies inside of its window."""

    shift: float
    words: str = ""
    warning: str = ""


def place(recordings: Sequence[Recording], recipe: Recipe) -> Placed:
    """The shift that was asked for, or the one that the response times ask for."""
    if recipe.kind != "challenge1":
        return Placed(0.0 if recipe.shift is None else recipe.shift)
    times = response_times(recordings, recipe.names)
    if not times:
        return Placed(USUAL if recipe.shift is None else recipe.shift)
    shift = choose(times, recipe.size) if recipe.shift is None else recipe.shift
    span = f"{shift:g} to {shift + recipe.size:g} s after the stimulus"
    how = "as asked for" if recipe.shift is not None else f"chosen from {len(times)} response times"
    return Placed(shift, f"{span}, {how} ({_spread(times)})", judge(times, shift, recipe.size))


def response_times(recordings: Sequence[Recording], names: windowing.Names) -> list[float]:
    """Of every trial with a stimulus and a press, in seconds."""
    found: list[float] = []
    for recording in recordings:
        try:
            trials, _ = windowing.trials(bids.once(bids.events(recording))[0], names)
        except DataFault:  # it is left out later, with its reason
            continue
        found += [each.response.onset - each.stimulus.onset for each in trials if each.stimulus and each.response]
    return found


def choose(times: ArrayLike, size: float) -> float:
    """The competition's start if nearly all responses fit, else the stimulus, else where most of them fit."""
    for start in (USUAL, 0.0):
        if outside(times, start, size) <= FEW:
            return start
    starts = np.round(np.arange(0.0, _LATEST_START + 0.05, 0.1), 1)
    return float(starts[int(np.argmin([outside(times, float(each), size) for each in starts]))])


def outside(times: ArrayLike, start: float, size: float) -> float:
    """The share of response times that lie outside of a window."""
    known = np.asarray(times, dtype=np.float64)
    known = known[np.isfinite(known)]
    return float(np.mean((known < start) | (known > start + size))) if len(known) else 0.0


def judge(times: ArrayLike, start: float, size: float) -> str:
    """Empty if nearly all responses lie inside, a warning if some do not, UserError if most do not."""
    share = outside(times, start, size)
    if share <= FEW:
        return ""
    better = choose(times, size)
    left = outside(times, better, size)
    said = f"{share:.1%} of the response times ({_spread(times)}) lie outside of the windows"
    said += f", {start:g} to {start + size:g} s"
    hint = f"`holdfast eeg prepare … --shift {better:g}` holds {1 - left:.1%} of them"
    if left >= share:
        hint = f"longer windows hold more of them: `--size {size + 1:g}`"
    if share > MOST:
        raise UserError("the windows cannot hold what is to be learned", cause=said, hints=[hint])
    return f"{said}; {hint}"


def _spread(times: ArrayLike) -> str:
    known = np.asarray(times, dtype=np.float64)
    low, middle, high = np.nanpercentile(known, [2.5, 50.0, 97.5])
    return f"95 % are {low:.2f} to {high:.2f} s, half below {middle:.2f} s"
