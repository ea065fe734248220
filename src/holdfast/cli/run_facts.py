"""What a run folder says about a run, as data: for --json, the tables and the closing summary alike.

    look = Look(run)                # everything is read when it is asked for, nothing is executed
    look.result()                   # run, folder, state, exit_code, device_timeline, metrics, best, receipt
    look.row()                      # one line of `holdfast list`

Works on live, finished, crashed and copied folders. It reads files only: never the supervisor, never a device.
"""

from __future__ import annotations

import functools
import math
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.monitor.reader import Run
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder

_MOST_POINTS = 2000
"""Values of a metric that are looked at one by one; of more, the peaks stand for all."""


class Look:
    """One look at a run; take a new one to see what has changed."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.seen = Run(run.path)
        self.seen.refresh()
        self.info = self.seen.info = run.info  # whoever holds the run may know more than the disk took
        self.state = self.seen.state
        self.beat = self.seen.beat
        self.receipt = self.seen.receipt

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def live(self) -> bool:
        return self.seen.live

    @functools.cached_property
    def events(self) -> list[Event]:
        """Everything but the numbers, which are many and columns of their own."""
        return self.seen.events()

    @functools.cached_property
    def faults(self) -> list[Event]:
        return self.seen.events(kinds={"fault"})

    @property
    def accounts(self) -> dict[str, Any]:
        return self.seen.accounts

    @property
    def step(self) -> int | None:
        """Steps committed, by the newest source that says so."""
        return self.seen.step

    @property
    def steps_total(self) -> int | None:
        """As the worker said; a short run may end before the first beat that knows."""
        return self.seen.progress.of

    @property
    def epochs_done(self) -> int:
        return self.seen.story.epochs_done

    @property
    def device(self) -> str | None:
        return self.seen.device

    @property
    def device_timeline(self) -> list[dict[str, Any]]:
        return self.seen.device_timeline

    @property
    def last_metrics(self) -> dict[str, float | None]:
        """Each metric's last value."""
        return {name: None if math.isnan(value) else value for name, value in self.seen.metrics.last().items()}

    @property
    def best(self) -> dict[str, Any] | None:
        """Name, value, step and epoch (counted from 1) of the best; None if nothing was judged."""
        return self.seen.best

    def series(self, name: str) -> list[float | None]:
        """The values of a metric, in order; of very many, those that make up the picture."""
        series = self.seen.curves[name]
        values = series.values if len(series) <= _MOST_POINTS else series.points(_MOST_POINTS)[1]
        return [number(value) for value in values]

    def about(self, name: str) -> str:
        """What a curve is, where its name alone does not say that."""
        return self.seen.curves.about(name)

    @property
    def names(self) -> list[str]:
        """What has a curve: the metrics in the order in which they were first logged, or the loss of each epoch."""
        return list(self.seen.curves)

    @property
    def age_s(self) -> float | None:
        """Seconds since the supervisor last wrote the beat."""
        return self.seen.beat_age_s

    @property
    def lasted_s(self) -> float | None:
        """From its start to its end, or to now; all sittings of a resumed run together."""
        return self.seen.lasted_s

    @functools.cached_property
    def checkpoints(self) -> list[tuple[int, Path, int]]:
        """Step, folder and bytes, the newest first; not verified here: `resume` does that."""
        root = self.run.path / "checkpoints"
        return [(each.step, root / each.name, each.bytes) for each in self.seen.checkpoints]

    @property
    def weights(self) -> dict[str, Path]:
        """The weight files there are: best, final."""
        return self.seen.weights

    def result(self) -> dict[str, Any]:
        """What `train`, `resume`, `chaos` and `show` print with --json."""
        return {
            "run": self.name,
            "folder": str(self.run.path.absolute()),
            "state": self.state,
            "exit_code": None if self.live else whole(self.info.get("exit_code")),
            "device_timeline": self.device_timeline,
            "metrics": self.last_metrics,
            "best": self.best,
            "receipt": self.receipt,
            "epochs_done": self.epochs_done,
            "faults_recovered": self.seen.faults_recovered,
        }

    def row(self) -> dict[str, Any]:
        """One entry of `list --json` and `status --json`."""
        live, progress = self.live, self.seen.progress
        return {
            "run": self.name,
            "folder": str(self.run.path.absolute()),
            "workload": self.info.get("workload"),
            "state": self.state,
            "device": self.device,
            "step": self.step,
            "steps_total": self.steps_total,
            "time_left_s": number(self.beat.get("time_left_s")) if live else None,
            "recoveries": self.recoveries,
            "created": self.info.get("created"),
            "pid": self.info.get("pid") if live else None,
            "epoch": None if progress.epoch is None else progress.epoch - 1,
            "epochs": progress.epochs,
            "epochs_done": self.epochs_done,
            "faults": self.seen.faults_total,
            "faults_recovered": self.seen.faults_recovered,
            "rate": number(self.beat.get("rate")) if live else None,
            "last_beat_s": _rounded(self.age_s) if live else None,
        }

    @property
    def recoveries(self) -> int:
        return self.seen.recoveries


def local_time(event: Event) -> str:
    """09:22:09 where the reader is."""
    seconds = event.seconds()
    return "--:--:--" if seconds is None else datetime.fromtimestamp(seconds).strftime("%H:%M:%S")


def whole(value: object) -> int | None:
    """A whole number, or None for whatever else a foreign file may hold."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
