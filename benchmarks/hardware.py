"""What only a real CUDA device can show; `make hardware` runs it and keeps the result.

    python benchmarks/hardware.py --out benchmarks/results/hardware-h200.json

Faults made by the device itself (out of memory, device-side assert, illegal address, a kernel that does not end) and
by the system, in one run each against undisturbed references, and the cost of protecting every step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from holdfast.testing import experiment  # noqa: E402
from holdfast.testing.chaos import FaultPlan  # noqa: E402

JOB = ROOT / "benchmarks" / "jobs" / "cuda_job.py"
OVERHEAD = ROOT / "benchmarks" / "jobs" / "overhead.py"
FAULTS = (
    "cuda_oom@20:forward", "cuda_oom@25:backward", "oom_in_step@30", "cuda_assert@40", "cuda_illegal@50",
    "endless_kernel@60", "sigkill@80:optimizer", "segfault@90", "abort@100", "exit@110", "sigstop@120",
    "hang_c@140", "hang_gil@150", "nursery_kill@170", "keeper_kill@180",
)  # fmt: skip


def faults(device: str, runs: Path) -> dict[str, Any]:
    """Every fault of the table in one run; the weights must be those of two undisturbed runs."""
    plan = FaultPlan.parse(",".join(FAULTS))
    began = time.time()
    result = experiment.run(
        JOB, [f"run.device={device}", "watchdog.floor=3s"], lambda _steps: plan, runs=runs, say=print
    )
    events = _events(Path(result.summary["folder"]))
    return {
        "receipt": result.receipt,
        "seconds": round(time.time() - began, 1),
        "faults": [
            {key: event.get(key) for key in ("code", "kind", "step", "phase", "sentence", "action")}
            for event in events
            if event["event"] == "fault"
        ],
        "recovered": [
            {key: event.get(key) for key in ("step", "seconds", "lost_s", "in_process")}
            for event in events
            if event["event"] == "recovered"
        ],
    }


def random_kills(device: str, runs: Path, count: int) -> dict[str, Any]:
    """Death to next committed step, many times."""
    kinds = ("sigkill", "cuda_assert", "cuda_illegal")
    result = experiment.run(
        JOB,
        [f"run.device={device}"],
        lambda steps: FaultPlan.random(count, steps=steps, seed=3, kinds=kinds),
        runs=runs,
        say=print,
    )
    return {"receipt": result.receipt}


def memory(device: str, runs: Path) -> dict[str, Any]:
    """A real cap on the device: splitting and growing back; a batch that never fits goes to the CPU."""
    found = {}
    plain = ["epochs=3", "norm=false", "dropout=0", "sgd=true"]  # neither normalisation nor chance tells pieces apart
    whole = _train(plain, device, runs)
    for name, words in {
        "split": [*plain, "greedy=10", "need_gb=2", "cap_gb=1.5", "oom.grow_back_steps=4"],
        "cpu_batch": [*plain, "greedy=40", "need_gb=200", "cap_gb=1.5"],
    }.items():
        summary = _train(words, device, runs)
        folder = Path(summary["folder"])
        difference = experiment.max_relative_difference(
            Path(whole["folder"]) / "final.safetensors", folder / "final.safetensors"
        )
        events = _events(folder)
        found[name] = {
            "receipt": summary["receipt"],
            "max_rel_diff": difference,
            "actions": [event["action"] + " " + event["reason"] for event in events if event["event"] == "fault"][:12],
            "notes": [event["text"] for event in events if event["event"] == "note"][:6],
        }
    return found


def overhead(device: str, runs: Path, scratch: Path) -> list[dict[str, Any]]:
    found = []
    for size, rounds, steps in (("3m", 24, 50), ("100m", 8, 10)):
        result = scratch / f"{size}.json"
        _train(
            [f"size={size}", f"rounds={rounds}", f"steps={steps}", f"result={result}"], device, runs, OVERHEAD,
        )  # fmt: skip
        found.append(json.loads(result.read_text()))
        print(json.dumps(found[-1]))
    return found


def _train(words: list[str], device: str, runs: Path, job: Path = JOB) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "train", str(job), *words,
         f"run.device={device}", f"run.folder={runs}", "--json"],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    summary = json.loads(done.stdout)
    assert summary["state"] == "FINISHED", summary
    return summary


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path("hardware.json"))
    parser.add_argument("--parts", default="overhead,memory,faults,kills")
    parser.add_argument("--kills", type=int, default=30)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python benchmarks/hardware.py --device {args.device} --parts {args.parts} --kills {args.kills}",
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
    }
    with tempfile.TemporaryDirectory(prefix="holdfast-hardware-") as scratch:
        runs = Path(scratch) / "runs"
        for part in args.parts.split(","):
            began = time.time()
            try:
                if part == "overhead":
                    report[part] = overhead(args.device, runs, Path(scratch))
                elif part == "memory":
                    report[part] = memory(args.device, runs)
                elif part == "faults":
                    report[part] = faults(args.device, runs)
                elif part == "kills":
                    report[part] = random_kills(args.device, runs, args.kills)
            except Exception as error:  # one part that fails must not lose what the others measured
                report[part] = {"error": f"{type(error).__name__}: {error}"}
            print(f"{part}: {time.time() - began:.0f} s", flush=True)
            args.out.write_text(json.dumps(report, indent=2, default=str) + "\n")
    print(json.dumps(report, indent=1, default=str)[-9000:])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
