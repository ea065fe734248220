"""The figures of the runtime on a CPU; `make bench` runs them and keeps the results.

    python benchmarks/bench.py                          # everything, about an hour and a half on two cores
    python benchmarks/bench.py --parts overhead,hangs   # some of it
    python benchmarks/bench.py --quick                  # every part for a moment: does it work? Keeps no figures

Each part writes benchmarks/results/PART-cpu.json with date, machine, versions, command, and the bounds of the project
that its figures have to keep. A part that fails writes nothing and does not stop the others. The exit code is 1 if a
part failed or a bound is broken. Speed is measured as a ratio inside one run, because the machine may be busy with
other things; the other times are best measured on a quiet one, and the load at the end of each part is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import blame
import detection
import detection_learning
import doctor
import ecosystem
import eeg_data
import eeg_preparing
import eeg_training
import external
import http_stacks
import inquiry
import leaks
import peers
import ranks
import ranks_compared
import serving
import spares
import storage
import testers
import times
import training
import watching
from common import RESULTS, Bound, adopt, machine, say, told, versions, write

import idioms
import monitor
import optimize
import planning


class Part(NamedTuple):
    """What to measure, and what its figures have to keep."""

    measure: Callable[[Path, bool], dict[str, Any]]
    bounds: Callable[[dict[str, Any]], list[Bound]]


PARTS = {
    "overhead": Part(training.overhead, training.overhead_bounds),
    "faults": Part(training.faults, training.faults_bounds),
    "recovery": Part(training.recovery, training.recovery_bounds),
    "blame": Part(blame.measure, blame.bounds),
    "inquiry": Part(inquiry.inquiry, inquiry.inquiry_bounds),
    "storm": Part(inquiry.storm, inquiry.storm_bounds),
    "times": Part(times.times, times.times_bounds),
    "hangs": Part(training.hangs, training.hangs_bounds),
    "growth": Part(training.growth, training.growth_bounds),
    "monitor": Part(monitor.monitor, monitor.monitor_bounds),
    "peers": Part(peers.peers, peers.peers_bounds),
    "external": Part(external.external, external.external_bounds),
    "external-cost": Part(external.cost, external.cost_bounds),
    "storage": Part(storage.storage, storage.storage_bounds),
    "watching": Part(watching.watching, watching.watching_bounds),
    "idioms": Part(idioms.idioms, idioms.idioms_bounds),
    "leaks": Part(leaks.leaks, leaks.leaks_bounds),
    "ranks": Part(ranks.ranks, ranks.ranks_bounds),
    "ranks_compared": Part(ranks_compared.ranks_compared, ranks_compared.ranks_compared_bounds),
    "spares": Part(spares.spares, spares.spares_bounds),
    "doctor": Part(doctor.doctor, doctor.doctor_bounds),
    "testers": Part(testers.testers, testers.testers_bounds),
    "eeg-reading": Part(eeg_data.reading, eeg_data.reading_bounds),
    "eeg-preparing": Part(eeg_preparing.preparing, eeg_preparing.preparing_bounds),
    "eeg-memory": Part(eeg_data.memory, eeg_data.memory_bounds),
    "eeg-truth": Part(eeg_data.truth, eeg_data.truth_bounds),
    "soak": Part(training.soak, training.soak_bounds),
    "eeg-step": Part(eeg_training.step, eeg_training.step_bounds),
    "eeg-compile": Part(eeg_training.compiling, eeg_training.compiling_bounds),
    "eeg-heads": Part(eeg_training.heads, eeg_training.heads_bounds),
    "eeg-demo": Part(eeg_training.demo, eeg_training.demo_bounds),
    "detection-steps": Part(detection.steps, detection.steps_bounds),
    "detection-large": Part(detection.large, detection.large_bounds),
    "detection-faults": Part(detection.faults, detection.faults_bounds),
    "detection-presets": Part(detection_learning.presets, detection_learning.presets_bounds),
    "detection-learning": Part(detection_learning.learning, detection_learning.learning_bounds),
    "detection-thermal": Part(detection_learning.thermal, detection_learning.thermal_bounds),
    "plan": Part(planning.measure, planning.bounds),
    "ecosystem": Part(ecosystem.measure, ecosystem.bounds),
    "hunting": Part(ecosystem.hunting, ecosystem.hunting_bounds),
    "optimize-eeg": Part(optimize.eeg, optimize.eeg_bounds),
    "optimize-eeg-run": Part(optimize.eeg_run, optimize.run_bounds),
    "optimize-detector": Part(optimize.detector, optimize.detector_bounds),
    "optimize-policy": Part(optimize.policy, optimize.policy_bounds),
    "stacks": Part(http_stacks.stacks, http_stacks.stacks_bounds),
    "serving": Part(serving.serving, serving.serving_bounds),
}


GIVEN = dict(os.environ)
"""Before a part sets variables for its own processes."""


def _restrictions(part: str) -> str:
    """Variables that make a part smaller belong to the command that repeats it; where a set lies does not."""
    only = {detection_learning.BCCD: "detection-learning", detection_learning.HITUAV: "detection-thermal"}
    chosen = sorted(
        (key, value)
        for key, value in GIVEN.items()
        if key.startswith("HOLDFAST_BENCH_")
        and all(part == of for variable, of in only.items() if key.startswith(variable))
    )
    return "".join(f"{key}={shlex.quote(_short(value))} " for key, value in chosen)


def _short(value: str) -> str:
    return "/".join(["…", *Path(value).parts[-2:]]) if Path(value).is_absolute() else value


def main() -> int:
    args = _arguments()
    if args.quick:
        with tempfile.TemporaryDirectory(prefix="holdfast-quick-") as place:
            return _all(args.parts, Path(place), quick=True)
    return _all(args.parts, RESULTS, quick=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test of about three minutes; its figures are not kept"
    )
    args = parser.parse_args()
    args.parts = [part for name in args.parts.split(",") for part in _named(name)]
    unknown = [name for name in args.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return args


def _named(name: str) -> list[str]:
    """A part, or all that begin with this word: `optimize` is optimize-eeg, optimize-detector and the others."""
    return [name] if name in PARTS else [each for each in PARTS if each.startswith(f"{name}-")] or [name]


def _all(names: list[str], results: Path, *, quick: bool) -> int:
    """One part after the other, whatever happens in them."""
    wrong: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        about = (PARTS[name].measure.__doc__ or "").splitlines()[0]
        say(f"[{number}/{len(names)}] {name}: {about}")
        began = time.monotonic()
        try:
            broken = _one(name, results, quick=quick)
        except Exception as error:
            traceback.print_exc()
            wrong[name] = f"failed, nothing kept: {type(error).__name__}: {error}"
        else:
            if broken:
                wrong[name] = "; ".join(f"{bound.what}: {bound.measured}, bound {bound.limit}" for bound in broken)
        say(f"  {time.monotonic() - began:.0f} s")
    for name in names:
        say(f"{'✗' if name in wrong else '✓'} {name}{'  ' + wrong[name] if name in wrong else ''}")
    return 1 if wrong else 0


def _one(name: str, results: Path, *, quick: bool) -> list[Bound]:
    """Measure, keep, and compare; returns the bounds that are broken."""
    part, began = PARTS[name], time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    adopt(scratch)
    try:
        measured = part.measure(scratch, quick)
    except Exception:
        say(f"  its runs are in {scratch}")
        raise
    shutil.rmtree(scratch, ignore_errors=True)  # a keeper may still be at work in there
    bounds = part.bounds(measured)
    record = {
        "part": name,
        "date": time.strftime("%Y-%m-%d"),
        "command": f"{_restrictions(name)}python benchmarks/bench.py --parts {name}{' --quick' if quick else ''}",
        "machine": machine(),
        "versions": versions(),
        "seconds": round(time.monotonic() - began, 1),
        "measured": measured,
    }
    path = results / f"{name}-cpu.json"
    write(path, record, bounds)
    say(f"  {json.dumps(measured)[:2000]}")
    if not quick:
        say(f"  kept in {path.relative_to(results.parent.parent)}")
    return told(bounds, quick=quick)


if __name__ == "__main__":
    raise SystemExit(main())
