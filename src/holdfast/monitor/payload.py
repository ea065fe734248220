"""What a page or a report shows of a run, as JSON: one description for the live page, the report and the exports.

    head(run)                  what changes while it runs: sentence, progress, lanes, faults, the last of each metric
    body(run)                  what mostly does not: settings, environment, receipt, files
    series(run, keys, 800)     points of charts: `m:valid_loss`, `r:cuda:0 power_w`, `rate`

Numbers that are not finite are null. Text is text: whoever shows it must not take it for markup.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from holdfast.monitor import scenes
from holdfast.monitor.columns import Series
from holdfast.monitor.places import files_of
from holdfast.monitor.reader import Run
from holdfast.monitor.sentences import sentence, verdict
from holdfast.monitor.story import Lane
from holdfast.run.metric_direction import smaller_is_better
from holdfast.run.states import RunState

MOST_FAULTS, MOST_LANES, MOST_EVENTS, MOST_CHARTS = 200, 400, 200, 60
MOST_FINDINGS = 100
FINDINGS = frozenset(
    {"verdict", "trust", "moved", "quarantined", "missing", "undone", "limit", "not_saved", "saved_again", "rescued"}
    | {"abandoned", "exact", "note", "silent", "stopping", "end"}
)
"""Events that tell what was found out and decided."""
_SPLIT = re.compile(r"^(train|training|trn|valid|validation|val|test|eval|dev)[_/.\-](.+)$")
_UNITS = {
    "load_pct": ("load", "%", 1.0),
    "memory_used_bytes": ("memory", "GB", 1e-9),
    "temperature_c": ("temperature", "°C", 1.0),
    "power_w": ("power", "W", 1.0),
}
_DEEPEST = 12


def glance(run: Run, ident: str) -> dict[str, Any]:
    """One line of the list of runs, from the small files alone."""
    progress = run.progress
    faults = run.accounts.get("faults")
    known = faults if isinstance(faults, dict) else {}  # an error of the script ends the run and is told as its state
    counts = [each for kind, each in known.items() if isinstance(each, int) and kind != "user_error"]
    survived = (run.receipt or {}).get("survived") is True
    row: dict[str, Any] = finite(
        {
            "id": ident,
            "run": run.name,
            "workload": run.workload,
            "state": run.state,
            "live": run.live,
            "device": run.device,
            "step": progress.step,
            "of": progress.of,
            "share": progress.share,
            "rate": progress.rate,
            "time_left_s": progress.time_left_s,
            "recoveries": run.recoveries,
            "all_recovered": run.state in (RunState.FINISHED, RunState.RUNNING, RunState.MOVED) or survived,
            "faults": sum(counts) if isinstance(faults, dict) else None,
            "best": run.best,
            "created": run.info.get("created"),
            "beat_age_s": run.beat_age_s if run.live else None,
            "stale": run.stale,
        }
    )
    return row


def head(run: Run, ident: str) -> dict[str, Any]:
    """Everything about a run that moves."""
    bottleneck, plan = _bottleneck(run), run.planned
    return {
        **glance(run, ident),
        **finite(
            {
                "sentence": sentence(run),
                "verdict": verdict(run),
                "now": time.time(),
                "plan": None if plan is None else {**asdict(plan), "time": plan.time, "words": plan.words},
                "began": run.began,
                "last_seen": run.last_seen,
                "lasted_s": run.lasted_s,
                "progress": asdict(run.progress),
                "lanes": [asdict(lane) for lane in _fewer(run.lanes)],
                "faults": [asdict(fault) for fault in run.faults[-MOST_FAULTS:]],
                "faults_total": run.faults_total,
                "checkpoint": {"step": run.story.checkpoint_step, "time": run.story.checkpoint_time},
                "metrics": run.metrics.last(),
                "readings": run.readings.last(),
                "charts": charts(run),
                "anchors": anchors(run),
                "points": len(run.books.table) + len(run.books.losses) + len(run.books.readings),
                "events_total": run.books.event_count,
                "bottleneck": bottleneck,
                "world": scenes.mark(run.world),
                "problems": run.problems,
                "behind": run.behind if run.behind > 1 << 20 else 0,
                "read": run.books.journal.offset + run.books.metrics.offset,
            }
        ),
    }


def body(run: Run) -> dict[str, Any]:
    """Everything else."""
    keys = ("script", "arguments", "argv", "seed", "threads", "created", "ended", "holdfast", "python", "cwd")
    found = run.events(last=MOST_FINDINGS, kinds=FINDINGS)
    rest: dict[str, Any] = finite(
        {
            "identity": {key: run.info.get(key) for key in keys},
            "settings": [asdict(setting) for setting in run.settings],
            "environment": run.environment,
            "receipt": run.receipt,
            "checkpoints": [asdict(each) for each in run.checkpoints],
            "files": files_of(run.path),
            "pictures": scenes.pictures(run.path),
            "events": events(run),
            "findings": [finite({**each.data, "time": each.seconds(), "event": each.kind}) for each in found],
        }
    )
    return rest


def summary(run: Run) -> str:
    """The paragraph on top of a report."""
    return f"{sentence(run)} {verdict(run)}".strip()


def events(run: Run, last: int = MOST_EVENTS, before: int | None = None) -> list[dict[str, Any]]:
    """The newest events, in order."""
    return [
        finite({**each.data, "time": each.seconds(), "event": each.kind}) for each in run.events(last, before=before)
    ]


def _bottleneck(run: Run) -> dict[str, Any] | None:
    from holdfast.monitor.bottleneck import judge

    threads = run.info.get("threads")
    found = judge(run.beat, threads=threads if isinstance(threads, int) else None, whole=not run.live)
    return None if found is None else found.to_json()


def _fewer(lanes: list[Lane]) -> list[Lane]:
    """A run with thousands of workers: neighbours on one device are drawn as one."""
    while len(lanes) > MOST_LANES:
        merged: list[Lane] = []
        for first, second in zip(lanes[::2], [*lanes[1::2], None], strict=False):
            if second is None or second.device != first.device:
                merged += [first] if second is None else [first, second]
                continue
            merged.append(
                Lane(
                    first.device,
                    first.since,
                    second.until,
                    first.from_step,
                    second.to_step,
                    None,
                    None,
                    second.ended_by,
                )
            )
        if len(merged) >= len(lanes):
            return lanes[-MOST_LANES:]
        lanes = merged
    return lanes


# Charts ---------------------------------------------------------------------------------------------------


def charts(run: Run) -> list[dict[str, Any]]:
    """What to draw: metrics that belong together share a chart, losses first, then scores, speed and sensors."""
    groups: dict[str, list[str]] = {}
    wanted, first = scenes.charts_of(run.world), scenes.facts_of(run.world)
    together = {name: title for title, names in wanted.items() for name in names}
    curves = run.curves
    for name in curves:
        match = _SPLIT.match(name)
        groups.setdefault(together.get(name) or (match[2] if match else name), []).append(name)
    ranks = {name: at for at, name in enumerate([*list(wanted)[:1], *first])}
    ordered = sorted(groups, key=lambda base: (ranks.get(base, len(ranks)), not smaller_is_better(base)))
    found: list[dict[str, Any]] = []
    for base in ordered[:MOST_CHARTS]:
        lines = [{"key": f"m:{name}", "label": name, "scale": 1.0} for name in groups[base]]
        title = base if len(lines) > 1 else groups[base][0]
        found.append({"title": title, "unit": curves.about(groups[base][0]), "kind": "metric", "lines": lines})
    if run.curves:
        rate = {"key": "rate", "label": "steps/s"}
        found.append({"title": "rate", "unit": "steps/s", "kind": "system", "lines": [rate]})
    for quantity, (title, unit, scale) in _UNITS.items():
        names = [name for name in run.readings if name.endswith(f" {quantity}")]
        lines = [{"key": f"r:{name}", "label": name.rpartition(" ")[0], "scale": scale} for name in names[:16]]
        if lines:
            limits = {"low": None if quantity == "temperature_c" else 0, "high": 100 if unit == "%" else None}
            found.append({"title": title, "unit": unit, "kind": "system", "lines": lines, **limits})
    return found


def series(
    run: Run, keys: Iterable[str], points: int, low: float | None = None, high: float | None = None, by: str = "step"
) -> dict[str, Any]:
    """Points by key: `t` seconds, `x` steps (null where a reading has none), `y` values; every peak is among them."""
    found: dict[str, Any] = {}
    for key in keys:
        if key == "rate":
            found[key] = rate(run)
            continue
        table = run.curves if key.startswith("m:") else run.readings if key.startswith("r:") else None
        if table is None or key[2:] not in table:
            continue
        each = table[key[2:]]
        readings = key.startswith("r:")
        whole = readings and by == "step"  # a reading has a time, and no step of its own
        at = each.picked(points, None if whole else low, None if whole else high, by=by)
        found[key] = {
            "t": [_time(each.times[i]) for i in at],
            "x": None if readings else [int(each.steps[i]) for i in at],
            "y": [_finite(each.values[i]) for i in at],
            "n": len(each),
        }
    return found


def rate(run: Run, points: int = 240) -> dict[str, Any]:
    """Steps a second between two points of a curve, pauses and restarts included."""
    longest = _longest(run)
    t: list[float | None] = []
    x: list[int] = []
    y: list[float | None] = []
    if longest is None:
        return {"t": t, "x": x, "y": y, "n": 0}
    count = len(longest)
    at = sorted({round(i * (count - 1) / max(1, min(points, count) - 1)) for i in range(min(points, count))})
    for before, now in pairwise(at):
        span = longest.times[now] - longest.times[before]
        steps = longest.steps[now] - longest.steps[before]
        t.append(_time(longest.times[now]))
        x.append(int(longest.steps[now]))
        y.append(_finite(steps / span) if span > 0 else None)
    return {"t": t, "x": x, "y": y, "n": len(y)}


def anchors(run: Run, points: int = 200) -> list[list[float]]:
    """Times and steps that belong together, so that a page can go from one to the other."""
    pairs: list[tuple[float, int]] = []
    for lane in _fewer(run.lanes):
        pairs += [(lane.since, lane.from_step)] if lane.since and lane.from_step is not None else []
        pairs += [(lane.until, lane.to_step)] if lane.until and lane.to_step is not None else []
    longest = _longest(run)
    if longest is not None:
        count = len(longest)
        at = {round(i * (count - 1) / max(1, min(points, count) - 1)) for i in range(min(points, count))}
        pairs += [(longest.times[i], int(longest.steps[i])) for i in at if math.isfinite(longest.times[i])]
    rows: list[list[float]] = []
    for when, step in sorted(pairs):
        if not rows or step >= rows[-1][1]:
            rows.append([round(when, 3), step])
    return rows


def _longest(run: Run) -> Series | None:
    """The curve with the most points."""
    curves = run.curves
    shapes: Sequence[Any] = [shape for shape in curves.shapes if len(shape)]
    return curves[max(shapes, key=len).names[0]] if shapes else None


# Numbers that JSON has no word for ------------------------------------------------------------------------


def finite(value: Any, deep: int = 0) -> Any:
    """The same without NaN, infinities, keys that are no text, and depths that nobody needs."""
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, dict):
        return {str(key): finite(each, deep + 1) for key, each in value.items()} if deep < _DEEPEST else None
    if isinstance(value, (list, tuple)):
        return [finite(each, deep + 1) for each in value] if deep < _DEEPEST else None
    if isinstance(value, (str, int)) or value is None:
        return value
    return str(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _time(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
