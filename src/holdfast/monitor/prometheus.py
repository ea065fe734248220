"""Runs as Prometheus reads them: text, one sample a line, units in the names.

exposition(runs)
holdfast_step{run="calm-heron",workload="eeg"} 3862
holdfast_faults_total{run="calm-heron",workload="eeg",code="F034",device="cuda:0"} 2
holdfast_last_beat_seconds{run="calm-heron",workload="eeg"} 0.8

A dashboard of Grafana for them is in grafana.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.monitor.reader import Run
from holdfast.monitor.story import amount
from holdfast.run.states import RunState

DASHBOARD = Path(__file__).parent / "grafana.json"
STATES = tuple(RunState)
FAMILIES = {
    "holdfast_run_state": ("gauge", "1 for the state the run is in"),
    "holdfast_step": ("gauge", "Steps committed"),
    "holdfast_steps_planned": ("gauge", "Steps the run will have"),
    "holdfast_epoch": ("gauge", "The epoch at hand, counted from 1"),
    "holdfast_rate_steps_per_second": ("gauge", "Steps a second"),
    "holdfast_time_left_seconds": ("gauge", "Time left, estimated"),
    "holdfast_last_beat_seconds": ("gauge", "Age of the last sign of life"),
    "holdfast_loss": ("gauge", "The loss of the last step that told it"),
    "holdfast_metric": ("gauge", "What the script logged last, by name"),
    "holdfast_best": ("gauge", "The best value so far, by name"),
    "holdfast_recoveries_total": ("counter", "How often a worker was replaced and went on"),
    "holdfast_faults_total": ("counter", "Faults, by code and device"),
    "holdfast_lost_seconds_total": ("counter", "Time that faults have cost"),
    "holdfast_checkpoint_step": ("gauge", "The step of the newest checkpoint"),
    "holdfast_device_load_ratio": ("gauge", "How busy the device is, 0 to 1"),
    "holdfast_device_memory_bytes": ("gauge", "Memory in use on the device"),
    "holdfast_device_memory_total_bytes": ("gauge", "Memory of the device"),
    "holdfast_device_temperature_celsius": ("gauge", "Temperature of the device"),
    "holdfast_device_power_watts": ("gauge", "Power the device takes"),
}
_READINGS = {
    "load_pct": ("holdfast_device_load_ratio", 0.01),
    "memory_used_bytes": ("holdfast_device_memory_bytes", 1.0),
    "memory_total_bytes": ("holdfast_device_memory_total_bytes", 1.0),
    "temperature_c": ("holdfast_device_temperature_celsius", 1.0),
    "power_w": ("holdfast_device_power_watts", 1.0),
}
Sample = tuple[str, dict[str, str], float]


def exposition(runs: Iterable[Run]) -> str:
    """All samples, each family together under its help, as the format wants it."""
    found: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for run in runs:
        labels = {"run": run.name, "workload": run.workload or ""}
        for name, more, value in samples(run):
            found[name].append(f"{name}{{{_labels({**labels, **more})}}} {_number(value)}")
    lines = []
    for name, rows in found.items():
        if rows:
            kind, about = FAMILIES[name]
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *rows]
    return "\n".join(lines) + "\n"


def samples(run: Run) -> Iterator[Sample]:
    """What is known of one run; unknown is left out, never 0."""
    for state in STATES:
        yield "holdfast_run_state", {"state": state}, float(run.state == state)
    progress = run.progress
    plain = {
        "holdfast_step": progress.step,
        "holdfast_steps_planned": progress.of,
        "holdfast_epoch": progress.epoch,
        "holdfast_rate_steps_per_second": progress.rate,
        "holdfast_time_left_seconds": progress.time_left_s,
        "holdfast_last_beat_seconds": run.beat_age_s if run.live else None,
        "holdfast_loss": amount(run.beat.get("loss")),
        "holdfast_recoveries_total": run.recoveries,
        "holdfast_lost_seconds_total": amount(run.accounts.get("seconds_lost")),
        "holdfast_checkpoint_step": run.story.checkpoint_step,
    }
    for name, value in plain.items():
        if value is not None:
            yield name, {}, float(value)
    for metric, last in run.metrics.last().items():
        yield "holdfast_metric", {"name": metric}, last
    if run.best is not None:
        yield "holdfast_best", {"name": run.best["name"]}, float(run.best["value"])
    for key, times in run.story.faults_by.items():
        code, _, device = key.partition(" ")
        yield "holdfast_faults_total", {"code": code, "device": device}, float(times)
    yield from _devices(run)


def _devices(run: Run) -> Iterator[Sample]:
    readings = run.beat.get("readings")
    rows = readings.get("devices") if isinstance(readings, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or not isinstance(row.get("device"), str):
            continue
        for key, (name, scale) in _READINGS.items():
            value = amount(row.get(key))
            if value is not None:
                yield name, {"device": row["device"]}, round(value * scale, 9)


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())


def _escaped(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return plain.encode("utf-8", "replace").decode()[:300]


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
