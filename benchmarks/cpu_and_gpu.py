"""A card and the CPU beside it: are the weights exact, and does a step get faster?

    python benchmarks/cpu_and_gpu.py --out DIR                    # needs a CUDA card; about ten minutes
    python benchmarks/cpu_and_gpu.py --device cpu --quick         # does this file work? With a device that is pretended

`exact`: 3:1 parts, float64, with and without DistributedDataParallel, against one process on the same device: the
largest difference of a weight. Then each job is launched with `--devices CARD,cpu` until holdfast has said whether the
CPU helps: milliseconds for a step without and with it, and the parts. `cpu_and_gpu.json` is written after each row.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, gpu, machine, versions

JOB = ROOT / "benchmarks" / "jobs" / "cpu_and_gpu.py"
KINDS = {
    "mlp": ("width=1024", "batch=256"),
    "small": ("width=64", "batch=32"),
    "conv": ("batch=128",),
    "read": ("batch=32",),
}
BOUND = 1e-9
"""In float64, after 64 steps."""


def _start(folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with open(folder / "output.txt", "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words, f"run.folder={folder}", "-q"],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path},
            cwd=folder,
        )


def _end(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Its exit code; None for one that had to be killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(60.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def _events(folder: Path) -> list[dict[str, Any]]:
    found = []
    for journal in folder.glob("*/journal.jsonl"):
        for line in journal.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the line that is being written
    return found


def _output(folder: Path) -> str:
    texts = [folder / "output.txt", *folder.glob("*/output*.log"), *folder.glob("*/ranks.log")]
    return "\n".join(f"== {each.name}\n{each.read_text(errors='replace')[-1500:]}" for each in texts if each.exists())


def exact(folder: Path, device: str, ddp: bool, seconds: float) -> dict[str, Any]:
    from safetensors.torch import load_file

    job = [str(JOB), "double=true", "epochs=2", "length=2048", "batch=64", f"ddp={str(ddp).lower()}"]
    row: dict[str, Any] = {"row": "exact", "ddp": ddp}
    ways = {
        "shared": ["launch", "--devices", f"{device},cpu", "--shares", "3:1", *job],
        "alone": ["train", *job, "--device", device],
    }
    weights = {}
    for name, words in ways.items():
        row[f"code_{name}"] = _end(_start(folder / name, words), seconds)
        for path in (folder / name).glob("*/final.safetensors"):
            weights[name] = load_file(path)
        if name not in weights:
            row["output"] = _output(folder / name)
            return row
    shared, alone = weights["shared"], weights["alone"]
    row["difference"] = max(float((shared[key].double() - value.double()).abs().max()) for key, value in alone.items())
    row["holds"] = row["difference"] < BOUND
    return row


def shared(folder: Path, device: str, kind: str, words: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Until the verdict, and a few seconds more; then the run is asked to stop."""
    began = time.monotonic()
    launch = ["launch", "--devices", f"{device},cpu", str(JOB), f"kind={kind}", *words]
    process = _start(folder, launch)
    verdict = None
    while process.poll() is None and verdict is None and time.monotonic() - began < seconds:
        time.sleep(0.5)
        notes = [event for event in _events(folder) if event.get("event") == "note"]
        verdict = next((each for each in notes if str(each.get("text", "")).startswith("the CPU ")), None)
    row: dict[str, Any] = {"row": kind, "job": " ".join(words), "seconds": round(time.monotonic() - began, 1)}
    time.sleep(3.0)
    if process.poll() is None:
        process.terminate()
    row["code"] = _end(process, 60.0)
    events = _events(folder)
    row["parts"] = [each["text"] for each in events if str(each.get("text", "")).startswith("from step ")]
    row["faults"] = [each.get("sentence") for each in events if each.get("event") == "fault"]
    row["said"] = None if verdict is None else verdict["text"]
    if verdict is not None and verdict.get("step_ms"):
        without, with_cpu = verdict["step_ms"]
        row |= {"step_ms_without": without, "step_ms_with": with_cpu, "ratio": round(with_cpu / without, 3)}
    row["holds"] = verdict is not None and not row["faults"]
    if not row["holds"]:
        row["output"] = _output(folder)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda:0", help="cpu stands for a device that is pretended")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for each launch")
    parser.add_argument("--rows", default=",".join(["exact", *KINDS]))
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--quick", action="store_true", help="exact and one job")
    args = parser.parse_args()
    rows = ["exact", "read"] if args.quick else args.rows.split(",")
    device = "pretend:0" if args.device == "cpu" else args.device
    args.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "versions": versions(), "gpu": gpu(), "device": device, "rows": []}

    def keep(row: dict[str, Any]) -> None:
        found["rows"].append(row)
        (args.out / "cpu_and_gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps({key: value for key, value in row.items() if key != "output"}), flush=True)
        print(row.get("output", ""), flush=True)

    with tempfile.TemporaryDirectory(prefix="holdfast-cpu-and-gpu-") as kept:
        for name in rows:
            if name == "exact":
                for ddp in (False, True):
                    keep(exact(Path(kept, f"exact-{ddp}"), device, ddp, args.limit))
            else:
                words = KINDS[name]
                kind = "mlp" if name == "small" else name
                keep(shared(Path(kept, name), device, kind, words, args.limit))
    return int(not all(row.get("holds") for row in found["rows"]))


if __name__ == "__main__":
    sys.exit(main())
