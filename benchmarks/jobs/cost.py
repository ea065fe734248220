"""What protection costs on jobs that a user would write: each bare and under holdfast, in turns, in one run.

    python -m benchmarks.jobs.cost --device cpu --out /tmp/cost
    python -m benchmarks.jobs.cost --device cuda --limit 500 --out /tmp/cost --jobs mlp,cnn,gpt-124m

The scripts are in benchmarks/jobs/stranger: `train(session)` and a bare loop in one file. The turns are bare, held,
bare, held: the figure is the median step of the held windows over that of the bare ones, and bare over bare beside it
(the second, fourth and so on against the first, third and so on) says how much of it is noise. `--turns 2` is the first
two alone, and nobody knows the noise; on a host whose processes differ among themselves, take eight or twelve. Windows
of the first third of a run do not count. Everything is on, with default settings. `cost.json` has all windows,
`cost.md` the table. A job that does not get through in its share of the limit is said to.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "stranger"
SOURCE = HERE.parents[1] / "src"
TURNS = ("bare", "held")
SLACK = 1.5
"""How much more than its share of the time that is left one turn may take."""


@dataclass(frozen=True)
class Job:
    """A script with its arguments, and what its figure has to stay below."""

    script: str
    bound: float
    arguments: dict[str, int] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    """Of holdfast, where the job is about them."""


START = Job("mlp", 9.0, {"count": 1024, "batch": 64, "epochs": 1, "width": 64, "window": 4})
"""16 steps: what counts is the time from start to exit."""
CUDA = {
    "mlp": Job("mlp", 1.05),
    "mlp-4-loaders": Job("mlp", 1.05, {"workers": 4}),
    "cnn": Job("cnn", 1.02, {"epochs": 8}),
    "tensors": Job("tensors", 1.05),
    "gpt-10m": Job("gpt", 1.02, {"layers": 4, "width": 256, "heads": 4, "length": 256, "batch": 32, "steps": 400,
                                 "window": 25}),
    "gpt-124m": Job("gpt", 1.01, {"steps": 120}),
    "gpt-350m": Job("gpt", 1.01, {"layers": 24, "width": 1024, "heads": 16, "batch": 8, "steps": 100}),
    "gpt-774m": Job("gpt", 1.01, {"layers": 36, "width": 1280, "heads": 20, "batch": 8, "steps": 60}),
    "gpt-124m-tight": Job("gpt", 1.02, {"steps": 120, "left": 10}, {"snapshot.memory": "4GB"}),
    "pictures": Job("pictures", 1.01),
    "big": Job("big", 1.05, {"steps": 40, "width": 2048, "window": 4}),
    "start": START,
    "gpt-124m-compiled": Job("gpt", 1.01, {"steps": 120, "compile": 1}),
    "agent": Job("agent", 1.02),
}  # fmt: skip
CPU = {
    "step-5ms": Job("mlp", 1.05, {"batch": 64, "epochs": 4, "width": 256}),
    "step-50ms": Job("mlp", 1.01, {"batch": 512, "epochs": 4, "width": 1024, "window": 10}),
    "mlp": Job("mlp", 1.05, {"epochs": 8}),
    "tensors": Job("tensors", 1.05, {"steps": 60, "window": 5}),
    "cnn": Job("cnn", 1.02, {"width": 8, "count": 2560, "batch": 64, "epochs": 3}),
    "agent": Job("agent", 1.02, {"episodes": 60, "window": 5}),
    "pictures": Job("pictures", 1.01, {"steps": 40, "batch": 16, "size": 64, "layers": 2, "width": 128, "workers": 2}),
    "big": Job("big", 1.05, {"count": 50, "steps": 40}),
    "start": START,
}
QUICK = {
    "mlp": Job("mlp", 9.0, {"count": 512, "batch": 64, "epochs": 3, "width": 16, "window": 4}),
    "agent": Job("agent", 9.0, {"episodes": 12, "length": 4, "window": 3}),
}


def turn(name: str, job: Job, how: str, device: str, folder: Path, seconds: float) -> dict[str, Any]:
    """One run of a job: its windows in milliseconds a step, and how long it took from start to exit."""
    times = folder / f"{name}-{time.monotonic_ns()}.txt"
    words = [f"{key}={value}" for key, value in {**job.arguments, "times": times}.items()]
    script = SCRIPTS / f"{job.script}.py"
    if how == "bare":
        command = [sys.executable, str(script), f"device={device}", *words]
    else:
        command = [sys.executable, "-m", "holdfast", "train", str(script), *words, f"run.folder={folder / 'runs'}"]
        command += ["--device", device, *(f"{key}={value}" for key, value in job.settings.items())]
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "HOLDFAST_STATE": str(folder.parent / "state")}
    began = time.monotonic()
    with open(folder / "output.txt", "ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=folder)
        try:
            code: int | None = process.wait(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            code = None
            process.terminate()
            try:
                process.wait(timeout=20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    took = time.monotonic() - began
    found = [float(line) for line in times.read_text().split()] if times.exists() else []
    return {"how": how, "code": code, "took_s": round(took, 2), "windows_ms": found}


def counted(windows: list[float]) -> list[float]:
    """Without the first third: kernels are chosen and slots laid out there."""
    return windows[len(windows) // 3 :]


def measure(
    name: str, job: Job, device: str, folder: Path, seconds: float, order: Sequence[str] = TURNS * 2
) -> dict[str, Any]:
    """All turns of a job, each with an equal share of what is left."""
    turns: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    for at, how in enumerate(order):
        left = until - time.monotonic()
        share = SLACK * left / (len(order) - at)
        turns.append(turn(name, job, how, device, folder, min(left, share)))
        if turns[-1]["code"] != 0:
            break
    row: dict[str, Any] = {"job": name, "bound": job.bound, "turns": turns, "cadence": cadence(folder)}
    bare, held = ([counted(each["windows_ms"]) for each in turns if each["how"] == how] for how in ("bare", "held"))
    if len(turns) < len(order) or turns[-1]["code"] != 0 or not all([*bare, *held]):
        code = turns[-1]["code"]
        return {**row, "error": "out of time" if code is None else f"{turns[-1]['how']} ended with {code}"}
    both = {"bare": bare, "held": held}
    middle = {how: [statistics.median(windows) for windows in all_of] for how, all_of in both.items()}
    first, second = middle["bare"][::2], middle["bare"][1::2]
    row |= {"middle_ms": middle}
    row |= {"bare_ms": statistics.median([each for windows in bare for each in windows])}
    row |= {"held_ms": statistics.median([each for windows in held for each in windows])}
    row |= {
        "ratio": row["held_ms"] / row["bare_ms"],
        "bare_over_bare": statistics.median(second) / statistics.median(first) if second else None,
    }
    took = {how: min(each["took_s"] for each in turns if each["how"] == how) for how in ("bare", "held")}
    return {**row, "bare_s": took["bare"], "held_s": took["held"]}


def journals(folder: Path) -> list[dict[str, Any]]:
    """What the held runs of a job wrote down: when they began and ended, and what a checkpoint took."""
    found = [path.read_text().splitlines() for path in sorted(folder.glob("runs/*/journal.jsonl"))]
    return [json.loads(line) for lines in found for line in lines]


def cadence(folder: Path) -> dict[str, Any] | None:
    """How often the newest held run committed, by its receipt."""
    receipts = sorted(folder.glob("runs/*/receipt.json"), key=lambda path: path.stat().st_mtime)
    found = json.loads(receipts[-1].read_text()).get("cadence") if receipts else None
    return found if isinstance(found, dict) else None


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| job | bare ms | held ms | ratio | bound | bare/bare | start to exit, bare and held | commits |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['job']} | {row['error']} | | | {row['bound']} | | | |")
            continue
        said = row["cadence"] or {}
        commits = f"each {said.get('every_steps')} steps, {said.get('commit_ms')} ms: {said.get('why')}"
        figures = f"{row['bare_ms']:.3f} | {row['held_ms']:.3f} | {row['ratio']:.3f} | {row['bound']}"
        noise = "" if row["bare_over_bare"] is None else f"{row['bare_over_bare']:.3f}"
        took = f"{row['bare_s']:.1f} s, {row['held_s']:.1f} s"
        lines.append(f"| {row['job']} | {figures} | {noise} | {took} | {commits} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for all jobs together")
    parser.add_argument("--jobs", default="", help="names, with commas; all of the device's without it")
    parser.add_argument("--out", type=Path, default=Path("cost"), help="a folder for cost.json and cost.md")
    parser.add_argument("--turns", type=int, default=4, choices=range(2, 25, 2), help="bare and held: how many")
    parser.add_argument("--keep-journals", action="store_true", help="put the journals of held runs into cost.json")
    parser.add_argument("--quick", action="store_true", help="tiny jobs: does this file work?")
    args = parser.parse_args()
    device = "cuda:0" if args.device == "cuda" else args.device
    jobs = QUICK if args.quick else CPU if device == "cpu" else CUDA
    names = [name for name in args.jobs.split(",") if name] or list(jobs)
    unknown = [name for name in names if name not in jobs]
    if unknown:
        parser.error(f"no job {', '.join(unknown)} for {device}; there are {', '.join(jobs)}")
    args.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + args.limit
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-cost-") as kept:
        if device != "cpu":  # its verdict is kept, and no run waits for it
            env = {**os.environ, "PYTHONPATH": str(SOURCE), "HOLDFAST_STATE": str(Path(kept, "state"))}
            subprocess.run([sys.executable, "-m", "holdfast", "doctor", "--device", device], env=env, check=False)
        for at, name in enumerate(names):
            share = (until - time.monotonic()) / (len(names) - at)
            folder = Path(kept, name)
            folder.mkdir()
            rows.append(measure(name, jobs[name], device, folder, share, TURNS * (args.turns // 2)))
            if args.keep_journals:
                rows[-1]["journals"] = journals(folder)
            if "error" in rows[-1]:
                rows[-1]["output"] = (folder / "output.txt").read_text(errors="replace")[-4000:]
            (args.out / "cost.json").write_text(json.dumps({"device": device, "jobs": rows}, indent=1) + "\n")
            (args.out / "cost.md").write_text(table(rows))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
