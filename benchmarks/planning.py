"""The part `plan` of bench.py: what `holdfast plan` said, and what the run then took, for the three workloads.

Each workload is planned in a state folder of its own, so that nothing is known from earlier runs, and then trained as
the plan says. After that it is planned and trained again with what is known by then. A bound that is missed is said.

    python benchmarks/bench.py --parts plan                        # about 25 minutes on two quiet cores
    HOLDFAST_BENCH_PLAN=detection python benchmarks/bench.py --parts plan
    python benchmarks/planning.py --out benchmarks/results/plan-h200.json     # on a machine with an accelerator
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import STATE, Bound, adopt, at_most, command, gpu, machine, say, told, versions, write

JOBS: dict[str, list[str]] = {
    "eeg-challenge1": [],
    "ecosystem": ["updates=15"],
    "detection": ["epochs=12"],
}
"""The small default runs; detection and ecosystem with half of their epochs, to keep the part within half an hour."""
QUICK: dict[str, list[str]] = {"eeg-challenge1": ["epochs=2"]}
TIMES = 3
"""Plans and runs of each: the first without any history."""
WITHIN = 0.20
INSIDE = 0.9


def measure(
    scratch: Path, quick: bool, times: int = TIMES, keep: Callable[[Any], None] | None = None
) -> dict[str, Any]:
    """Predicted against real time, and whether the interval held it."""
    asked = os.environ.get("HOLDFAST_BENCH_PLAN")
    jobs = QUICK if quick else {name: words for name, words in JOBS.items() if not asked or name in asked.split(",")}
    rows: list[dict[str, Any]] = []
    verdicts = scratch / "verdicts"
    if gpu():  # one is planned with only if it has a verdict
        env = {**os.environ, STATE: str(verdicts)}
        subprocess.run(command("doctor", "-q"), env=env, cwd=scratch, capture_output=True, check=False)
    for name, words in jobs.items():
        state = scratch / f"state-{name}"
        if verdicts.exists():
            shutil.copytree(verdicts, state)
        # Data that a workload makes once are made before anything is timed, as a second run of a user would find them.
        ask = command("plan", name, *words, "--measure", "3s", "--json", "-q")  # too short to know anything
        subprocess.run(ask, env={**os.environ, STATE: str(state)}, cwd=scratch, capture_output=True, check=False)
        for number in range(1 if quick else times):
            rows.append({"job": name, "history": number, **_once(name, words, scratch / f"runs-{name}", state)})
            say(f"  {json.dumps(rows[-1])}")
            if keep is not None:
                keep(_together(rows))
    return _together(rows)


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "rows": rows,
        "off": {row["job"]: max(abs(each["off"]) for each in rows if each["job"] == row["job"]) for row in rows},
        "off_without_history": {row["job"]: row["off"] for row in rows if row["history"] == 0},
        "inside": sum(row["inside"] for row in rows),
        "runs": len(rows),
    }


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


def main() -> int:
    """The same on a machine with an accelerator, where bench.py is not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--quick", action="store_true", help="one short run: does it work?")
    parser.add_argument("--times", type=int, default=TIMES, help=f"plans and runs of each (default {TIMES})")
    args = parser.parse_args()
    began = time.monotonic()

    def keep(measured: dict[str, Any]) -> None:
        """After each run: a lent machine may be taken back."""
        record = {"part": "plan", "date": time.strftime("%Y-%m-%d"), "command": " ".join(["python", *sys.argv]),
                  "machine": {**machine(), "gpu": gpu()}, "versions": versions(),
                  "seconds": round(time.monotonic() - began, 1), "measured": measured}  # fmt: skip
        write(args.out, record, bounds(measured))

    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True) as scratch:
        adopt(Path(scratch))
        measured = measure(Path(scratch), args.quick, args.times, keep)
    return 1 if told(bounds(measured), quick=args.quick) else 0


if __name__ == "__main__":
    raise SystemExit(main())
