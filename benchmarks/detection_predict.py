"""`holdfast detection predict` beside ONNX Runtime by hand: the same network, the same images, whole commands in turns.

    python benchmarks/detection_predict.py RUN FOLDER --turns 7 --out results/detection-predict-cpu.json

RUN is a finished run of `holdfast train detection`, FOLDER has images. By hand is `jobs/onnx_by_hand.py`, once with one
image at a time and once with eight. What counts is the time from the command to the file with the boxes, start of the
interpreter included, by the clock and in processor time; ratios are of neighbours in one turn, with their median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
from common import command, say
from many import write

BY_HAND = common.JOBS / "onnx_by_hand.py"


def timed(words: list[str]) -> dict[str, float]:
    began = time.monotonic()
    with tempfile.TemporaryFile() as log:
        run = subprocess.Popen(words, stdout=log, stderr=log)
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        if run.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(words)}: {log.read().decode()[-800:]}")
    return {"wall_s": round(time.monotonic() - began, 3), "cpu_s": round(used.ru_utime + used.ru_stime, 3)}


def measured(run: Path, folder: Path, turns: int, score: float, scratch: Path) -> dict[str, Any]:
    where = [str(run), str(folder), "--out", str(scratch / "found"), "--score", str(score)]
    ours = command("detection", "predict", *where, "--no-pictures", "--format", "json", "-q")
    first = timed(ours)  # the network is written down for ONNX Runtime here
    (net,) = (scratch / "cache" / "nets").glob("*.onnx")
    ways = {"predict": ours} | {
        f"by hand, {count} at a time": [
            sys.executable, str(BY_HAND), str(net), str(folder), str(scratch / f"{count}.json"), "--batch", str(count),
            "--score", str(score),
        ]
        for count in (1, 8)
    }  # fmt: skip
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            rows[name].append(timed(ways[name]))
        say(f"  turn {turn + 1}: " + ", ".join(f"{name} {each[-1]}" for name, each in rows.items()))
    mine = json.loads((scratch / "found" / "found.json").read_text())["images"]
    theirs = json.loads((scratch / "8.json").read_text())
    ratios = {
        f"{name}, {key}": [round(a[key] / b[key], 3) for a, b in zip(rows[name], rows["predict"], strict=True)]
        for name in rows if name != "predict" for key in ("wall_s", "cpu_s")
    }  # fmt: skip
    return {
        "images": len(mine),
        "score": score,
        "boxes": {"predict": sum(len(each["found"]) for each in mine), "by hand": sum(len(e["found"]) for e in theirs)},
        "first_time": first,
        "times_as_long_as_predict": {
            name: {"median": statistics.median(each), "lowest": min(each), "highest": max(each)}
            for name, each in ratios.items()
        },
        "turns": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--scores", default="0.25,0.002", help="the second leaves many boxes to suppress")
    parser.add_argument("--out", type=Path, default=common.RESULTS / "detection-predict-cpu.json")
    given = parser.parse_args()
    began = time.monotonic()
    found = {}
    for score in given.scores.split(","):
        with tempfile.TemporaryDirectory(prefix="holdfast-predict-") as place:
            common.adopt(Path(place))
            os.environ["HOLDFAST_DETECTION_CACHE"] = str(Path(place) / "cache")
            found[f"score {score}"] = measured(given.run, given.folder, given.turns, float(score), Path(place))
    write(given.out, "detection-predict", found, seconds=time.monotonic() - began)
    for name, each in found.items():
        say(f"  {name}: {each['boxes']} {each['times_as_long_as_predict']}")


if __name__ == "__main__":
    main()
