"""The parts of bench.py about detection: a step beside YOLOv8n's, a large set, faults, and learning on real images.

ultralytics (AGPL) is measured as the external program it is: its own command in a process of its own, read through the
results.csv it writes. It is no dependency; where it is not installed, its rows are missing and so are their bounds.
Times of steps are taken in turns inside one part, because the machine may be busy with other things.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import JOBS, Bound, at_most, exactly, say, spread, unharmed

from holdfast.testing import experiment
from holdfast.testing.chaos import FaultPlan

REAL = "HOLDFAST_BENCH_BCCD"
"""The data.yaml of the BCCD set (MIT, github.com/Shenggan/BCCD_Dataset), for the part `detection-learning`."""
OFFLINE = {"YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0"}


# Steps ----------------------------------------------------------------------------------------------------------


def steps(scratch: Path, quick: bool) -> dict[str, Any]:
    """A training step at 416 px, batch 16: ours as tuned, ours plain, ultralytics' YOLOv8n as it comes; in turns."""
    rounds, images, side, batch = (1, 8, 64, 4) if quick else (3, 64, 416, 16)
    data = _generated(scratch, images, side)
    rows: dict[str, list[float]] = {"tuned": [], "plain": [], "yolov8n": []}
    for number in range(rounds):
        say(f"  round {number + 1} of {rounds}")
        ours = _child("detection_steps.py", data, side, batch, 2 if quick else 6)
        rows["tuned"].append(ours["tuned_s"])
        rows["plain"].append(ours["plain_s"])
        theirs = None if quick else yolo_step(data, side, batch, scratch / f"yolo{number}")
        if theirs is not None:
            rows["yolov8n"].append(theirs)
    alone = _child("detection_steps.py", data, side, batch, 2 if quick else 6, "neighbour")
    return {
        "batch": batch,
        "px": side,
        "choice": ours["choice"],
        "step_s": {name: spread(values) for name, values in rows.items() if values},
        "plain_over_tuned": _ratio(rows["plain"], rows["tuned"]),
        "yolov8n_over_tuned": _ratio(rows["yolov8n"], rows["tuned"]),
        "beside_a_busy_neighbour": alone,
    }


def _ratio(slow: list[float], fast: list[float]) -> float | None:
    pairs = list(zip(slow, fast, strict=False))
    return round(statistics.median(one / other for one, other in pairs), 3) if pairs else None


def steps_bounds(measured: dict[str, Any]) -> list[Bound]:
    beside = measured["beside_a_busy_neighbour"]
    found = [
        _at_least("plain step over tuned step", measured["plain_over_tuned"], 1.0),
        at_most("tuned step over one thread, beside a busy neighbour", beside["tuned_over_one"], 1.1, quick=False),
    ]
    if measured["yolov8n_over_tuned"] is not None:
        found.append(_at_least("YOLOv8n's default step over ours", measured["yolov8n_over_tuned"], 1.5))
    return found


def _at_least(what: str, measured: float, limit: float) -> Bound:
    return Bound(what, measured, f"at least {limit}", measured >= limit, quick=False)


