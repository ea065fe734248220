"""A run in MLflow: metrics by step, events and undone steps as tags, the report and the best weights as artefacts.

MLflow keeps every value of a metric and deletes none. A corrected value is a second point at its step with a later
time, which MLflow takes as the newest; the tag `holdfast.undone` names the steps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.monitor.trackers.rows import Row
from holdfast.monitor.trackers.tracker import About, Tracker
from holdfast.run.states import LIVE_STATES, RunState

MOST = 900
"""Metrics in one request; the server takes 1000."""
_STATES: dict[str, str] = {RunState.FINISHED: "FINISHED", RunState.STOPPED: "KILLED"}
"""What MLflow calls them."""
_FORBIDDEN = re.compile(r"[^\w\-. /:]")
_ID = "holdfast.id"


def make(about: About) -> Tracker:
    # A request that hangs must not hold up the retry: delivery.py waits and tries again by itself.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    return MlflowTracker(about)


class MlflowTracker:
    """One MLflow run."""

    def __init__(self, about: About) -> None:
        self.about = about
        self._client: Any = None
        self._run = ""
        self._unsure = True
        """Rows of the next `send` may be there already: an earlier process, or an answer that was lost."""

    def open(self) -> int | None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self.about.target.mlflow or os.environ.get("MLFLOW_TRACKING_URI"))
        self._run = self._find() or self._create()
        self._client.update_run(self._run, status="RUNNING")
        self.about.kept = {"run_id": self._run}
        self._unsure = True
        return None

    def _find(self) -> str | None:
        """Our run: the one we remember, or the one that has our id. A run folder may name a run of somebody else."""
        from mlflow.exceptions import MlflowException

        known = self.about.kept.get("run_id")
        if isinstance(known, str) and known:
            try:
                if self._client.get_run(known).data.tags.get(_ID) == self.about.id:
                    return known
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        experiment = self._client.get_experiment_by_name(self.about.target.project)
        if experiment is None:
            return None
        found = self._client.search_runs([experiment.experiment_id], f"tags.`{_ID}` = '{self.about.id}'", max_results=1)
        return str(found[0].info.run_id) if found else None

    def _create(self) -> str:
        from mlflow.entities import Param

        name = self.about.target.project
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
        tags = {_ID: self.about.id, "holdfast.run": self.about.name, "mlflow.source.name": "holdfast"}
        run = str(self._client.create_run(number, tags=tags, run_name=self.about.name).info.run_id)
        pairs = [Param(_key(key), value[:500]) for key, value in self.about.arguments.items()]
        self._client.log_batch(run, params=pairs[:100])
        return run

    def send(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric, RunTag

        metrics = [
            Metric(_key(name), value, int(row.time * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        if self._unsure:
            metrics = self._absent(metrics)
        tags = [RunTag(f"holdfast.event.{row.number:06d}", _event(row)) for row in rows if row.words]
        if tags:
            ranges = " ".join(f"{first}-{last}" for first, last in self.about.rows.undone)
            tags += [RunTag("holdfast.faults", str(self.about.rows.faults))]
            tags += [RunTag("holdfast.undone", ranges[-4000:])] if ranges else []
        self._unsure = True
        for at in range(0, len(metrics), MOST):
            self._client.log_batch(self._run, metrics=metrics[at : at + MOST])
        for at in range(0, len(tags), 90):
            self._client.log_batch(self._run, tags=tags[at : at + 90])
        self._unsure = False

    def _absent(self, metrics: list[Any]) -> list[Any]:
        """Those that the server does not have yet."""
        there: set[tuple[str, int, int, str]] = set()
        for key in {metric.key for metric in metrics}:
            there |= {_identity(metric) for metric in self._client.get_metric_history(self._run, key)}
        return [metric for metric in metrics if _identity(metric) not in there]

    def file(self, path: Path, kind: str) -> None:
        self._client.log_artifact(self._run, str(path))

    def close(self, state: str) -> None:
        if self._client is not None and state not in LIVE_STATES:
            self._client.log_batch(self._run, tags=[_tag("holdfast.state", state)])
            self._client.set_terminated(self._run, _STATES.get(state, "FAILED"))


def _tag(key: str, value: str) -> Any:
    from mlflow.entities import RunTag

    return RunTag(key, value)


def _event(row: Row) -> str:
    return f"step {row.step}: {row.words}"


def _identity(metric: Any) -> tuple[str, int, int, str]:
    """A server keeps what is not finite in its own way: of those the place alone is compared."""
    value = repr(metric.value) if abs(metric.value) < 1e300 else "not finite"
    return metric.key, int(metric.step), int(metric.timestamp), value


def _key(name: str) -> str:
    return _FORBIDDEN.sub("_", name)[:240]
