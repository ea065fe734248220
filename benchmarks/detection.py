"""The parts of bench.py about detection: a step beside YOLOv8n's, a large set, and faults.

ultralytics (AGPL) is measured as the external program it is: its own command in a process of its own, read through the
results.csv it writes. It is no dependency; where it is not installed, its rows are missing and so are their bounds.
Times of steps are taken in turns inside one part, because the machine may be busy with other things.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from common import JOBS, Bound, at_most, exactly, say, spread, unharmed

from holdfast.injection.chaos import FaultPlan
from holdfast.testing import experiment

CACHE = "HOLDFAST_DETECTION_CACHE"
OFFLINE = {"YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0"}


# Steps ----------------------------------------------------------------------------------------------------------


def steps(scratch: Path, quick: bool) -> dict[str, Any]:
    """A training step at 416 px, batch 16: ours as tuned, a plain loop, and YOLOv8n as it comes; in turns."""
    rounds, side, batch, count = (1, 64, 4, 1) if quick else (2, 416, 16, 2)
    data = _generated(scratch, 2 * batch, side)
    tuned = _child("detection_steps.py", "tune", data, side, batch)
    say(f"  {tuned['words']}")
    choice = json.dumps(tuned["choice"])
    rows: dict[str, list[float]] = {"tuned": [], "plain": [], "yolov8n": []}
    for number in range(rounds):
        ours = _child("detection_steps.py", "turns", data, side, batch, count, choice)
        rows["tuned"].append(ours["tuned_s"])
        rows["plain"].append(ours["plain_s"])
        theirs = yolo_step(data, side, batch, scratch / f"yolo{number}")
        if theirs is not None:
            rows["yolov8n"].append(theirs)
        say(f"  round {number + 1} of {rounds}: {json.dumps({name: each[-1] for name, each in rows.items() if each})}")
    beside = _child("detection_steps.py", "neighbour", data, side, batch, 2 if quick else 4, choice)
    return {
        "batch": batch,
        "px": side,
        "threads": ours["threads"],
        "choice": tuned["words"],
        "step_s": {name: spread(each) for name, each in rows.items() if each},
        "images_per_s": {name: round(batch / statistics.median(each), 3) for name, each in rows.items() if each},
        "plain_over_tuned": _ratio(rows["plain"], rows["tuned"]),
        "yolov8n_over_tuned": _ratio(rows["yolov8n"], rows["tuned"]),
        "beside_a_busy_neighbour": beside,
        "ultralytics": yolo_version(),
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

    os.environ[CACHE] = str(scratch / "cache")  # the user's own indices are left alone
    return generate.write(scratch / "set", train=images, val=8, width=side, height=side)


def yolo_step(data: Path, side: int, batch: int, out: Path) -> float | None:
    """Seconds per step of `yolo detect train` with its defaults, from the times in results.csv; None without it.

    What is not a step is left out as far as it lets us: no validation, no checkpoints, no pictures. The first epoch
    builds its cache and does not count; it is ended after the second.
    """
    words = [f"imgsz={side}", f"batch={batch}", "epochs=100", "val=False", "save=False"]
    rows = yolo(data, out, *words, enough=2)
    if not rows:
        return None
    per_epoch = -(-len(list((data.parent / "images" / "train").iterdir())) // batch)
    return round((float(rows[1]["time"]) - float(rows[0]["time"])) / per_epoch, 4)


def yolo(
    data: Path, out: Path, *words: str, enough: int = 0, used: list[float] | None = None, patience: float = 14400.0
) -> list[dict[str, str]]:
    """The external program, offline, to its end or to `enough` epochs; the rows of its results.csv, none without it.

    The CPU seconds it took are put into `used`.
    """
    program = shutil.which("yolo") or str(Path(sys.executable).with_name("yolo"))
    if not Path(program).exists():
        say("  ultralytics is not installed: no comparison with it")
        return []
    absolute = data.with_name("absolute.yaml")
    absolute.write_text(data.read_text().replace("path: .", f"path: {data.parent.resolve()}"))
    config = out / "config"
    config.mkdir(parents=True)
    command = [program, "detect", "train", f"data={absolute}", "model=yolov8n.yaml", "device=cpu", "plots=False"]
    with (
        open(out / "output.txt", "wb") as output,
        subprocess.Popen(
            [*command, *words, f"project={out}", "name=run", "exist_ok=True"],
            env={**os.environ, **OFFLINE, "YOLO_CONFIG_DIR": str(config)}, stdout=output, stderr=output,
        ) as run,
    ):  # fmt: skip
        deadline = time.monotonic() + patience
        pid, stopped = 0, False
        while not pid:
            time.sleep(0.5)
            if not stopped and (time.monotonic() > deadline or (enough and len(_rows(out)) >= enough)):
                stopped = True
                os.kill(run.pid, signal.SIGKILL)
            pid, status, times = os.wait4(run.pid, 0 if stopped else os.WNOHANG)
        run.returncode = os.waitstatus_to_exitcode(status)
    if used is not None:
        used.append(times.ru_utime + times.ru_stime)
    found = _rows(out)
    if (run.returncode and not stopped) or len(found) < max(1, enough):
        told = (out / "output.txt").read_text(errors="replace")[-800:]
        raise RuntimeError(f"yolo ended with {run.returncode}: {told}")
    return found


def yolo_version() -> str | None:
    try:
        return metadata.version("ultralytics")
    except metadata.PackageNotFoundError:
        return None


def _rows(out: Path) -> list[dict[str, str]]:
    """Whole rows only: the file may just be written."""
    try:
        with open(out / "run" / "results.csv", newline="") as file:
            rows = [{key.strip(): (value or "").strip() for key, value in row.items()} for row in csv.DictReader(file)]
    except (OSError, AttributeError):
        return []
    return [row for row in rows if all(row.values())]


# A large set ----------------------------------------------------------------------------------------------------


def large(scratch: Path, quick: bool) -> dict[str, Any]:
    """An index of 100,000 images: how long the first check takes, how soon training starts after it, and memory."""
    count = 1_000 if quick else 100_000
    data = _many(scratch, count)
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
    from holdfast.run.workload_registry import find

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
