"""What a fault costs the training: the CPU's opinion of the step, and faults every few seconds.

    python benchmarks/bench.py --parts inquiry      # from a fault until its step is done, with and without an opinion
    python benchmarks/bench.py --parts storm        # a fault every 15 s for ten minutes

`inquiry` trains on a pretended device that really crashes, hangs or reports an error once. HOLDFAST_BENCH_BEFORE may
name the `src` of another version of holdfast: it takes turns with this one, so both meet the same load of the machine.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from common import JOBS, Bound, at_most, events, exactly, say, spread, train

from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment
from holdfast.injection.chaos import DEFAULT_PHASES, FaultPlan, InjectedFault
from holdfast.injection.chaos import VARIABLE as CHAOS
from holdfast.run.events import Event

BEFORE = "HOLDFAST_BENCH_BEFORE"
KINDS = ("crash", "hang", "error")
ROUNDS = int(os.environ.get("HOLDFAST_BENCH_ROUNDS", "3"))
FAILS = 12
"""The step at which the device fails."""
EVERY, MINUTES = 15.0, float(os.environ.get("HOLDFAST_BENCH_MINUTES", "10"))
STORM = ("sigkill", "segfault", "hang", "oom", "abort")
"""A kill from outside, a read of address zero, a hang that keeps the interpreter's lock, memory, an abort."""


# One fault ------------------------------------------------------------------------------------------------------------


def inquiry(scratch: Path, quick: bool) -> dict[str, Any]:
    """A real crash, hang or error: when is the failed step done, and when is it known whose fault it was?"""
    rounds, size = (1, ["steps=20", "width=128"]) if quick else (ROUNDS, ["steps=24"])
    words = [*size, "--device", "pretend:0", "run.threads=1", "watchdog.floor=2s", "probation.enabled=false"]
    variants: dict[str, tuple[list[str], dict[str, str]]] = {
        "beside": ([], {}),
        "not asked": (["blame.replay=false"], {}),
    }
    if os.environ.get(BEFORE):
        variants["before"] = ([], {"PYTHONPATH": os.environ[BEFORE]})
    quiet = train(words, scratch / "quiet", job=JOBS / "wide.py")["receipt"]["weights_sha256"]
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        for kind in KINDS:
            for name, (more, variables) in variables_in_turn(variants, number):
                folder = scratch / f"{number}-{kind}-{name.replace(' ', '-')}"
                path = ailments.write(folder / "pretend.json", [Ailment(kind, step=FAILS, times=1)])
                variables = {**variables, ailments.VARIABLE: str(path)}
                summary = train([*words, *more], folder / "runs", job=JOBS / "wide.py", **variables)
                rows.append({"kind": kind, "variant": name, **_times(summary, quiet)})
                say(f"  {rows[-1]}")
    found = {
        kind: {name: _both([r for r in rows if (r["kind"], r["variant"]) == (kind, name)]) for name in variants}
        for kind in KINDS
    }
    return {"rounds": rounds, "by_kind": found, "same_bits": all(row["same_bits"] for row in rows), "rows": rows}


def variables_in_turn(variants: dict[str, Any], number: int) -> list[tuple[str, Any]]:
    """Each round begins with another variant."""
    listed = list(variants.items())
    return listed[number % len(listed) :] + listed[: number % len(listed)]


def _times(summary: dict[str, Any], quiet: str) -> dict[str, Any]:
    found = events(Path(summary["folder"]))
    fault = next(event for event in found if event.kind == "fault")
    began = fault.seconds() or 0.0
    said = next((event for event in found if event.kind == "verdict"), None)
    ended = next(event for event in found if event.kind == "end")
    rows = [json.loads(line) for line in (Path(summary["folder"]) / "metrics.jsonl").read_text().splitlines()]
    times = [Event("log", row["time"]).seconds() or 0.0 for row in rows if row["step"] >= FAILS]
    return {
        "step_done_s": round(min(times) - began, 3),
        "next_commit_s": next(event.data["seconds"] for event in found if event.kind == "recovered"),
        "verdict_s": None if said is None else round((said.seconds() or 0.0) - began, 3),
        "to_end_s": round((ended.seconds() or 0.0) - began, 3),
        "verdict": None if said is None else said.data["sentence"],
        "same_bits": summary["receipt"]["weights_sha256"] == quiet,
    }


def _both(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: spread([row[name] for row in rows]) for name in ("step_done_s", "next_commit_s", "verdict_s", "to_end_s")
    }


