"""A run in Trackio's local database; `trackio sync` takes it from there to a Space.

Rows go into the database by Trackio's own storage, with ids: a row that comes again is ignored. Events are alerts.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from holdfast.monitor.trackers.rows import Row
from holdfast.monitor.trackers.tracker import About, Tracker


def make(about: About) -> Tracker:
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):  # the local database is what we write
        os.environ.pop(name, None)
    return TrackioTracker(about)


class TrackioTracker:
    """One run of a Trackio project."""

    def __init__(self, about: About) -> None:
        self.about = about

    def open(self) -> int | None:
        from trackio.sqlite_storage import SQLiteStorage

        SQLiteStorage.init_db(self.about.target.project)
        return None

    def send(self, rows: Sequence[Row]) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        numbers = [row for row in rows if row.values]
        SQLiteStorage.bulk_log(
            project=self.about.target.project,
            run=self.about.name,
            metrics_list=[_shown(row) for row in numbers],
            steps=[row.step for row in numbers],
            timestamps=[_stamp(row.time) for row in numbers],
            config={**self.about.arguments, "holdfast_faults": self.about.rows.faults},
            log_ids=[self._id(row) for row in numbers],
            run_id=self.about.id,
        )
        events = [row for row in rows if row.words]
        SQLiteStorage.bulk_alert(
            project=self.about.target.project,
            run=self.about.name,
            titles=[row.words[:200] for row in events],
            texts=[row.words if len(row.words) > 200 else None for row in events],
            levels=["warn" if row.alert else "info" for row in events],
            steps=[row.step for row in events],
            timestamps=[_stamp(row.time) for row in events],
            alert_ids=[self._id(row) for row in events],
            run_id=self.about.id,
        )

    def _id(self, row: Row) -> str:
        return f"holdfast-{self.about.id}-{row.number}"

    def file(self, path: Path, kind: str) -> None:
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            run = trackio.init(
                project=self.about.target.project,
                name=self.about.name,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            try:
                run.log_artifact(str(path), name=f"{self.about.name}-{kind}", type=kind)
            finally:
                run.finish()

    def close(self, state: str) -> None: ...


def _shown(row: Row) -> dict[str, Any]:
    more = {"holdfast/corrects": 1} if row.corrects else {}
    return {**row.values, **more} if row.epoch is None else {"epoch": row.epoch, **row.values, **more}


def _stamp(when: float) -> str:
    return datetime.fromtimestamp(when, timezone.utc).isoformat()
