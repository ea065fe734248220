"""Challenge 1 by an ensemble against the default, on the simulated set: the scores and the processor time of both.

    python benchmarks/eeg_ensemble.py --out results --seeds 3

Both commands are those of docs/eeg.md, with `tune=false` so that the time of the tuner, which depends on how busy the
machine is, is in neither. A run is the whole command, from its start to its scores; the set is made before. What it
took is the processor time of all its processes. One more run of each way (seed 0) has a net of braindecode beside it,
trained on the same subjects for as long. The file is written after every run.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import common
from common import say
from many import Lane, Lanes, over_seeds, write

WAYS = {"default": [], "ensemble": ["model=unet", "members=3", "cross=true", "lr=0.016"]}
RIVAL = "ShallowFBCSPNet"
KEYS = ("nrmse", "nrmse_low", "nrmse_high", "r", "auroc", "subjects", "windows", "baselines")


def one(lane: Lane, runs: Path, way: str, seed: int, more: list[str]) -> dict[str, Any]:
    """A run to its end: its scores and what it took."""
    done = lane.train(["eeg-challenge1", *WAYS[way], "tune=false", f"run.seed={seed}", *more], runs)
    kept = json.loads((Path(done["folder"]) / "scores.json").read_text())
    spent = {key: done[key] for key in ("cpu_s", "wall_s", "peak_mb")}
    row = {"way": way, "seed": seed, **{key: kept.get(key) for key in KEYS}, **spent}
    say(f"  {row}")
    return row


def together(rows: list[dict[str, Any]], beside: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and the differences and ratios inside of a seed."""
    by = {(row["way"], row["seed"]): row for row in rows}
    seeds = sorted({seed for _, seed in by if all((way, seed) in by for way in WAYS)})
    if not seeds:
        return {"runs": rows, "rival": beside}
    apart = [by["ensemble", seed]["nrmse"] - by["default", seed]["nrmse"] for seed in seeds]
    times = [by["ensemble", seed]["cpu_s"] / by["default", seed]["cpu_s"] for seed in seeds]
    return {
        "seeds": seeds,
        "nrmse": {way: over_seeds([by[way, seed]["nrmse"] for seed in seeds]) for way in WAYS},
        "difference": over_seeds(apart),
        "cpu_ratio": over_seeds(times),
        "worst_cpu_ratio": round(max(times), 2),
        "runs": rows,
        "rival": beside,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=common.RESULTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-ensemble-", ignore_cleanup_errors=True) as place:
        scratch = Path(place)
        common.adopt(scratch)
        os.environ["HOLDFAST_EEG_DEMO"] = str(scratch / "demo")
        from holdfast.workloads.eeg.demo import demo_data

        demo_data(scratch / "demo", kinds=["challenge1"])
        short = ["epochs=1"] if given.quick else []
        (lane,) = Lanes(most=1, patience=3600.0).lanes
        plan = [(way, seed, "") for seed in range(given.seeds) for way in WAYS]
        plan[2:2] = [(way, 0, RIVAL) for way in ("ensemble", "default")]
        for way, seed, rival in plan:
            more = [*short, f"against={rival}"] if rival else short
            (beside if rival else rows).append(one(lane, scratch / "runs", way, seed, more))
            write(given.out / "eeg-ensemble-cpu.json", "eeg-ensemble", together(rows, beside),
                  seconds=time.monotonic() - began)  # fmt: skip
    say(json.dumps({key: value for key, value in together(rows, beside).items() if key not in ("runs", "rival")}))


if __name__ == "__main__":
    main()