def _child(job: str, *words: Any) -> dict[str, Any]:
    """A measurement in a process of its own, with the environment that the workload's runs have."""
    done = subprocess.run(
        [sys.executable, str(JOBS / job), *map(str, words)],
        stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _generated(scratch: Path, images: int, side: int) -> Path:
    from holdfast.workloads.detection import generate

    return generate.write(scratch / "set", train=images, val=8, width=side, height=side)


def yolo_step(data: Path, side: int, batch: int, out: Path, epochs: int = 3) -> float | None:
    """Seconds per step of `yolo detect train` with its defaults, from the times in results.csv; None without it."""
    rows = yolo(data, out, f"imgsz={side}", f"batch={batch}", f"epochs={epochs}", "val=False")
    if not rows:
        return None
    per_epoch = -(-len(list((data.parent / "images" / "train").iterdir())) // batch)
    times = [float(row["time"]) for row in rows]
    return (times[-1] - times[0]) / ((len(times) - 1) * per_epoch)  # the first epoch builds its cache


def yolo(data: Path, out: Path, *words: str, patience: float = 7200.0) -> list[dict[str, str]]:
    """The external program with its own defaults, offline; the rows of its results.csv, none if it is not there."""
    program = shutil.which("yolo") or str(Path(sys.executable).with_name("yolo"))
    if not Path(program).exists():
        say("  ultralytics is not installed: no comparison with it")
        return []
    absolute = data.with_name("absolute.yaml")
    text = data.read_text().replace("path: .", f"path: {data.parent.resolve()}")
    absolute.write_text(text)
    config = out / "config"
    config.mkdir(parents=True)
    command = [program, "detect", "train", f"data={absolute}", "model=yolov8n.yaml", "device=cpu", "plots=False"]
    subprocess.run(
        [*command, *words, f"project={out}", "name=run", "exist_ok=True"],
        env={**os.environ, **OFFLINE, "YOLO_CONFIG_DIR": str(config)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=patience,
    )  # fmt: skip
    with open(out / "run" / "results.csv", newline="") as file:
        return [{key.strip(): value.strip() for key, value in row.items()} for row in csv.DictReader(file)]


# A large set ----------------------------------------------------------------------------------------------------


def large(scratch: Path, quick: bool) -> dict[str, Any]:
    """An index of 100,000 images: how long the first check takes, how soon training starts after it, and memory."""
    count = 1_000 if quick else 100_000
    data = _many(scratch, count)
    os.environ["HOLDFAST_DETECTION_CACHE"] = str(scratch / "cache")
    cold = _child("detection_large.py", data)
    warm = _child("detection_large.py", data)
    return {"images": count, "cold": cold, "warm": warm}


def large_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        exactly("images in the index", measured["warm"]["images"], measured["images"]),
        exactly("the second start found the index", measured["warm"]["warm"], True),
        at_most("seconds to the first batch, index warm", measured["warm"]["to_first_batch_s"], 10.0, quick=False),
        at_most("MB that the set takes, index and all", measured["warm"]["grown_mb"], 400.0, quick=False),
    ]


def _many(scratch: Path, count: int) -> Path:
    """So many images and labels: links to 64 generated pictures, since only the index is measured."""
    data = _generated(scratch, 64, 64)
    root = data.parent
    images = sorted((root / "images" / "train").iterdir())
    labels = sorted((root / "labels" / "train").iterdir())
    for number in range(64, count):
        os.link(images[number % 64], root / "images" / "train" / f"n{number:06d}.png")
        os.link(labels[number % 64], root / "labels" / "train" / f"n{number:06d}.txt")
    return data


# Faults ---------------------------------------------------------------------------------------------------------


def faults(scratch: Path, quick: bool) -> dict[str, Any]:
    """Twenty random faults in a run with mosaics, changing sizes and a moving average: the same bits at the end?"""
    from holdfast.workloads.registry import find

    workload = find("detection")
    assert workload is not None and workload.script is not None
    data = _generated(scratch, 48, 64)
    count, epochs = (3, 2) if quick else (20, 6)
    words = [f"data={data}", "imgsz=64", "size=nano", "batch=8", f"epochs={epochs}", "multiscale=0.5", "tune=false"]
    result = experiment.run(
        workload.script,
        [*words, "run.threads=1", "retry.same_step=8"],
        lambda total: FaultPlan.random(count, steps=total, seed=3),
        runs=scratch / "runs",
        flags=("-q",),
        say=lambda text: say(f"  {text}"),
    )
    return {"receipt": result.receipt}


def faults_bounds(measured: dict[str, Any]) -> list[Bound]:
    return unharmed(measured["receipt"])


# Learning -------------------------------------------------------------------------------------------------------


def learning(scratch: Path, quick: bool) -> dict[str, Any]:
    """BCCD from scratch, three seeds: mAP50 within the CPU time that YOLOv8n takes for its own 0.55."""
    given = os.environ.get(REAL)
    if not given:
        say(f"  {REAL} names no data.yaml: nothing is measured")
        return {"skipped": f"{REAL} is not set"}
    data = _writable(Path(given), scratch / "bccd")
    seeds, epochs = ((0,), 1) if quick else ((0, 1, 2), 40)
    ours = [_ours(data, scratch / f"ours{seed}", seed, epochs) for seed in seeds]
    began = _cpu_children()
    rows = [] if quick else yolo(data, scratch / "yolo", "imgsz=320", "batch=16", "epochs=20", "seed=0")
    theirs = {"map50": float(rows[-1]["metrics/mAP50(B)"]), "cpu_s": _cpu_children() - began} if rows else None
    return {"ours": ours, "yolov8n": theirs, "epochs": {"ours": epochs, "yolov8n": 20}, "px": 320}


def learning_bounds(measured: dict[str, Any]) -> list[Bound]:
    if "skipped" in measured:
        return []
    worst = min(each["map50"] for each in measured["ours"])
    found = [_at_least("mAP50 of the worst seed", worst, 0.55)]
    if measured["yolov8n"]:
        longest = max(each["cpu_s"] for each in measured["ours"])
        found.append(at_most("CPU seconds of ours", longest, measured["yolov8n"]["cpu_s"], quick=False))
    return found


def _ours(data: Path, runs: Path, seed: int, epochs: int) -> dict[str, Any]:
    began, wall = _cpu_children(), time.monotonic()
    words = ["detection", f"data={data}", "imgsz=320", f"epochs={epochs}", "evaluate_every=10", f"run.folder={runs}"]
    subprocess.run(
        [sys.executable, "-m", "holdfast", "train", *words, "--seed", str(seed), "--device", "cpu", "-q"], check=True
    )
    (scores,) = runs.glob("*/scores.json")
    told = json.loads(scores.read_text())
    say(f"  seed {seed}: mAP50 {told['map50']:.3f}")
    return {"seed": seed, "map50": told["map50"], "map50_95": told["map50_95"],
            "cpu_s": round(_cpu_children() - began, 1), "wall_s": round(time.monotonic() - wall, 1)}  # fmt: skip


def _cpu_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _writable(data: Path, target: Path) -> Path:
    """A copy, because ultralytics writes beside the labels."""
    shutil.copytree(data.parent, target, ignore=shutil.ignore_patterns("*.cache"))
    return target / data.name
