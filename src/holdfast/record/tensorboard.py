"""A run's numbers for TensorBoard, written as they come: `tensorboard --logdir runs` shows the run while it goes on.

    scalars = Scalars(run_folder)                 # nothing is written if the setting run.tensorboard is off
    scalars.log(step, {"valid_loss": 0.61})
    scalars.say(step, "F006 cuda:0 was lost at step 3 862")
    scalars.undo(step)                            # what came after it was computed wrongly and comes again

After a resume a new file goes on where the run does: what an earlier file has beyond that step is dropped by readers,
and what was logged at that very step is not written again. Numbers come here before they go to metrics.jsonl, so what
that file knows is here. A disk that takes nothing costs the numbers, not the run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from holdfast.base.files import whole
from holdfast.run.folder import RunFolder
from holdfast.run.tensorboard_file import EventFile

FOLDER = "tb"
_NOT_NUMBERS = ("time", "step", "epoch")
"""What a record of metrics.jsonl has besides the numbers that were logged."""


class Scalars:
    """The event file of one sitting."""

    def __init__(self, run: RunFolder) -> None:
        settings = run.info.get("settings")
        section = settings.get("run") if isinstance(settings, dict) else None
        on = isinstance(section, dict) and section.get("tensorboard") is True
        folder = run.path / FOLDER
        self._run = run
        self._events = EventFile(folder) if on and not folder.is_symlink() else None

    def resume(self, step: int) -> None:
        """The run goes on after `step`."""
        if self._events is None or not (self._run.path / FOLDER).is_dir():
            return
        for record in self._run.last_metrics():
            for tag in record:
                self._events.known(tag, min(step, whole(record.get("step"))))
        self._events.taken_back(step, time.time())

    def again(self, step: int) -> None:
        """What comes next belongs to this step, and a file of a sitting that was killed may have it or not."""
        if self._events is None:
            return
        self._events.taken_back(step - 1, time.time())
        for record in self._run.last_metrics():
            if whole(record.get("step")) == step:
                self.log(step, {tag: value for tag, value in record.items() if tag not in _NOT_NUMBERS})

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        if self._events is None:
            return
        numbers = {name: float(value) for name, value in values.items() if _is_number(value)}
        self._events.scalars(step, time.time(), numbers)

    def say(self, step: int | None, text: str) -> None:
        if self._events is not None:
            self._events.text(step or 0, time.time(), "faults", text)

    def undo(self, step: int) -> None:
        if self._events is not None:
            self._events.taken_back(step, time.time())

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and (abs(value) < 1e300 or value != value)
