"""What only a real CUDA device can show; `make hardware` runs it and keeps the result.

    python benchmarks/hardware.py --out benchmarks/results/hardware-h200.json     # within 8 minutes on an H200
    python benchmarks/hardware.py --parts sentinel                                # only if asked for: it takes long
    python benchmarks/hardware.py --quick --device cpu                            # does this file work? Keeps nothing

The cost of protecting every step; a cap on the device's memory; faults made by the device itself (out of memory,
device-side assert, illegal address, a kernel that does not end) and by the system, against undisturbed references.

The file is written again after every part, so that a run which is cut keeps what it had. A part that fails is kept as
its error and does not stop the others; one for which no time is left (`--limit`) is kept as skipped. The exit code is 1
if a part failed or was skipped, or a bound of the project is broken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import (
    JOBS,
    ROOT,
    Bound,
    adopt,
    cost,
    events,
    exactly,
    gpu,
    machine,
    say,
    told,
    train,
    unharmed,
    versions,
    write,
)

from holdfast.injection.chaos import FaultPlan
from holdfast.testing import experiment

JOB = JOBS / "cuda_job.py"
FAULTS = (
    "cuda_oom@20:forward", "cuda_oom@25:backward", "oom_in_step@30", "cuda_assert@40", "cuda_illegal@50",
    "endless_kernel@60", "sigkill@80:optimizer", "segfault@90", "abort@100", "exit@110", "sigstop@120",
    "hang_c@140", "hang_gil@150", "nursery_kill@170", "keeper_kill@180",
)  # fmt: skip
KILLS = ("sigkill", "cuda_assert", "cuda_illegal")
SIZES = {"3m": ("size=3m", "rounds=16", "steps=50"), "100m": ("size=100m", "rounds=8", "steps=10")}
"""About a minute of training each on an H200, five loops together."""
STAY = "retry.in_a_row=1000"
"""A device that fails as often as it does here would be left: then there would be nothing to compare."""
PATIENCE = 240.0
QUICK = ("size=tiny", "rounds=1", "steps=1")


@dataclass(frozen=True)
class Order:
    """What the parts need to know."""

    device: str
    scratch: Path
    kills: int
    quick: bool

    @property
    def runs(self) -> Path:
        return self.scratch / "runs"

    def makes(self, fault: str) -> bool:
        """Can this device make that fault? (The CPU can try this file out.)"""
        return self.device.startswith("cuda") or not fault.startswith(("cuda", "endless"))

    @property
    def words(self) -> list[str]:
        """For cuda_job.py; with small pictures a CPU is fast enough for a smoke test."""
        return [f"run.device={self.device}", *(["side=8"] if self.quick else [])]

    def experiment(self, plan: Callable[[int], FaultPlan], *words: str) -> tuple[experiment.Result, float]:
        began = time.monotonic()
        done = experiment.run(
            JOB,
            [*self.words, *words],
            plan,
            runs=self.runs,
            flags=("-q",),
            say=lambda text: say(f"  {text}"),
        )
        return done, round(time.monotonic() - began, 1)


# The parts --------------------------------------------------------------------------------------------------


def overhead(order: Order, size: str) -> dict[str, Any]:
    """The same loop bare, under holdfast, Accelerate and Lightning, in turns."""
    result = order.scratch / f"{size}.json"
    words = [*(QUICK if order.quick else SIZES[size]), f"result={result}", f"run.device={order.device}"]
    train(words, order.runs, job=JOBS / "overhead.py", patience=PATIENCE)
    report: dict[str, Any] = json.loads(result.read_text())
    return report


def memory(order: Order) -> dict[str, Any]:
    """A real cap on the device: splitting and growing back; a batch that never fits goes to the CPU."""
    # Neither normalisation nor chance tells pieces from a whole batch.
    plain = [*order.words, "epochs=3", "norm=false", "dropout=0", "sgd=true"]
    whole = train(plain, order.runs, job=JOB, patience=PATIENCE)
    found = {}
    for name, words in {
        "split": ["greedy=10", "need_gb=2", "cap_gb=1.5", "oom.grow_back_steps=4"],
        "cpu_batch": ["greedy=40", "need_gb=200", "cap_gb=1.5"],
    }.items():
        summary = train([*plain, *words], order.runs, job=JOB, patience=PATIENCE)
        folder = Path(summary["folder"])
        weights = [Path(run["folder"]) / "final.safetensors" for run in (whole, summary)]
        actions = [f"{event.data['action']} {event.data['reason']}" for event in events(folder, "fault")]
        found[name] = {
            "receipt": summary["receipt"],
            "max_rel_diff": experiment.max_relative_difference(*weights),
            "actions": actions[:12],
            "notes": [event.data["text"] for event in events(folder, "note")][:6],
        }
    return found


def memory_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        exactly(f"{name} was done", any(action.startswith(name) for action in row["actions"]), True, quick=False)
        for name, row in measured.items()
    ]


def faults(order: Order) -> dict[str, Any]:
    """Every fault of the table in one run; the weights must be those of two undisturbed runs."""
    plan = FaultPlan.parse(",".join(fault for fault in FAULTS if order.makes(fault)))
    result, seconds = order.experiment(lambda _steps: plan, "watchdog.floor=3s", STAY)
    folder = Path(result.summary["folder"])

    def rows(kind: str, *keys: str) -> list[dict[str, Any]]:
        return [{key: event.data.get(key) for key in keys} for event in events(folder, kind)]

    return {
        "receipt": result.receipt,
        "seconds": seconds,
        "faults": rows("fault", "code", "kind", "step", "phase", "sentence", "action"),
        "recovered": rows("recovered", "step", "seconds", "lost_s", "in_process"),
    }


def kills(order: Order) -> dict[str, Any]:
    """Death to next committed step, many times."""
    kinds = [kind for kind in KILLS if order.makes(kind)]
    result, seconds = order.experiment(lambda n: FaultPlan.random(order.kills, steps=n, seed=3, kinds=kinds), STAY)
    return {"receipt": result.receipt, "seconds": seconds}


def trust(order: Order) -> dict[str, Any]:
    """Two real sticky errors at one step: off the device, a probe, steps the CPU agrees with, and trusted again."""
    real = order.device.startswith("cuda")
    twice = "cuda_assert@40,cuda_assert@40" if real else "device_assert@40,device_assert@40"
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "plan.json"
        FaultPlan.parse(twice).write(path)
        words = [*order.words, "epochs=12", "probation.first_delay=1s"]
        summary = train(words, order.runs, job=JOB, patience=PATIENCE, HOLDFAST_CHAOS=str(path))
    folder = Path(summary["folder"])
    return {
        "receipt": summary["receipt"],
        "device_timeline": summary["device_timeline"],
        "verdicts": [event.data["sentence"] for event in events(folder, "verdict")],
        "trust": [{"time": event.time, "text": event.data["text"]} for event in events(folder, "trust")],
    }


def trust_bounds(measured: dict[str, Any]) -> list[Bound]:
    devices = [row["device"].partition(":")[0] for row in measured["device_timeline"]]
    return [
        exactly("off the device and back", [devices[0], "cpu", devices[0]], devices, quick=False),
        exactly("trusted again", "trusted again" in measured["trust"][-1]["text"], True, quick=False),
    ]


def sentinel(order: Order) -> dict[str, Any]:
    """Networks of all kinds on a device that is well: no operator is suspected."""
    kind, looks = order.device.partition(":")[0], 1 if order.quick else 20
    out = order.scratch / "sentinel.json"
    words = ["--device", kind, "--looks", str(looks), "--out", str(out)]
    subprocess.run([sys.executable, "-m", "benchmarks.zoo.looks", *words], check=True, timeout=400.0, cwd=ROOT)
    found: dict[str, Any] = json.loads(out.read_text())["summary"]
    return found


def sentinel_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [exactly(f"suspicions in {measured['compared']} operators", measured["suspicions"], 0)]


def harm(measured: dict[str, Any]) -> list[Bound]:
    return unharmed(measured["receipt"])


# All of them ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    measure: Callable[[Order], Any]
    bounds: Callable[[Any], list[Bound]]
    seconds: float
    """What it takes on an H200, at the most: with less time left it is not begun."""
    asked: bool = False
    """Only if it is named: it would not fit into one call with the others."""


PARTS = {
    "overhead-3m": Part(lambda order: overhead(order, "3m"), lambda report: [cost(report)], 90.0),
    "overhead-100m": Part(lambda order: overhead(order, "100m"), lambda report: [cost(report)], 95.0),
    "memory": Part(memory, memory_bounds, 50.0),
    "faults": Part(faults, harm, 85.0),
    "kills": Part(kills, harm, 85.0),
    "trust": Part(trust, trust_bounds, 60.0),
    "sentinel": Part(sentinel, sentinel_bounds, 260.0, asked=True),
}


def main() -> int:
    args = _arguments()
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-hardware-"))
    adopt(scratch)
    try:
        order = Order(args.device, scratch, args.kills, args.quick)
        return _all(args, order, scratch / "quick.json" if args.quick else args.out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path("hardware.json"))
    usual = ",".join(name for name, part in PARTS.items() if not part.asked)
    parser.add_argument("--parts", default=usual, help=f"any of {', '.join(PARTS)} (default: {usual})")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--limit", type=float, default=470.0, help="seconds; no part is begun that would pass it")
    parser.add_argument("--quick", action="store_true", help="a smoke test on any machine; its figures are not kept")
    args = parser.parse_args()
    unknown = [name for name in args.parts.split(",") if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return args


def _all(args: argparse.Namespace, order: Order, out: Path) -> int:
    began = time.monotonic()
    words = f"--device {args.device} --parts {args.parts} --kills {args.kills}"
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python benchmarks/hardware.py {words}",
        "machine": {"gpu": gpu(), **machine()},
        "versions": versions(),
        "seconds": 0.0,
    }
    bounds: list[Bound] = []
    wrong = []
    for name in args.parts.split(","):
        part, spent = PARTS[name], time.monotonic() - began
        say(f"{name}, after {spent:.0f} s")
        if spent + part.seconds > args.limit:
            report[name] = {"skipped": f"{args.limit - spent:.0f} s were left, it takes up to {part.seconds:.0f} s"}
            wrong.append(name)
        else:
            try:
                report[name] = part.measure(order)
                found = part.bounds(report[name])
            except Exception as error:  # one part that fails must not lose what the others measured
                traceback.print_exc()
                report[name] = {"error": f"{type(error).__name__}: {error}"}
                found = []
                wrong.append(name)
            bounds += found
            wrong += [bound.what for bound in told(found, quick=args.quick)]
        report["seconds"] = round(time.monotonic() - began, 1)
        write(out, report, bounds)
    say(json.dumps(report, indent=1, default=str)[-9000:])
    say(f"{report['seconds']} s; " + (f"not as it should be: {', '.join(wrong)}" if wrong else "all as it should be"))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
