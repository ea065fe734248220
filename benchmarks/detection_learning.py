"""The parts of bench.py about learning to detect: on real images beside ultralytics' YOLOv8n, and on generated ones.

    python benchmarks/bench.py --parts detection-presets
    HOLDFAST_BENCH_BCCD=…/bccd/data.yaml python benchmarks/bench.py --parts detection-learning
    HOLDFAST_BENCH_HITUAV=…/hituav416/data.yaml python benchmarks/bench.py --parts detection-thermal
    HOLDFAST_BENCH_HITUAV_STEPS=1500 HOLDFAST_BENCH_HITUAV_PX=416 …      # the whole curve: hours on two cores

Both trainers run at the same time with one thread each, because it is CPU time that is compared, and ultralytics takes
one thread of two cores by itself. Both start from random weights. ultralytics (AGPL) is an external program here: its
own command, read through the results.csv that it writes; without it, its rows and bounds are missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import Bound, at_most, command, say
from detection import CACHE, yolo, yolo_version

BCCD, HITUAV = "HOLDFAST_BENCH_BCCD", "HOLDFAST_BENCH_HITUAV"
"""The data.yaml of each set: BCCD (MIT, github.com/Shenggan/BCCD_Dataset) and HIT-UAV (CC BY 4.0, doi
10.1038/s41597-023-02066-6), images of 416 px."""
STEPS, PX = f"{HITUAV}_STEPS", f"{HITUAV}_PX"
FAST = ("size=nano", "imgsz=192", "batch=8", "epochs=15")
"""What ours does with BCCD, for each of three seeds."""
THEIRS = ("imgsz=192", "batch=16", "epochs=20", "val=False", "seed=0")
"""The epochs in which YOLOv8n reached 0.55 at 320 px; its batch is the default. It validates at its end."""


def learning(scratch: Path, quick: bool) -> dict[str, Any]:
    """BCCD from scratch, three seeds: mAP50, and the CPU time for it beside that of YOLOv8n."""
    data = _copied(BCCD, scratch)
    if data is None:
        return {"skipped": f"{BCCD} is not set"}
    seeds, words, theirs = (0, 1, 2), FAST, THEIRS
    if quick:
        seeds, words, theirs = (0,), ("size=nano", "imgsz=64", "batch=8", "epochs=1"), ("imgsz=64", "epochs=1")

    def mine() -> list[dict[str, Any]]:
        return [{"seed": seed, **_ours(data, scratch / f"ours{seed}", words, seed)} for seed in seeds]

    ours, peer = _beside(mine, lambda: _peer(data, scratch / "yolo", theirs))
    return {"ours": ours, "yolov8n": peer, "arguments": {"ours": list(words), "yolov8n": list(theirs)}}


def learning_bounds(measured: dict[str, Any]) -> list[Bound]:
    if "skipped" in measured:
        return []
    worst = min(each["map50"] for each in measured["ours"])
    found = [Bound("mAP50 of the worst seed", worst, "at least 0.55", worst >= 0.55, quick=False)]
    if measured["yolov8n"]:
        longest = max(each["cpu_s"] for each in measured["ours"])
        limit = measured["yolov8n"]["cpu_s"]
        found.append(at_most("CPU seconds of the longest seed, beside YOLOv8n's", longest, limit, quick=False))
    return found


def thermal(scratch: Path, quick: bool) -> dict[str, Any]:
    """HIT-UAV from scratch: the learning curves of ours and of YOLOv8n over the same steps, with their CPU time."""
    data = _copied(HITUAV, scratch)
    if data is None:
        return {"skipped": f"{HITUAV} is not set"}
    steps, side = int(os.environ.get(STEPS, "320")), os.environ.get(PX, "320")
    images = len(list((data.parent / "images" / "train").iterdir()))
    epochs = max(1, round(steps / (images // 4)))
    if quick:
        side, epochs = "64", 1
    words = (f"imgsz={side}", "batch=4", f"epochs={epochs}")
    every = max(1, epochs // 10)
    ours, peer = _beside(
        lambda: _ours(data, scratch / "ours", (*words, "size=tiny", "upside=0.5", f"evaluate_every={every}"), 0),
        lambda: _peer(data, scratch / "yolo", (*words, "seed=0")),
    )
    return {"steps": epochs * (images // 4), "px": int(side), "batch": 4, "ours": ours, "yolov8n": peer}


def thermal_bounds(measured: dict[str, Any]) -> list[Bound]:
    """None: the curves are shown beside each other, whatever they are."""
    return []


def presets(scratch: Path, quick: bool) -> dict[str, Any]:
    """The generated set, as `holdfast train detection` does it by itself, and in each of its smaller forms."""
    os.environ[CACHE] = str(scratch / "cache")
    small = {"imgsz": "64", "epochs": "2"} if quick else {}
    found = {}
    for name, changed in list(_presets(2 if quick else None).items())[: 2 if quick else None]:
        words = tuple(f"{key}={value}" for key, value in {**small, **changed}.items())
        say(f"  {name}: {' '.join(words) or 'nothing given'}")
        found[name] = _run(scratch / name.replace(" ", "-"), words, 0)
    return {"rows": found}


def presets_bounds(measured: dict[str, Any]) -> list[Bound]:
    whole = measured["rows"]["as asked"]
    return [
        at_most("seconds of the default run, from start to end", whole["wall_s"], 150.0, quick=False),
        Bound("mAP50 of the default run", whole["map50"], "at least 0.6", whole["map50"] >= 0.6, quick=False),
    ]


def _presets(epochs: int | None) -> dict[str, dict[str, str]]:
    """The arguments of each, from workload.toml; without those that the default run has already."""
    from holdfast.run import workload_registry
    from holdfast.workloads.detection.training import GENERATED

    whole = epochs or int(GENERATED["epochs"])
    found: dict[str, dict[str, str]] = {"as asked": {}}
    workload = workload_registry.find("detection")
    assert workload is not None
    for row in workload.presets:
        changed = {key: value for key, value in row.get("arguments", {}).items() if GENERATED.get(key) != value}
        if "epochs" in row:
            changed[row["epochs"]["argument"]] = str(max(1, round(whole * row["epochs"]["share"])))
        if changed:
            found[row["name"]] = changed
    return found


# Runs -----------------------------------------------------------------------------------------------------------


def _beside(mine: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[Any, Any]:
    """Both at once; what fails is raised when both are over."""
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(mine), pool.submit(theirs)
        return waiting[0].result(), waiting[1].result()


def _ours(data: Path, runs: Path, words: tuple[str, ...], seed: int) -> dict[str, Any]:
    """With one thread, as the peer has."""
    return _run(runs, (*words, f"data={data}", "run.threads=1", "workers=0"), seed)


def _run(runs: Path, words: tuple[str, ...], seed: int) -> dict[str, Any]:
    """A supervised run as a user starts it; CPU time of all its processes."""
    more = (f"run.folder={runs}", "--seed", str(seed), "--device", "cpu", "-q")
    began = time.monotonic()
    with subprocess.Popen(command("train", "detection", *words, *more), stdout=subprocess.DEVNULL) as run:
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise RuntimeError(f"`holdfast train detection` ended with {run.returncode}")
    (folder,) = (each.parent for each in runs.glob("*/scores.json"))
    scores = json.loads((folder / "scores.json").read_text())
    told = {
        "map50": round(scores["map50"], 4),
        "map50_95": round(scores["map50_95"], 4),
        "classes": {each["name"]: each["ap50"] for each in scores["classes"]},
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "wall_s": round(time.monotonic() - began, 1),
        "curve": _curve(folder / "metrics.jsonl"),
    }
    say(f"  ours, seed {seed}: mAP50 {told['map50']:.3f}, {told['cpu_s']} CPU-s, {told['wall_s']} s")
    return told


def _curve(metrics: Path) -> list[dict[str, float]]:
    """Step and mAP50 of each score."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [{"step": row["step"], "map50": round(row["val_map50"], 4)} for row in rows if "val_map50" in row]


