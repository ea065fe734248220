"""What every tracker can do, and what it is told about the run.

tracker = make("mlflow", about)          # imports the tracker's package; Missing if it is not installed
delivered = tracker.open()               # the same tracker run again, or a new one
tracker.send(rows)                       # raises if they may not have arrived; the same rows come again then
tracker.file(path, "model")
tracker.close("FINISHED")
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from holdfast.base import dataclass_json
from holdfast.base.errors import UserError
from holdfast.monitor.trackers.rows import Row, Rows
from holdfast.run.folder import name_of

NAMES = ("mlflow", "wandb", "trackio", "tensorboard")


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: the settings track.*, as the process of a tracker gets them."""

    to: tuple[str, ...] = ()
    project: str = "holdfast"
    mlflow: str | None = None
    tensorboard: str | None = None
    artefacts: bool = True
    patience: float = 3600.0

    @classmethod
    def of(cls, wanted: Any) -> Target:
        """From `Settings.track`."""
        names = tuple(dict.fromkeys((wanted.to or "").split(","))) if wanted.to else ()
        return cls(names, wanted.project, wanted.mlflow, wanted.tensorboard, wanted.artefacts, wanted.patience)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Target:
        return dataclass_json.read(cls, data) or cls()

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)


@dataclass(slots=True)
class About:
    """The run, for a tracker."""

    folder: Path
    info: dict[str, Any]
    """run.json"""
    target: Target
    rows: Rows
    """What was read of the journal so far: counts and ranges for summaries."""
    at_step: int = -1
    """The last step of which numbers were delivered, as trackers see it: after an undo it is an earlier one."""
    at_values: dict[str, float] = field(default_factory=dict)
    """What was delivered of that step."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What the tracker remembers in the run folder: the id of its run, say. It may have been written by anybody."""

    def delivered(self, row: Row) -> None:
        """The tracker has this row."""
        if row.back_to is not None and row.back_to < self.at_step:
            self.at_step, self.at_values = row.back_to, {}
        values = {**row.values, **row.repeated}
        if values and row.step >= self.at_step:
            self.at_values = {**(self.at_values if row.step == self.at_step else {}), **values}
            self.at_step = row.step

    @property
    def name(self) -> str:
        """Of the folder: what run.json calls itself may have been written by anybody, and names a folder of a team."""
        return name_of(self.folder)

    @property
    def id(self) -> str:
        """The same for every copy of the run folder, on every machine."""
        named = self.info.get("run") or self.name
        return sha256(f"{named} {self.info.get('created')}".encode()).hexdigest()[:16]

    @property
    def arguments(self) -> dict[str, str]:
        """What the script was given; run.json has no secrets in it."""
        said = self.info.get("arguments")
        known = {str(key): str(value) for key, value in said.items()} if isinstance(said, dict) else {}
        more = {key: str(self.info[key]) for key in ("workload", "seed", "holdfast") if self.info.get(key) is not None}
        return {**more, **known}


class Tracker(Protocol):
    """One tracker, connected to one run of it."""

    def open(self) -> int | None:
        """Connect. The number of the last row that the tracker has; None if it does not know."""

    def send(self, rows: Sequence[Row]) -> None:
        """Hand rows over. An exception means that some may be missing: all of them come again after an `open`."""

    def file(self, path: Path, kind: str) -> None:
        """Hand over an artefact: "report" or "model". The same file again replaces it."""

    def close(self, state: str) -> None:
        """The run has ended in this state, or goes on with another process if the state is a live one."""


class Missing(UserError):
    """The package of a tracker is not installed."""


def installed(name: str) -> bool:
    return name == "tensorboard" or importlib.util.find_spec(name) is not None


def missing(name: str) -> Missing:
    return Missing(f"track.to={name} needs the package {name}", hints=[f"install it: `pip install 'holdfast[{name}]'`"])


def make(name: str, about: About) -> Tracker:
    """The tracker of this name."""
    if not installed(name):
        raise missing(name)
    module = importlib.import_module(f"holdfast.monitor.trackers.{name}_tracker")
    tracker: Tracker = module.make(about)
    return tracker
