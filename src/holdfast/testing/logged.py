"""The numbers that a run has logged, compared with those of undisturbed runs.

    numbers = read(folder)                       # {(epoch, step, name): value}: the last word on each
    compare([read(first), read(second)], read(disturbed))

A name whose values differ between two undisturbed runs, like the seconds of a step, is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Numbers = dict[tuple[int, int, str], Any]


def read(folder: Path) -> Numbers:
    """What `metrics.jsonl` of a run says; a number that was logged again replaces the first."""
    found: Numbers = {}
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found
    for line in text.splitlines():
        try:
            record = json.loads(line)
            epoch, step = int(record.pop("epoch")), int(record.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        record.pop("time", None)
        found.update({(epoch, step, name): value for name, value in record.items()})
    return found


def compare(references: Sequence[Numbers], numbers: Numbers) -> tuple[bool | None, str]:
    """Whether the numbers are those of the undisturbed runs, and that in words. None: there is nothing to compare."""
    if not references or not any(references):
        return None, "nothing was logged"
    first = references[0]
    places = set(first).union(*references[1:])
    loose = {place[2] for place in places for other in references[1:] if _at(other, place) != _at(first, place)}
    wanted = {place: value for place, value in first.items() if place[2] not in loose}
    left_out = f"; {', '.join(sorted(loose))} differ from one undisturbed run to the next" if loose else ""
    if not wanted:
        return None, f"no logged number can be compared{left_out}"
    ours = {place: value for place, value in numbers.items() if place[2] not in loose}
    wrong = sorted(place for place in {*wanted, *ours} if _at(wanted, place) != _at(ours, place))
    if not wrong:
        return True, f"all {len(wanted)} are those of the undisturbed runs{left_out}"
    epoch, step, name = wrong[0]
    was, now = (_told(_at(numbers, wrong[0])) for numbers in (wanted, ours))
    return False, f"{len(wrong)} differ; the first: {name} at step {step} of epoch {epoch} is {now}, undisturbed {was}"


def _at(numbers: Numbers, place: tuple[int, int, str]) -> Any:
    return numbers.get(place, "missing")


def _told(value: Any) -> str:
    return "missing" if value == "missing" else repr(value)
