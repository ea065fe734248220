"""What is known of a run now, gathered for a picture: no drawing here, and nothing that is not in the folder.

    scene = look(run, trust={"cuda:0": "probation"})      # run: holdfast.monitor.reader.Run
    scene.state, scene.share, scene.curves, scene.devices, scene.lanes, scene.notes

Text of a run folder may be anybody's: what moves a cursor is taken out here, once, for every picture.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from holdfast.base.human import count, counted, duration, percent
from holdfast.monitor.bottleneck import Bottleneck, judge
from holdfast.monitor.reader import Run
from holdfast.monitor.terminal.notes import Note, clean, clock, notes, number
from holdfast.run import machine
from holdfast.run.metric_direction import smaller_is_better
from holdfast.run.states import RunKind

T = TypeVar("T")

POINTS = 400
"""Of a curve: more than a terminal is wide."""
CURVES_REST = 1.8
"""Seconds that curves stay as they are: drawing them is most of what a look costs the run beside it."""


@dataclass(frozen=True)
class Curve:
    """One metric."""

    name: str
    values: tuple[float, ...]
    first: float | None
    last: float | None
    best: float | None
    best_at: str
    """epoch 18, or step 900."""
    faults: tuple[float, ...]
    """Where faults were, 0 to 1 along the curve."""
    about: str = ""
    """What it is, where its name alone does not say that."""
    steps: tuple[int, int] | None = None
    """The first and the last one."""


@dataclass(frozen=True)
class DeviceRow:
    """One device and what it does."""

    device: str
    name: str
    load: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    trust: str = ""
    """trusted, standby, …: words for the last column."""


@dataclass(frozen=True)
class LaneRow:
    """Where a device worked."""

    device: str
    pieces: list[tuple[float, float]]
    faults: list[float]


@dataclass(frozen=True)
class Scene:
    """All of it."""

    name: str
    workload: str
    state: str
    lasted: str
    live: bool
    sign_of_life: str
    """live ● 0.8 s, or since when nothing was heard."""
    where: str
    """epoch 20/60, or step 900/1 200."""
    share: float | None
    left: str
    rate: str
    facts: list[str]
    """Device, phase, last save, faults."""
    curves: list[Curve]
    devices: list[DeviceRow]
    lanes: list[LaneRow]
    began: float
    now: float
    ends: float
    """When it will be done, or was."""
    notes: list[Note]
    """The newest first."""
    trouble: str
    bottleneck: Bottleneck | None
    plan: str = ""
    """What the plan said, if there was one."""
    problems: list[str] = field(default_factory=list)


def look(
    run: Run, trust: Mapping[str, str] | None = None, *, events: int = 200, kept: dict[str, Any] | None = None
) -> Scene:
    """The run as it is in the folder; `trust` is the word of this machine's ledger for each device.

    `kept` is for whoever looks again and again: what has not changed in the folder is taken from there.
    """
    kept = {} if kept is None else kept
    progress, live = run.progress, run.live
    now = time.time() if live and not run.elsewhere else (run.last_seen or time.time())
    began = run.story.began or run.began or now
    left = progress.time_left_s if live else None
    return Scene(
        name=clean(run.name),
        workload=clean(run.workload or "-"),
        state=run.state,
        lasted=duration(run.lasted_s),
        live=live,
        sign_of_life=_sign_of_life(run),
        where=_where(run),
        share=progress.share,
        left="" if left is None else f"{duration(left)} left",
        rate="" if not progress.rate else rate_words(progress.rate),
        facts=_facts(run),
        curves=_unless_kept(kept, "curves", _version(run), lambda: _curves(run), rest=CURVES_REST),
        devices=_devices(run, trust or {}),
        lanes=_lanes(run, now, left),
        began=began,
        now=now,
        ends=now + left if left else now,
        notes=_unless_kept(kept, "notes", (run.story.events, events), lambda: notes(run, events)),
        trouble=trouble(run),
        bottleneck=judge(run.beat, threads=_threads(run), cpus=_cpus(run), whole=not live),
        plan="" if run.planned is None else clean(run.planned.words),
        problems=[clean(problem) for problem in run.problems],
    )


def _unless_kept(kept: dict[str, Any], what: str, state: object, make: Callable[[], T], *, rest: float = 0.0) -> T:
    """What was made of this state before; after a change it has `rest` seconds before it is made anew."""
    before, made, when = kept.get(what, (None, None, -math.inf))
    now = time.monotonic()
    if before != state and now - when >= rest:
        kept[what] = (state, made, when) = (state, make(), now)
    found: T = made
    return found


def _sign_of_life(run: Run) -> str:
    age = run.beat_age_s
    if not run.live:
        ended = run.last_seen
        return f"{_date(ended)}" if ended else "over"
    if age is None:
        return "no beat yet"
    words = "last beat" if run.stale else "live ●"
    ago = " ago" if run.stale else ""
    how_old = duration(age) if age >= 0.1 else "0.1 s"
    return f"{words} {how_old}{ago}{', elsewhere' if run.elsewhere else ''}"


def _date(when: float) -> str:
    moment = datetime.fromtimestamp(when)
    today = moment.date() == datetime.fromtimestamp(time.time()).date()
    return moment.strftime("ended %H:%M" if today else "ended %Y-%m-%d %H:%M")


def _where(run: Run) -> str:
    progress = run.progress
    if progress.setup is not None and run.live and progress.phase == "setup":
        done, total, label = progress.setup
        return clean(f"{label or 'preparing'} {count(done)}/{count(total)}")
    if progress.epochs and progress.epoch:
        return f"epoch {progress.epoch}/{progress.epochs}"
    return f"step {count(progress.step)}" + (f"/{count(progress.of)}" if progress.of else "")


def _facts(run: Run) -> list[str]:
    progress, facts = run.progress, []
    if run.device:
        facts.append(clean(run.device))
    if progress.step is not None:
        facts.append(f"step {count(progress.step)}" + (f"/{count(progress.of)}" if progress.of else ""))
    if progress.phase and run.live:
        facts.append(progress.phase)
    saved = run.story.checkpoint_time
    if saved is not None:
        facts.append(f"saved {duration(max(0.0, time.time() - saved))} ago" if run.live else f"saved {clock(saved)}")
    elif run.live and run.info.get("kind") != RunKind.SCRIPT:  # what a foreign script saves is its own business
        facts.append("nothing saved yet")
    return facts


def trouble(run: Run) -> str:
    """2 faults, both recovered · 1m 56s lost (3.1 %)"""
    faults = run.faults_total
    if not faults:
        return "no faults"
    recovered = sum(fault.recovered for fault in run.faults)
    if recovered >= len(run.faults):
        how = "recovered" if faults == 1 else "both recovered" if faults == 2 else "all recovered"
    else:
        how = f"{counted(len(run.faults) - recovered, 'not', 'not')} recovered"
    lost = sum(fault.lost_s or 0.0 for fault in run.faults)
    lasted = run.lasted_s
    share = f" ({percent(lost / lasted)})" if lost and lasted and lost < lasted else ""
    return f"{counted(faults, 'fault')}, {how}" + (f" · {duration(lost)} lost{share}" if lost else "")


def _version(run: Run) -> tuple[int, ...]:
    """Another one where a curve is."""
    return run.books.table.version, run.books.losses.version, run.faults_total


def _curves(run: Run) -> list[Curve]:
    return [curve_of(run, name) for name in list(run.curves)[:12]]


def curve_of(run: Run, name: str, points: int = POINTS) -> Curve:
    """One metric, with every peak: its best value is among the points that are kept."""
    series = run.curves[name]
    at = series.picked(points)
    values = [series.values[each] for each in at]
    known = [value for value in values if math.isfinite(value)]
    best, best_at = None, ""
    if known:
        best = min(known) if smaller_is_better(name) else max(known)
        place = at[values.index(best)]
        by_epoch = bool(run.progress.epochs or run.story.epochs_done)
        best_at = f"epoch {int(series.epochs[place]) + 1}" if by_epoch else f"step {count(int(series.steps[place]))}"
    low, high = (series.steps[at[0]], series.steps[at[-1]]) if at else (0, 0)
    span = max(1, high - low)
    steps = [fault.step for fault in run.faults if fault.step is not None and low <= fault.step <= high]
    return Curve(
        name=clean(name),
        values=tuple(values),
        first=known[0] if known else None,
        last=known[-1] if known else None,
        best=best,
        best_at=best_at,
        faults=tuple((step - low) / span for step in steps),
        about=run.curves.about(name),
        steps=(int(low), int(high)) if at else None,
    )


def _devices(run: Run, trust: Mapping[str, str]) -> list[DeviceRow]:
    """What the run's own sensors said last; where they said nothing, the device it is on."""
    readings = run.beat.get("readings")
    rows = readings.get("devices") if isinstance(readings, dict) else None
    current = (run.device or "").split(" ")[0]
    known = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    shown = [_device(row, current, trust, run.live) for row in known[:16]]
    if current and current not in {row.device for row in shown}:
        shown.insert(0, DeviceRow(clean(current), "", trust=_trust(current, current, trust, run.live)))
    return shown