def _peer(data: Path, out: Path, words: tuple[str, ...]) -> dict[str, Any] | None:
    """YOLOv8n by its own command; CPU time as it is accounted to it while it runs."""
    out.mkdir(parents=True)
    used: list[float] = []
    rows = yolo(data, out, *words, used=used)
    if not rows:
        return None
    curve = [{"epoch": int(row["epoch"]), "map50": float(row["metrics/mAP50(B)"])} for row in rows]
    last = rows[-1]
    told = {"map50": float(last["metrics/mAP50(B)"]), "map50_95": float(last["metrics/mAP50-95(B)"]),
            "cpu_s": round(used[0], 1), "curve": curve, "version": yolo_version()}  # fmt: skip
    say(f"  YOLOv8n: mAP50 {told['map50']:.3f}, {told['cpu_s']} CPU-s")
    return told


def _copied(variable: str, scratch: Path) -> Path | None:
    """A copy of the set, because ultralytics writes beside the labels."""
    given = os.environ.get(variable)
    if not given:
        say(f"  {variable} names no data.yaml: nothing is measured")
        return None
    os.environ[CACHE] = str(scratch / "cache")
    target = scratch / "set"
    shutil.copytree(Path(given).parent, target, ignore=shutil.ignore_patterns("*.cache"))
    return target / Path(given).name
