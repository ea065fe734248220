"""Which channels a cache has: those that were asked for, or those that most recordings have.

channel_names.choose(recordings, recipe)         # ["E1", "E2", …]; UserError if nobody has one that was asked for
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import bids, reading
from holdfast.workloads.eeg.bids import Recording
from holdfast.workloads.eeg.faults import DataFault
from holdfast.workloads.eeg.recipe import Recipe


def choose(recordings: Sequence[Recording], recipe: Recipe) -> list[str]:
    """Those that were asked for, or those that most recordings have, in their order."""
    seen: Counter[tuple[str, ...]] = Counter()
    for each in recordings:
        seen[_names(each)] += 1
    seen.pop((), None)
    if not recipe.channels:
        if not seen:
            raise UserError(
                "no recording can be read",
                hints=[f"`holdfast eeg check {recordings[0].root}` says what is wrong with each"],
            )
        return list(seen.most_common(1)[0][0])
    everywhere = {name for names in seen for name in names}
    missing = [name for name in recipe.channels if name not in everywhere]
    if missing and seen:  # tables may be wrong: the recordings have the last word
        everywhere |= {name for each in recordings for name in _in_header(each)}
        missing = [name for name in recipe.channels if name not in everywhere]
    if missing and seen:
        close = difflib.get_close_matches(missing[0], everywhere, n=1, cutoff=0.5)
        raise UserError(
            f"no recording has a channel `{missing[0]}`",
            cause=f"their channels are {', '.join(next(iter(seen))[:6])}, …",
            hints=[f"a similar one exists: `{close[0]}`"] if close else (),
        )
    return list(recipe.channels)


def _names(recording: Recording) -> tuple[str, ...]:
    """The EEG channels of a recording: from the table beside it, else from the file itself."""
    rows = bids.channel_table(recording)
    named = tuple(row["name"] for row in rows if row.get("name") and row.get("type", "EEG").upper() == "EEG")
    if named:
        return named
    return _in_header(recording)


def _in_header(recording: Recording) -> tuple[str, ...]:
    try:
        return tuple(reading.open(recording.path).channels)
    except DataFault:
        return ()
