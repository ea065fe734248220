"""Numbers of a run for other programs: CSV, JSON, PNG.

for part in csv_text(run): file.write(part)       # time, step, epoch and a column a metric; every record
to_json(run)                                      # what a page shows, with all its curves
png(run, path)                                    # the charts of the run as a picture (needs pillow)
"""

from __future__ import annotations

import csv
import heapq
import io
import math
from collections.abc import Iterator
from datetime import datetime, timezone
from operator import itemgetter
from typing import Any

from holdfast.monitor import payload
from holdfast.monitor.columns import Shape
from holdfast.monitor.reader import Run

_ROWS = 2000
"""Rows that are written at once."""


def csv_text(run: Run, names: list[str] | None = None) -> Iterator[str]:
    """All records in the order of steps, or those that have one of `names`; unknown is an empty cell."""
    wanted = list(run.curves) if names is None else names
    shapes = [shape for shape in run.curves.shapes if set(shape.names) & set(wanted)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", "step", "epoch", *map(_cell, wanted)])
    rows = heapq.merge(*(_rows(shape, wanted) for shape in shapes), key=itemgetter(0))
    for at, (_, row) in enumerate(rows, 1):
        writer.writerow(row)
        if at % _ROWS == 0:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    yield text.getvalue()


def _rows(shape: Shape, wanted: list[str]) -> Iterator[tuple[tuple[float, float], list[Any]]]:
    places = [shape.names.index(name) if name in shape.names else None for name in wanted]
    length = len(shape)  # what comes while we write is for the next time
    for begin in range(0, length, _ROWS):
        parts = [column[begin : min(begin + _ROWS, length)] for column in shape.columns]
        for step, epoch, when, *values in zip(*parts, strict=False):
            cells = [None if at is None else _value(values[at]) for at in places]
            yield (epoch, step), [_stamp(when), step, epoch, *cells]


def _value(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def _stamp(when: float) -> str:
    try:
        moment = datetime.fromtimestamp(when, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return ""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cell(name: str) -> str:
    """A name that a spreadsheet would take for a formula is kept from being one."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def to_json(run: Run, points: int = 2000) -> dict[str, Any]:
    """Everything a page shows."""
    shown = payload.charts(run)
    keys = [line["key"] for chart in shown for line in chart["lines"]]
    return {
        "schema": 1,
        "folder": str(run.path.absolute()),
        **payload.head(run, run.path.name),
        **payload.body(run),
        "series": payload.series(run, keys, points),
    }