def _device(row: Mapping[str, Any], current: str, trust: Mapping[str, str], live: bool) -> DeviceRow:
    device = clean(row.get("device") or "-")
    load = number(row.get("load_pct"))
    return DeviceRow(
        device=device,
        name=short_name(clean(row.get("name") or "")),
        load=None if load is None or not live else load / 100,
        memory_used=number(row.get("memory_used_bytes")) if live else None,
        memory_total=number(row.get("memory_total_bytes")),
        temperature_c=number(row.get("temperature_c")) if live else None,
        power_w=number(row.get("power_w")) if live else None,
        trust=_trust(device, current, trust, live),
    )


def short_name(name: str) -> str:
    """RTX 4090 of NVIDIA GeForce RTX 4090: what people call it."""
    for word in ("NVIDIA", "GeForce", "AMD", "Radeon", "Intel(R)", "Core(TM)", "(R)", "(TM)", "CPU", "Processor"):
        name = name.replace(word, "")
    return re.sub(r"\s+@.*$|\d+-Core", "", " ".join(name.split())).strip()


def _trust(device: str, current: str, trust: Mapping[str, str], live: bool) -> str:
    word = trust.get(device, "")
    place = "" if not live else "in use" if device == current else "standby"
    return ", ".join(part for part in (word, place) if part and part != "unknown")


def _lanes(run: Run, now: float, left: float | None) -> list[LaneRow]:
    rows: dict[str, LaneRow] = {}
    began = run.story.began or run.began or now
    for lane in run.lanes:
        since, until = lane.since, lane.until
        if since is None or not lane.device:
            continue
        end = until if until is not None else now + (left or 0.0)
        row = rows.setdefault(lane.device, LaneRow(clean(lane.device), [], []))
        if end >= began:
            row.pieces.append((max(since, began), end))
    for fault in run.faults:
        if fault.time is not None and fault.time >= began:
            name = fault.device if fault.device in rows else next(iter(rows), None)
            if name is not None:
                rows[name].faults.append(fault.time)
    return list(rows.values())


def _threads(run: Run) -> int | None:
    threads = run.info.get("threads")
    return threads if isinstance(threads, int) and not isinstance(threads, bool) else None


def _cpus(run: Run) -> int | None:
    return None if run.elsewhere else machine.usable_cpus()


def rate_words(rate: float) -> str:
    if rate >= 100:
        return f"{rate:.0f} it/s"
    return f"{rate:.1f} it/s" if rate >= 0.95 else f"{duration(1 / rate)}/it"
