"""The same wrong kernels, seen by several: the sentinel, thresholds of gradient norms, loss spikes, TrainCheck.

    python benchmarks/side_by_side.py --networks mlp,deep_cnn,tied --out benchmarks/results/sentinel-others-cpu.json
    python benchmarks/side_by_side.py --traincheck VENV/bin --networks mlp --only traincheck --out traincheck.json

On the CPU. Each training has 40 steps, and the kernel is wrong from the twentieth on. A threshold that is crossed in
the same training without the error is no finding. TrainCheck learns its invariants from a right training, and what it
says about another right one is taken away from what it says about a wrong one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, machine, say, versions, write

sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
from benchmarks.zoo.planted import KINDS, find  # noqa: E402

JOB = ROOT / "benchmarks" / "jobs" / "plain_steps.py"
STEPS, BEGINS = 40, 20
TIMES, SIGMAS = 10.0, 6.0
"""What people take for a jump: ten times the usual, or six standard deviations above it."""


def trained(network: str, kind: str, folder: Path) -> dict[str, Any]:
    out = folder / "steps.json"
    out.unlink(missing_ok=True)
    os.environ |= {"HOLDFAST_NETWORK": network, "HOLDFAST_PLANTED": kind, "HOLDFAST_STEPS": str(STEPS),
                   "HOLDFAST_BEGINS": str(BEGINS), "HOLDFAST_OUT": str(out)}  # fmt: skip
    runpy.run_path(str(JOB))
    told: dict[str, Any] = json.loads(out.read_text())
    return told


def crossed(values: list[float]) -> bool:
    """Whether a value after the change is not finite, or jumps above those before it."""
    before, after = values[BEGINS // 2 : BEGINS], values[BEGINS:]
    usual, spread = statistics.median(before), statistics.pstdev(before)
    high = max(TIMES * abs(usual), usual + SIGMAS * spread)
    sigma = usual + SIGMAS * spread
    return any(not math.isfinite(each) or each > high or each > sigma for each in after)


def row_of(network: str, kind: str, quiet: dict[str, Any], folder: Path) -> dict[str, Any]:
    wrong = trained(network, kind, folder)
    row: dict[str, Any] = {"network": network, "kind": kind, "target": wrong["target"]}
    if wrong["target"] is None:
        return {**row, "none": True}
    for place, name in enumerate(("loss spike", "gradient norm")):
        there, here = ([each[place] for each in told["rows"]] for told in (wrong, quiet))
        row[name] = crossed(there) and not crossed(here)
        row[f"{name}, also without the error"] = crossed(here)
    seen = find(network, kind, looks=50)
    return {**row, "sentinel": bool(seen["found"]), "sentinel, looks": seen["found"], "named": seen["named"]}


def traincheck(tools: Path, network: str, folder: Path, steps: int = 8) -> list[dict[str, Any]]:
    """Collect, infer, collect with invariants, check: as its documentation has it."""
    env = {**os.environ, "HOLDFAST_NETWORK": network, "HOLDFAST_STEPS": str(steps), "HOLDFAST_BEGINS": "2"}

    script = Path(shutil.copy(JOB, folder))  # it writes its own files beside it

    def collected(name: str, kind: str, seed: int, *more: str) -> Path:
        words = ["--pyscript", str(script), "--models-to-track", "model", "--output-dir", str(folder / name), *more]
        run = subprocess.run(
            [str(tools / "traincheck-collect"), *words], capture_output=True, text=True, check=False,
            env={**env, "HOLDFAST_PLANTED": kind, "HOLDFAST_SEED": str(seed)},
        )  # fmt: skip
        if "exited with error" in run.stdout + run.stderr:
            raise RuntimeError((run.stdout + run.stderr)[-300:])
        return folder / name

    right = collected("right", "", 0)
    invariants = folder / "invariants.json"
    subprocess.run([str(tools / "traincheck-infer"), "-f", str(right), "-o", str(invariants)], check=True,
                   capture_output=True, cwd=folder)  # fmt: skip
    usual = _failed(tools, collected("other", "", 1, "--invariants", str(invariants)), invariants, folder)
    say(f"invariants: {sum(1 for _ in invariants.open())}, of which fail in another right training: {len(usual)}")
    rows = []
    for number, kind in enumerate(KINDS):
        try:
            trace = collected(f"wrong-{number}", kind, 1, "--invariants", str(invariants))
            new = _failed(tools, trace, invariants, folder) - usual
            rows.append({"network": network, "kind": kind, "traincheck": bool(new), "invariants": sorted(new)[:3]})
        except Exception as error:
            rows.append({"network": network, "kind": kind, "failed": f"{type(error).__name__}: {str(error)[:200]}"})
        say(json.dumps(rows[-1]))
    return rows


def _failed(tools: Path, trace: Path, invariants: Path, folder: Path) -> set[str]:
    """The invariants that did not hold, as text."""
    results = folder / f"results-{trace.name}"
    subprocess.run(
        [str(tools / "traincheck-check"), "-f", str(trace), "-i", str(invariants), "-o", str(results)],
        check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    found: set[str] = set()
    for path in results.rglob("failed*.log"):
        for part in path.read_text(errors="replace").split("\n"):
            if "text_description" in part:
                found.add(part.strip()[:300])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="mlp,deep_cnn,tied")
    parser.add_argument("--traincheck", type=Path, help="the folder of its commands")
    parser.add_argument("--only", choices=["ours", "traincheck"], default="ours")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        for network in words.networks.split(","):
            if words.only == "traincheck":
                rows += traincheck(words.traincheck, network, Path(scratch))
                continue
            quiet = trained(network, "", Path(scratch))
            for kind in KINDS:
                rows.append(row_of(network, kind, quiet, Path(scratch)))
                say(json.dumps(rows[-1]))
    told = [row for row in rows if not row.get("none") and "failed" not in row]
    ways = ("sentinel", "gradient norm", "loss spike", "traincheck")
    summary = {way: f"{sum(bool(row[way]) for row in told if way in row)} of {sum(way in row for row in told)}"
               for way in ways if any(way in row for row in told)}  # fmt: skip
    say(json.dumps(summary))
    if words.out:
        write(words.out, {"command": f"python benchmarks/side_by_side.py {' '.join(sys.argv[1:])}",
                          "machine": machine(), "versions": versions(), "summary": summary, "rows": rows})  # fmt: skip


if __name__ == "__main__":
    main()
