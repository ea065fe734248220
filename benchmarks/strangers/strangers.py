"""Training scripts of other people, with as few lines of holdfast as the docs ask for: equal after a fault?

    python benchmarks/strangers/strangers.py --sources DIR          all; DIR has git repositories as OWNER+NAME/repo
    python benchmarks/strangers/strangers.py --sources DIR mnist    one of them

A script is taken from the named commit of its repository, and its .patch in this folder is applied: nothing of it is
kept here. Data are made here, small. Each is run as it is, then with the patch under `holdfast run`: quiet, killed with
SIGKILL at five steps, hung, out of memory, stopped and resumed, and with a supervisor that is killed. *equal*: the
weights, bit for bit, and every number that it prints. The first column compares what the script prints as it is with
what it prints with the patch. Outcomes are kept after each run in benchmarks/results/strangers-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import other_people  # noqa: E402
from common import machine, versions, write  # noqa: E402
from other_people import Skip, nothing  # noqa: E402
from tests.idioms.stamp import stamp  # noqa: E402

from holdfast.run.folder import list_runs  # noqa: E402

PLACE = HERE.parents[1] / "tests" / "supervisor" / "scripts" / "faults"
RESULT = HERE.parent / "results" / "strangers-cpu.json"
LIMIT = 1500.0
HUNG = ("watchdog.loop=20s", "watchdog.evaluate=20s")
FAULTS = {
    "killed": "kill", "hung": "hang", "out of memory": "device_oom", "stopped and resumed": "terminate_parent",
    "supervisor killed": "kill_parent",
}  # fmt: skip
"""The kinds of tests/supervisor/scripts/faults."""
WAYS = ("as it is", "quiet", *FAULTS)
NOTE = "though persistent_workers=True"
"""Part of what `holdfast run` says when it cannot train with the random numbers of the original."""
STOPPED = 75
"""The exit code of a run that was asked to stop."""


# Scripts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stranger:
    """One script of somebody else."""

    repository: str
    commit: str
    licence: str
    files: tuple[str, ...]
    """The script first; a folder ends with a slash."""
    words: tuple[str, ...]
    data: Callable[[Path], None]
    numbers: str
    """The lines that it prints with numbers of the training."""
    times: str
    """What in them is a time."""
    at: tuple[int, ...]
    """The steps of its optimizer at which it is killed; other faults come at the fourth of them."""


def _cats_and_dogs(folder: Path) -> None:
    other_people.pictures(folder, ("cat", "dog"), 12, 64)


STRANGERS = {
    "mnist": Stranger(
        "pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8", "BSD-3-Clause", ("mnist/main.py",),
        ("--no-accel", "--batch-size", "16", "--epochs", "2", "--log-interval", "1", "--save-model"),
        lambda folder: other_people.digits(folder.parent, 320),
        r"Train Epoch|Test set", r"^$", (3, 14, 15, 27, 33),
    ),
    "imagenet": Stranger(
        "pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8", "BSD-3-Clause", ("imagenet/main.py",),
        ("-a", "squeezenet1_1", "--no-accel", "--seed", "0", "--epochs", "2", "-b", "4", "-j", "1", "-p", "1",
         "--lr", "0.001", "pictures"), _cats_and_dogs,
        r"^Epoch|^Test| \* Acc", r"(Time|Data)\s+[\d.]+ \(\s*[\d.]+\)", (2, 5, 6, 9, 12),
    ),
    "nanogpt": Stranger(
        "karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", "MIT",
        ("train.py", "model.py", "configurator.py"),
        ("--dataset=tiny", "--device=cpu", "--compile=False", "--dtype=float32", "--n_layer=2", "--n_head=2",
         "--n_embd=32", "--block_size=16", "--batch_size=4", "--gradient_accumulation_steps=2", "--max_iters=30",
         "--eval_interval=10", "--eval_iters=3", "--log_interval=1", "--dropout=0.1", "--warmup_iters=5",
         "--lr_decay_iters=30"), lambda folder: other_people.text(folder, 4000),
        r"^step|^iter", r", time [\d.]+ms, mfu -?[\d.]+%", (3, 9, 10, 17, 25),
    ),
    "ppo": Stranger(
        "vwxyzjn/cleanrl", "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb", "MIT", ("cleanrl/ppo.py",),
        ("--no-cuda", "--total-timesteps", "1536", "--num-steps", "64", "--num-envs", "2"), nothing,
        r"episodic_return", r"^$", (10, 50, 51, 90, 150),
    ),
    "timm": Stranger(
        "huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d", "Apache-2.0",
        ("train.py", "timm/"),
        ("--data-dir", "pictures", "--model", "test_resnet", "--num-classes", "2", "--epochs", "2", "-b", "4",
         "-j", "1", "--device", "cpu", "--seed", "0", "--log-interval", "1", "--warmup-epochs", "0", "--lr", "0.001",
         "--sched-on-updates", "--output", "out", "--experiment", "x", "--val-split", "val"), _cats_and_dogs,
        r"Train: |Test: ", r"Time: .*?/s\)\s*(?=LR|Loss|Acc)|Data: .*$|Time: [\d.]+ \([\d.]+\)|^.*?(?=Train:|Test:)",
        (2, 5, 6, 9, 12),
    ),
}  # fmt: skip


def fetched(name: str, folder: Path, sources: Path, *, patched: bool) -> Path:
    """The script in a folder of its own, with its data; returns the path of the script."""
    script = other_people.fetched(STRANGERS[name], folder, sources, [HERE / f"{name}.patch"] if patched else [])
    STRANGERS[name].data(folder)
    return script


# Runs -------------------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """What became of a script."""

    code: int
    printed: list[str]
    weights: str | None
    said: str


def started(folder: Path, words: list[str], fault: str = "") -> tuple[int, str]:
    mine = {"FAULT": fault, "FAULT_DONE": str(folder / "fault.done")}
    path = [str(PLACE), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    mine |= {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "HOLDFAST_STATE": str(folder / "state")}
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **mine, "NO_COLOR": "1"}, stdin=subprocess.DEVNULL, check=False,
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    said = (
        done.stdout + done.stderr
    )  # each by itself: a line of holdfast's may come in the middle of one of the script's
    with (folder / "printed.txt").open("a") as file:
        file.write(said)
    return done.returncode, said


def ran(name: str, way: str, folder: Path, sources: Path) -> Ran:
    stranger, script = STRANGERS[name], fetched(name, folder, sources, patched=way != "as it is")
    words = [sys.executable, script.name, *stranger.words]
    if way == "as it is":
        code, said = started(folder, words)
        return Ran(code, numbers(stranger, said) + scalars(folder), None, said)
    places = stranger.at if way == "killed" else stranger.at[3:4] * (way in FAULTS)
    order = [sys.executable, "-m", "holdfast", "run", *(HUNG if way == "hung" else ()), "--", *words]
    code, said = started(folder, order, f"{FAULTS[way]}@{','.join(map(str, places))}" if places else "")
    if (way, code) in (("stopped and resumed", STOPPED), ("supervisor killed", -signal.SIGKILL)):
        run = list_runs(folder / "runs")[-1]
        code, more = started(folder, [sys.executable, "-m", "holdfast", "resume", run.path.name])
        said += more
    done = folder / "fault.done"
    came = len(done.read_text().splitlines()) if done.exists() else 0
    if came != len(places):
        raise AssertionError(f"{name}: {came} of {len(places)} faults came: {said[-2000:]}")
    runs = list_runs(folder / "runs")
    receipt = (runs[-1].receipt() if runs else None) or {}
    return Ran(code, numbers(stranger, said) + scalars(folder), receipt.get("weights_sha256"), said)


def numbers(stranger: Stranger, said: str) -> list[str]:
    """Each line with numbers once: a step that is repeated prints the same line again."""
    lines = [
        re.sub(stranger.times, "", line).strip() for line in said.splitlines() if re.search(stranger.numbers, line)
    ]
    return list(dict.fromkeys(lines))


def scalars(folder: Path) -> list[str]:
    """What a script wrote for TensorBoard, of all its processes; without its speed."""
    files = sorted(folder.glob("runs/*/events.out.tfevents*"))
    if not files:
        return []
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in files:
        events = EventAccumulator(str(path)).Reload()
        for tag in events.Tags()["scalars"]:
            found |= {(tag, each.step): each.value for each in events.Scalars(tag) if not tag.endswith("SPS")}
    return [f"{tag} {step} {value!r}" for (tag, step), value in sorted(found.items())]


def verdict(quiet: Ran, other: Ran, way: str = "") -> str:
    if other.code != 0:
        last = [line for line in other.said.splitlines() if line.strip()][-3:]
        return f"DIFFERS: ends with {other.code}: {' / '.join(last)[:300]}"
    if other.weights != quiet.weights or other.weights is None:
        return "DIFFERS: other weights"
    if sorted(other.printed) != sorted(quiet.printed):
        extra = sorted(set(other.printed) ^ set(quiet.printed))
        if way == "supervisor killed" and len(extra) == 1 and extra[0] in quiet.printed:
            return "weights equal, one printed line lost"  # a script prints and commits before its own end comes
        return f"DIFFERS: {len(extra)} lines, the first {extra[0][:120]!r}"
    return "equal"


def cells(name: str, scratch: Path, sources: Path, ways: list[str], keep: Callable[[str, str], None]) -> None:
    quiet = ran(name, "quiet", scratch / "quiet", sources)
    keep("quiet", verdict(quiet, quiet))
    for way in [way for way in ways if way != "quiet"]:
        other = ran(name, way, scratch / way.replace(" ", "-"), sources)
        if way == "as it is":
            same = other.code == 0 and other.printed and sorted(other.printed) == sorted(quiet.printed)
            told = other.code == 0 and NOTE in quiet.said
            differs = "other numbers, told in a note" if told else f"DIFFERS: ends with {other.code}"
            keep(way, "equal" if same else f"{differs}: {len(set(other.printed) ^ set(quiet.printed))} lines")
        else:
            keep(way, verdict(quiet, other, way))


def changed(name: str) -> dict[str, int]:
    lines = (HERE / f"{name}.patch").read_text().splitlines()
    count = {sign: sum(line.startswith(sign) and line[:3] != sign * 3 for line in lines) for sign in "+-"}
    return {"added": count["+"], "removed": count["-"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SCRIPT", help=f"of {', '.join(STRANGERS)} (default: all)")
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR")
    parser.add_argument("--way", action="append", choices=WAYS, default=[])
    parser.add_argument("--result", type=Path, default=RESULT, metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="leave the folders of the runs")
    args = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="strangers-"))
    known = json.loads(args.result.read_text())["scripts"] if args.result.exists() else {}
    for name in args.names or list(STRANGERS):
        stranger = STRANGERS[name]
        whence = {"repository": stranger.repository, "commit": stranger.commit, "file": stranger.files[0]}
        row = {**whence, "licence": stranger.licence, **changed(name)}

        def keep(way: str, said: str, name: str = name, row: dict[str, Any] = row) -> None:
            print(f"{name} | {way} | {said}", flush=True)
            found = {**known.get(name, {}).get("cells", {}), way: [said, stamp()]}
            known[name] = {**row, "cells": {each: found[each] for each in WAYS if each in found}}
            rows = {each: known[each] for each in STRANGERS if each in known}
            write(args.result, {"scripts": rows, "versions": versions(), "machine": machine()})

        try:
            cells(name, scratch / name, args.sources, args.way or list(WAYS), keep)
        except Skip as reason:
            print(f"{name} | skipped: {reason}", flush=True)
    if args.keep:
        print(scratch)
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    return int(any("DIFFERS" in said for row in known.values() for said, _ in row["cells"].values()))


if __name__ == "__main__":
    sys.exit(main())
