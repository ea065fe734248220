"""A run as event files in a folder of your team: TensorBoard drops undone steps by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.monitor.trackers.rows import Row
from holdfast.monitor.trackers.tracker import About, Tracker
from holdfast.run.tensorboard_file import EventFile


def make(about: About) -> Tracker:
    return TensorboardTracker(about)


class TensorboardTracker:
    """One folder of event files."""

    def __init__(self, about: About) -> None:
        self.about = about
        self._events: EventFile | None = None

    def open(self) -> int | None:
        """A new file. What an earlier process wrote after the last row that is known to be there is taken back."""
        base = self.about.target.tensorboard
        folder = Path(base).expanduser() / self.about.name if base else self.about.folder / "tb"
        if base:  # a folder of the user's; that of the run is made by EventFile
            folder.mkdir(parents=True, exist_ok=True)
        self._close()
        self._events = EventFile(folder)
        if self.about.at_step >= 0:
            self._events.taken_back(self.about.at_step - 1, 0.0)
            self._events.scalars(self.about.at_step, 0.0, self.about.at_values)
            self._check()
        return None

    def send(self, rows: Sequence[Row]) -> None:
        assert self._events is not None
        for row in rows:
            if row.back_to is not None:
                self._events.taken_back(row.back_to, row.time)
            if row.words:
                self._events.text(row.step, row.time, "events", row.words)
            self._events.scalars(row.step, row.time, {**row.repeated, **row.values})
        self._check()

    def _check(self) -> None:
        assert self._events is not None
        if self._events.problem is not None:
            raise self._events.problem

    def file(self, path: Path, kind: str) -> None:
        """TensorBoard has no artefacts."""

    def close(self, state: str) -> None:
        self._close()

    def _close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None
