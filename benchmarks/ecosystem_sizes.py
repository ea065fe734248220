"""The ecosystem's two sizes, with and without gradient accumulation: learning curves side by side, several seeds.

    python benchmarks/ecosystem_sizes.py --out results                         # all arms, five seeds, a core for each
    python benchmarks/ecosystem_sizes.py --out results --arms default,small    # some of them
    python benchmarks/ecosystem_sizes.py --draw results/ecosystem-sizes-cpu.json docs/pictures/ecosystem-sizes.svg

Every run is `holdfast train ecosystem …` as anybody types it, on one core. `default` is that without a word more. The
other arms do not tune themselves, so that they differ in what their name says alone: `in 4 pieces` computes each
minibatch in four parts whose gradients are added up, and `longer` gives the small network the updates that fit into the
processor time of the large one. Catches against dice are counted every four updates, in the same fresh worlds for all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import common
from common import say
from many import Lane, Lanes, over_seeds, write

ALIKE = ["tune=false", "precision=fp32", "evaluate=4"]
ARMS: dict[str, list[str]] = {
    "full": ["preset=full", "pieces=1", *ALIKE],
    "full in 4 pieces": ["preset=full", "pieces=4", *ALIKE],
    "small, longer": ["preset=small", "pieces=1", "updates=80", *ALIKE],
    "small": ["preset=small", "pieces=1", *ALIKE],
    "small in 4 pieces": ["preset=small", "pieces=4", *ALIKE],
    "default": [],
}
"""The longest runs first."""
TINY = ["preset=tiny", "updates=8", "steps=8", "arena=2"]
CURVES = ("catch_rate", "attempts", "survival", "predators_return")


def one(arm: str, seed: int, lane: Lane, scratch: Path, more: list[str]) -> dict[str, Any]:
    done = lane.train(["ecosystem", *ARMS[arm], *more, f"run.seed={seed}"], scratch / f"{arm}-{seed}".replace(" ", "-"))
    folder = Path(done["folder"])
    scores = json.loads((folder / "scores.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [row for row in rows if "catch_rate" in row]
    tuned = json.loads((folder / "tuning.json").read_text()) if (folder / "tuning.json").is_file() else {}
    row = {
        "arm": arm,
        "seed": seed,
        "cpu_s": done["cpu_s"],
        "wall_s": done["wall_s"],
        "peak_mb": done["peak_mb"],
        "times_dice": _rounded(scores["times_dice"]),
        "catches": _rounded(scores["catches_predators"]),
        "catches_dice": _rounded(scores["catches_dice"]),
        "times_dice_frozen_prey": _rounded(scores["times_dice_frozen_prey"]),
        "curves": {key: _rounded([each[key] for each in updates]) for key in CURVES},
        "against_dice": {
            number + 1: round(each["valid_catches"], 3)
            for number, each in enumerate(updates)
            if "valid_catches" in each
        },
        "chosen": {device: each.get("choice", each) for device, each in tuned.items() if isinstance(each, dict)},
    }
    say(f"  {arm}, seed {seed}: {row['times_dice']} times dice, {row['cpu_s']} s of processor time")
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each arm what its seeds reached, with the interval over seeds."""
    found: dict[str, Any] = {}
    for arm in ARMS:
        mine = [row for row in rows if row.get("arm") == arm]
        if not mine:
            continue
        rates = zip(*(row["curves"]["catch_rate"] for row in mine), strict=True)
        found[arm] = {
            "words": ARMS[arm],
            "seeds": len(mine),
            "times_dice": over_seeds([row["times_dice"][0] for row in mine]),
            "each": sorted(row["times_dice"][0] for row in mine),
            "worst_over_worlds": min((row["times_dice"] for row in mine), key=lambda each: each[0]),
            "cpu_s": [min(row["cpu_s"] for row in mine), max(row["cpu_s"] for row in mine)],
            "cpu_s_median": statistics.median(row["cpu_s"] for row in mine),
            "peak_mb": statistics.median(row["peak_mb"] for row in mine),
            "against_dice": _by_update([row["against_dice"] for row in mine]),
            "catch_rate": [over_seeds(column) for column in rates],
        }
    return found


def _by_update(curves: list[dict[int, float]]) -> dict[int, list[float]]:
    return {update: over_seeds([curve[update] for curve in curves]) for update in curves[0]}


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 3) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=common.RESULTS)
    parser.add_argument("--name", default="ecosystem-sizes-cpu")
    parser.add_argument("--arms", default=",".join(each for each in ARMS if "," not in each) + ",longer")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=0, help="runs at a time; 0: one for each core")
    parser.add_argument("--quick", action="store_true", help="a tiny network and 8 updates: does it work?")
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("JSON", "SVG"))
    given = parser.parse_args()
    if given.draw:
        from curves import drawn

        given.draw[1].write_text(drawn(json.loads(given.draw[0].read_text())["measured"]["arms"]))
        return
    asked = {"longer": "small, longer"}
    wanted = {asked.get(each.strip(), each.strip()) for each in given.arms.split(",")}
    if wanted - set(ARMS):
        parser.error(f"no arm {', '.join(sorted(wanted - set(ARMS)))}; there are {'; '.join(ARMS)}")
    more = TINY if given.quick else []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-sizes-", ignore_cleanup_errors=True) as place:
        scratch = Path(place)
        common.adopt(scratch)
        lanes = Lanes(most=given.lanes)
        say(f"{len(lanes.lanes)} runs at a time")
        jobs = [
            lambda lane, arm=arm, seed=seed: one(arm, seed, lane, scratch, more)
            for arm in ARMS if arm in wanted for seed in range(given.seeds)
        ]  # fmt: skip
        rows = lanes.all(jobs)
    good = [row for row in rows if "failed" not in row]
    measured = {"arms": summary(good), "runs": good, "failed": [row["failed"] for row in rows if "failed" in row]}
    write(given.out / f"{given.name}.json", "ecosystem-sizes", measured, seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
