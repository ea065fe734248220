"""The part `plan` of bench.py: what `holdfast plan` said, and what the run then took, for the three workloads.

Each workload is planned in a state folder of its own, so that nothing is known from earlier runs, and then trained as
the plan says. After that it is planned and trained again with what is known by then. A bound that is missed is said.

    python benchmarks/bench.py --parts plan                        # about 25 minutes on two quiet cores
    HOLDFAST_BENCH_PLAN=detection python benchmarks/bench.py --parts plan
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from common import STATE, Bound, at_most, command, say

JOBS: dict[str, list[str]] = {
    "detection": ["epochs=12"],
    "ecosystem": ["updates=15"],
    "eeg-challenge1": [],
}
"""The small default runs; detection and ecosystem with half of their epochs, to keep the part within half an hour."""
QUICK: dict[str, list[str]] = {"eeg-challenge1": ["epochs=2"]}
TIMES = 3
"""Plans and runs of each: the first without any history."""
WITHIN = 0.20
INSIDE = 0.9


def measure(scratch: Path, quick: bool) -> dict[str, Any]:
    """Predicted against real time, and whether the interval held it."""
    asked = os.environ.get("HOLDFAST_BENCH_PLAN")
    jobs = QUICK if quick else {name: words for name, words in JOBS.items() if not asked or name in asked.split(",")}
    rows: list[dict[str, Any]] = []
    for name, words in jobs.items():
        state = scratch / f"state-{name}"
        _prepared(name, words, scratch, state)
        for number in range(1 if quick else TIMES):
            rows.append({"job": name, "history": number, **_once(name, words, scratch / f"runs-{name}", state)})
            say(f"  {json.dumps(rows[-1])}")
    return {
        "rows": rows,
        "off": {name: max(abs(row["off"]) for row in rows if row["job"] == name) for name in jobs},
        "off_without_history": {row["job"]: row["off"] for row in rows if row["history"] == 0},
        "inside": sum(row["inside"] for row in rows),
        "runs": len(rows),
    }


def _prepared(name: str, words: list[str], scratch: Path, state: Path) -> None:
    """Data that a workload makes once are made before anything is timed, as a second run of a user would find them."""
    _plan(name, words, scratch, state)
    for kept in ("plans.jsonl",):
        (state / kept).unlink(missing_ok=True)


def _plan(name: str, words: list[str], scratch: Path, state: Path) -> dict[str, Any]:
    env = {**os.environ, STATE: str(state)}
    done = subprocess.run(
        command("plan", name, *words, "--json", "-q"), capture_output=True, text=True, env=env, cwd=scratch, check=False
    )
    if done.returncode:
        raise RuntimeError(f"plan {name} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _once(name: str, words: list[str], runs: Path, state: Path) -> dict[str, Any]:
    said = _plan(name, words, state, state)
    chosen = next(row for row in said["options"] if row["chosen"])
    runs.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, STATE: str(state)}
    train = command("train", name, *words, f"run.folder={runs}", "--json", "-q")
    done = subprocess.run(train, capture_output=True, text=True, env=env, cwd=state, check=False)
    summary = json.loads(done.stdout)
    if summary.get("state") != "FINISHED":
        raise RuntimeError(f"{name} ended as {summary.get('state')}: {summary.get('error')}")
    past = json.loads((state / "plans.jsonl").read_text().splitlines()[-1])
    took, time_s = past["took_s"], chosen["time_s"]
    return {
        "where": chosen["where"],
        "planned_in_s": said["measured_s"],
        "said_s": round(time_s, 1),
        "low_s": round(chosen["time_low_s"], 1),
        "high_s": round(chosen["time_high_s"], 1),
        "took_s": round(took, 1),
        "off": round(time_s / took - 1.0, 3),
        "inside": chosen["time_low_s"] <= took <= chosen["time_high_s"],
        "parts_s": {key: round(value, 2) for key, value in chosen["time_parts_s"].items()},
        "receipt": (summary.get("receipt") or {}).get("plan"),
    }


def bounds(found: dict[str, Any]) -> list[Bound]:
    each = [
        at_most(f"{name}: predicted time off by at most, of {sum(row['job'] == name for row in found['rows'])} runs",
                off, WITHIN, quick=False)
        for name, off in found["off"].items()
    ]  # fmt: skip
    share = round(found["inside"] / found["runs"], 3) if found["runs"] else 0.0
    inside = Bound("part of the runs inside their interval", share, f"{INSIDE} or more", share >= INSIDE, quick=False)
    return [*each, inside]
