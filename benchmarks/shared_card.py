"""Four ranks that share one card over gloo, and a fault of the device in one of them.

    python benchmarks/shared_card.py --out DIR                  # needs a CUDA card; three minutes
    python benchmarks/shared_card.py --device cpu --quick       # does this file work? Without faults of a card

Each fault is a launch of its own, beside one without a fault: what was blamed, whether the weights are equal, how
many processes were replaced, and how long the others waited. `shared_card.json` is written again after each.
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

JOB = ROOT / "benchmarks" / "jobs" / "shared_card.py"
FAULTS = ("", "assert:2:25", "memory:1:25", "endless:3:25")


def launch(folder: Path, device: str, ranks: int, fault: str, seconds: float) -> dict[str, Any]:
    seen = folder / "seen"
    seen.mkdir(parents=True)
    words = [f"fault={fault}", f"seen={seen}", f"run.folder={folder}"]
    command = [sys.executable, "-m", "holdfast", "launch", "--nproc", str(ranks), "--device", device, str(JOB), "-q"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    began = time.monotonic()
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            [*command, *words], stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path}, cwd=folder
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
            process.wait()
    row: dict[str, Any] = {"fault": fault, "code": code, "seconds": round(time.monotonic() - began, 1)}
    for journal in folder.glob("shared_card-*/journal.jsonl"):
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        kept = ("kind", "device", "step", "phase", "sentence", "action", "reason")
        found = [event for event in events if event["event"] == "fault"]
        row["faults"] = [{key: event.get(key) for key in kept} for event in found]
        row["recovered_s"] = [
            event["seconds"] for event in events if event["event"] == "recovered" and "seconds" in event
        ]
        row["workers"] = sorted(event["pid"] for event in events if event["event"] == "worker")
        receipt = journal.parent / "receipt.json"
        if receipt.exists():
            told = json.loads(receipt.read_text())
            row |= {key: told.get(key) for key in ("steps", "survived", "steps_repeated", "weights_sha256")}
    if code != 0:
        row["output"] = (folder / "output.txt").read_text(errors="replace")[-2000:]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for each launch")
    parser.add_argument("--faults", default=",".join(FAULTS), help="KIND:RANK:STEP, with commas; an empty one for none")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--quick", action="store_true", help="two ranks, no fault")
    args = parser.parse_args()
    faults, ranks = ([""], 2) if args.quick else (args.faults.split(","), args.ranks)
    args.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "versions": versions(), "gpu": gpu(), "ranks": ranks, "rows": []}
    with tempfile.TemporaryDirectory(prefix="holdfast-shared-card-") as kept:
        for at, fault in enumerate(faults):
            row = launch(Path(kept, str(at)), args.device, ranks, fault, args.limit)
            row["equal"] = row.get("weights_sha256") == (found["rows"] or [row])[0].get("weights_sha256") is not None
            found["rows"].append(row)
            (args.out / "shared_card.json").write_text(json.dumps(found, indent=1) + "\n")
            print(json.dumps({key: value for key, value in row.items() if key != "output"}), flush=True)
            print(row.get("output", ""), flush=True)
    return int(any(row["code"] != 0 for row in found["rows"]))


if __name__ == "__main__":
    sys.exit(main())
