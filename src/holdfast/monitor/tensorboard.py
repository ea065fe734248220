"""A run as TensorBoard event files: its metrics, and its faults as words.

write(run, run.path / "tb")      # then: tensorboard --logdir runs
"""

from __future__ import annotations

import math
from pathlib import Path

from holdfast.base.files import remove
from holdfast.base.folders import Folder
from holdfast.base.human import duration
from holdfast.monitor.reader import Run
from holdfast.monitor.story import Fault
from holdfast.run.tensorboard_file import EventFile


def write(run: Run, folder: Path) -> None:
    """All of it anew: files of ours that are there are replaced. OSError if nothing can be written."""
    with Folder.at(folder, inner=1, make=True) as place:
        old = [folder / name for name in place.names() if name.startswith("events.out.tfevents.")]
    events = EventFile(folder)
    for shape in run.books.table.shapes.values():
        columns = [column[:] for column in shape.columns]
        for step, _epoch, when, *values in zip(*columns, strict=True):
            events.scalars(int(step), _time(when), dict(zip(shape.names, values, strict=True)))
    for fault in run.faults:
        events.text(fault.step or 0, _time(fault.time), "faults", fault_words(fault))
    events.close()
    if events.problem is not None:
        raise events.problem
    for path in old:
        remove(path, inner=1)


def fault_words(fault: Fault) -> str:
    """One fault in a line."""
    took = f", training again after {duration(fault.recovered_s)}" if fault.recovered_s is not None else ""
    return f"{fault.code} {fault.sentence}{took}".strip()


def _time(when: float | None) -> float:
    return when if when is not None and math.isfinite(when) else 0.0
