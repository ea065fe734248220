"""A run in Weights & Biases, online or offline (WANDB_MODE): a history row for each of our rows, under the same number.

W&B orders its history by a step that only grows. Ours goes back when steps are undone, so W&B's step is the number of
the row, and the charts use the column `step`. A corrected row has `holdfast/corrects`; an undone range is an event row.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.monitor.trackers.rows import Row
from holdfast.monitor.trackers.tracker import About, Tracker
from holdfast.monitor.trackers.wandb_file import history
from holdfast.run.states import RunState

_ENDED_BADLY = (RunState.FAILED, RunState.GAVE_UP, RunState.CRASHED)


def make(about: About) -> Tracker:
    return WandbTracker(about)


class WandbTracker:
    """One W&B run."""

    def __init__(self, about: About) -> None:
        self.about = about
        self._run: Any = None

    def open(self) -> int | None:
        import wandb

        self._leave()
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            disable_job_creation=True,
        )
        self._run = wandb.init(
            project=self.about.target.project,
            id=self.about.id,
            name=self.about.name,
            resume="allow",
            config=self.about.arguments,
            settings=settings,
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        if self._run.settings._offline:
            return last_row(_folder(), self.about.id)
        return max(0, int(self._run.step) - 1) if self._run.resumed else 0

    def send(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if not row.values and not row.words:
                continue
            shown: dict[str, Any] = {"step": row.step, **row.values}
            if row.epoch is not None:
                shown["epoch"] = row.epoch
            if row.corrects:
                shown["holdfast/corrects"] = True
            if row.words:
                shown["holdfast/event"] = row.words
            if row.undone is not None:
                shown["holdfast/undone_from"], shown["holdfast/undone_to"] = row.undone
            self._run.log(shown, step=row.number)
        if any(row.words for row in rows):
            self._run.summary["holdfast/faults"] = self.about.rows.faults
            if self.about.rows.undone:
                self._run.summary["holdfast/undone"] = [list(each) for each in self.about.rows.undone]

    def file(self, path: Path, kind: str) -> None:
        import wandb

        artifact = wandb.Artifact(f"{self.about.name}-{kind}", type=kind)
        artifact.add_file(str(path), policy="immutable")
        self._run.log_artifact(artifact)

    def close(self, state: str) -> None:
        if self._run is not None:
            self._run.summary["holdfast/state"] = state
            run, self._run = self._run, None
            run.finish(exit_code=1 if state in _ENDED_BADLY else 0)

    def _leave(self) -> None:
        if self._run is not None:
            with contextlib.suppress(Exception):
                self._run.finish(exit_code=1)
        self._run = None


# What earlier processes wrote -----------------------------------------------------------------------------


def _folder() -> Path:
    """Where W&B puts the files of runs: `wandb` in WANDB_DIR or the current folder, `.wandb` if that is there."""
    base = Path(os.environ.get("WANDB_DIR") or ".")
    return base / ".wandb" if (base / ".wandb").is_dir() else base / "wandb"


def last_row(folder: Path, run: str) -> int | None:
    """The last row in the offline files of a run; None if there are no files that can be read."""
    rows = (row for path in folder.glob(f"offline-run-*-{run}/*.wandb") for row in history(path))
    return max((int(row["_step"]) for row in rows if isinstance(row.get("_step"), int)), default=None)