def inquiry_bounds(measured: dict[str, Any]) -> list[Bound]:
    """The failed step is done as soon as if nobody asked the CPU; twice that leaves room for a busy machine."""
    found = measured["by_kind"]
    ratios = [
        found[kind]["beside"]["step_done_s"]["p50"] / max(0.05, found[kind]["not asked"]["step_done_s"]["p50"])
        for kind in KINDS
    ]
    return [
        exactly("runs with other bits", int(not measured["same_bits"]), 0),
        at_most(
            "time to the next commit, against nobody asking", round(statistics.median(ratios), 2), 2.0, quick=False
        ),
    ]


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 2)


# Many -----------------------------------------------------------------------------------------------------------------


def storm(scratch: Path, quick: bool) -> dict[str, Any]:
    """A fault every 15 s of mixed real kinds: the share of the time in which new steps are trained."""
    minutes, every = (0.5, 6.0) if quick else (MINUTES, EVERY)
    words = ["width=512", "run.threads=2"]
    began = time.monotonic()
    trial = train([*words, "steps=400"], scratch / "trial", job=JOBS / "wide.py")
    each = _seconds_a_step(trial)
    steps = int(60 * minutes / each)
    say(f"  {1e3 * each:.1f} ms a step: {steps} steps, a fault every {every / each:.0f}")
    apart = max(2, round(every / each))
    places = range(apart, steps - 1, apart)
    faults = [
        InjectedFault(kind, step, DEFAULT_PHASES.get(kind, "backward")) for kind, step in zip(cycle(STORM), places)
    ]
    path = scratch / "storm.json"
    FaultPlan(faults).write(path)
    stormy = train([*words, f"steps={steps}"], scratch / "stormy", job=JOBS / "wide.py", **{CHAOS: str(path)})
    quiet = train([*words, f"steps={steps}"], scratch / "calm", job=JOBS / "wide.py")
    receipt, found = stormy["receipt"], events(Path(stormy["folder"]))
    trained = _between(found)
    lost = _lost(found)
    hangs = [row for row in lost if row["kind"] == "hang"]
    return {
        "minutes": round(trained / 60, 2),
        "faults": len(faults),
        "every_s": round(trained / max(1, len(faults)), 1),
        "step_ms": round(1e3 * each, 2),
        "steps": steps,
        "share_new_steps": round(1.0 - receipt["seconds_lost"] / trained, 4),
        "share_without_waiting_for_hangs": round(
            1.0 - (receipt["seconds_lost"] - sum(row["silent_s"] for row in hangs)) / trained, 4
        ),
        "seconds_lost": receipt["seconds_lost"],
        "lost_by_kind": {
            kind: spread([row["lost_s"] for row in lost if row["kind"] == kind])
            for kind in sorted({row["kind"] for row in lost})
        },
        "receipt": receipt,
        "quiet_seconds": round(_between(events(Path(quiet["folder"]))), 1),
        "same_bits": receipt["weights_sha256"] == quiet["receipt"]["weights_sha256"],
        "took_s": round(time.monotonic() - began, 1),
    }


def _seconds_a_step(summary: dict[str, Any]) -> float:
    return _between(events(Path(summary["folder"]))) / int(summary["receipt"]["steps"])


def _between(found: list[Any]) -> float:
    """From the first worker's start to the end of the training."""
    first = next(event.seconds() for event in found if event.kind == "worker")
    last = next(event.seconds() for event in reversed(found) if event.kind == "end")
    return float(last - first)


def _lost(found: list[Any]) -> list[dict[str, Any]]:
    """One row a fault that cost a worker: its kind, what it cost, and how long it was only silent."""
    rows: list[dict[str, Any]] = []
    fault: Any = None
    for event in found:
        if event.kind == "fault":
            fault = event
        elif event.kind == "recovered" and fault is not None and "lost_s" in event.data:
            lost, recovery = float(event.data["lost_s"]), float(event.data["seconds"])
            rows.append({"kind": fault.data["kind"], "lost_s": lost, "silent_s": max(0.0, lost - recovery)})
            fault = None
    return rows


def storm_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        exactly("runs with other bits", int(not measured["same_bits"]), 0),
        exactly("steps lost", measured["receipt"]["steps_lost"], 0),
        at_most("share of the time that faults cost", round(1.0 - measured["share_new_steps"], 4), 0.03, quick=False),
    ]
