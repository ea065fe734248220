"""The ecosystem on a machine with a large card: the full preset there and on its CPU, and does the small one learn?

    python benchmarks/ecosystem_h200.py --out ecosystem-h200.json            # about 80 s; needs torch and numpy alone

One supervised run of the full preset on the card, with its load sampled, then the same on the CPU for a few updates:
seconds per update beside each other. Meanwhile the small preset learns on two cores for each of three seeds, and what
its predators catch is compared with dice. scipy is used if it is there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LARGE = ["preset=full", "worlds=32", "prey=64", "predators=32", "size=32", "steps=32", "samples=8192", "minibatch=4096",
         "arena=2", "evaluate=0", "tune=false"]  # fmt: skip
LEARN = """
import json, sys, time, torch
from holdfast.workloads.ecosystem import evaluate, ppo
from holdfast.workloads.ecosystem.learner import Learner
from holdfast.workloads.ecosystem.rules import PREDATOR, PREY, Rules
seed, seconds = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(2); torch.manual_seed(seed)
rules, cpu = Rules(), torch.device("cpu")
learner = Learner(rules, "small", ppo.Recipe(), seed=seed)
began, curve = time.monotonic(), []
while time.monotonic() - began < seconds:
    numbers = learner.turn(cpu)
    curve.append([round(numbers[key], 3) for key in ("catch_rate", "attempts", "predators_entropy")])
took = time.monotonic() - began
with torch.no_grad():
    dice = evaluate.duel(rules, {PREY: None, PREDATOR: None}, worlds=8, steps=60, seed=3000)
    mine = evaluate.duel(rules, {PREY: None, PREDATOR: learner.nets[PREDATOR]}, worlds=8, steps=60, seed=3000)
print(json.dumps({"seed": seed, "updates": learner.turns, "seconds": round(took, 1), "curve": curve[::5] + curve[-1:],
    "catches": evaluate.interval(mine.catches), "catches_dice": evaluate.interval(dice.catches),
    "attempts": evaluate.interval(mine.attempts), "times_dice": evaluate.ratio(mine.catches, dice.catches)}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--updates", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learn", type=float, default=45.0, help="seconds of learning for each seed")
    words = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[: max(1, len(cores) - 2 * words.seeds)]
    began = time.monotonic()
    learners = [_learner(seed, words.learn, cores[len(mine) + 2 * seed :][:2] or cores) for seed in range(words.seeds)]
    found: dict[str, Any] = {
        "part": "ecosystem-h200",
        "date": time.strftime("%Y-%m-%d"),
        "command": "python benchmarks/ecosystem_h200.py",
        "machine": {"cpu": platform.machine(), "cores": len(cores), "card": _card()},
        "settings": LARGE,
        "cores_of_the_runs": len(mine),
    }
    found["card"] = _run(words.device, words.updates, mine, load=True)
    found["cpu"] = _run("cpu", 3, mine, load=False)
    card, cpu = (found[key].get("seconds_per_update") for key in ("card", "cpu"))
    found["cpu_over_card"] = round(cpu / card, 2) if card and cpu else None
    found["learning"] = [_heard(each) for each in learners]
    found["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(found))
    if words.out:
        words.out.write_text(json.dumps(found, indent=2) + "\n")


def _env() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE"}


def _learner(seed: int, seconds: float, cores: list[int]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LEARN, str(seed), str(seconds)], env=_env(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )  # fmt: skip


def _heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    printed, _ = process.communicate(timeout=120)
    try:
        told: dict[str, Any] = json.loads(printed.splitlines()[-1])
    except (ValueError, IndexError):
        return {"failed": process.returncode, "said": printed[-800:]}
    return told


def _run(device: str, updates: int, cores: list[int], *, load: bool) -> dict[str, Any]:
    """`holdfast train ecosystem` to its end; seconds per update from the times of its metrics."""
    with tempfile.TemporaryDirectory(prefix="holdfast-ecosystem-") as place:
        env = {**_env(), "HOLDFAST_STATE": str(Path(place) / "state"), "OMP_NUM_THREADS": str(len(cores))}
        command = [sys.executable, "-m", "holdfast", "train", "ecosystem", *LARGE, f"updates={updates}",
                   f"run.folder={place}/runs", "--device", device, "--json", "-q"]  # fmt: skip
        watching = _watch_load() if load else None
        began = time.monotonic()
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=300, check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        took = time.monotonic() - began
        samples = _stop(watching) if watching else []
        try:
            summary = json.loads(done.stdout)
        except ValueError:
            return {"failed": done.returncode, "said": done.stderr[-1500:]}
        if summary.get("state") != "FINISHED":
            return {"failed": summary.get("error"), "said": done.stderr[-1500:]}
        folder = Path(summary["folder"])
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        times = [datetime.fromisoformat(row["time"].replace("Z", "+00:00")).timestamp() for row in rows[:updates]]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        result: dict[str, Any] = {
            "device_timeline": summary.get("device_timeline"),
            "updates": updates,
            "seconds_per_update": round(statistics.median(gaps), 4) if gaps else None,
            "whole_run_s": round(took, 1),
            "animals": {key: rows[updates - 1].get(key) for key in ("prey", "predators")},
            "receipt": {key: summary["receipt"].get(key) for key in ("steps", "survived", "steps_lost", "faults")},
        }
        busy = [each for each in samples if each[0] > 0]
        if busy:
            result["load_percent_while_busy"] = round(statistics.mean(each[0] for each in busy), 1)
            result["load_samples"] = len(busy)
            result["memory_mib"] = max(each[1] for each in busy)
            result["power_w"] = round(statistics.mean(each[2] for each in busy), 1)
        return result


def _watch_load() -> subprocess.Popen[str] | None:
    query = "--query-gpu=utilization.gpu,memory.used,power.draw"
    try:
        return subprocess.Popen(
            ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "200"], stdout=subprocess.PIPE, text=True
        )
    except OSError:
        return None


def _stop(watching: subprocess.Popen[str] | None) -> list[tuple[float, float, float]]:
    if watching is None:
        return []
    watching.terminate()
    printed, _ = watching.communicate(timeout=10)
    found = []
    for line in printed.splitlines():
        try:
            load, memory, power = (float(part) for part in line.split(",")[:3])
        except ValueError:
            continue
        found.append((load, memory, power))
    return found


def _card() -> str | None:
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return None
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


if __name__ == "__main__":
    main()
