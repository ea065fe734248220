"""Four ranks that share one card over gloo, and a fault of the device in one of them.

    python benchmarks/shared_card.py --out DIR                  # needs a CUDA card; four minutes
    python benchmarks/shared_card.py --out DIR --faults ,wrong:2:25           # wrong numbers alone
    python benchmarks/shared_card.py --device cpu --quick       # does this file work? Without faults of a card
    python benchmarks/shared_card.py --device pretend --faults ,wrong:2:25    # the same with pretended cards

Each fault is a launch of its own, beside one without a fault: what was blamed, whether the weights are equal, how
many processes were replaced, and how long the others waited. `shared_card.json` is written again after each.

After wrong numbers the rank goes on on the CPU, with the others on the card: then the weights are not equal to the last
bit, and `apart` is their largest distance, over the largest weight. Each launch has a ledger of its own: what is done
to the card here is not held against it later.
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

from common import ROOT, STATE, gpu, machine, versions

from holdfast.injection import ailments

JOB = ROOT / "benchmarks" / "jobs" / "shared_card.py"
FAULTS = ("", "assert:2:25", "memory:1:25", "endless:3:25", "wrong:2:25")
LOOK_ALWAYS = "sentinel.cost=100"
"""Each step is looked at and waited for. The error is planted in the process of the rank, and not in the fresh process
that an ordinary look has confirm it; here the rank itself repeats the operator."""


def launch(folder: Path, device: str, ranks: int, fault: str, seconds: float) -> dict[str, Any]:
    seen = folder / "seen"
    seen.mkdir(parents=True)
    words = [f"fault={fault}", f"seen={seen}", f"run.folder={folder}"]
    more = {STATE: str(folder / "state")}
    if fault.startswith("wrong"):
        words.append(LOOK_ALWAYS)
        more |= _pretended(folder, device, fault)
    command = [sys.executable, "-m", "holdfast", "launch", "--nproc", str(ranks), "--device", device, str(JOB), "-q"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    began = time.monotonic()
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            [*command, *words], stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path, **more}, cwd=folder
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
        words_of = ("text", "sentence")
        row["told"] = [
            event.get("text") or event.get("sentence")
            for event in events
            if event["event"] in ("trust", "verdict", "note", "undone") and any(event.get(each) for each in words_of)
        ]
        row["undone"] = [(event["from_step"], event["to_step"]) for event in events if event["event"] == "undone"]
        row["workers"] = sorted(event["pid"] for event in events if event["event"] == "worker")
        receipt = journal.parent / "receipt.json"
        if receipt.exists():
            told = json.loads(receipt.read_text())
            row |= {key: told.get(key) for key in ("steps", "survived", "steps_repeated", "weights_sha256")}
    if code != 0:
        row["output"] = (folder / "output.txt").read_text(errors="replace")[-2000:]
    return row


def _pretended(folder: Path, device: str, fault: str) -> dict[str, str]:
    """A pretended card is wrong by what a file says of it; on a real one the job itself plants the error."""
    if not device.startswith("pretend"):
        return {}
    _, rank, step = fault.split(":")
    label = device if ":" in device else f"{device}:{rank}"
    ailment = ailments.Ailment("wrong", step=int(step), times=None, device=label)
    return {ailments.VARIABLE: str(ailments.write(folder / "pretend.json", [ailment]))}


def apart(first: Path, other: Path) -> float | None:
    """The largest distance of two weights, over the largest weight; None where one has no result."""
    from safetensors.torch import load_file

    found = [next(iter(each.glob("shared_card-*/final.safetensors")), None) for each in (first, other)]
    if found[0] is None or found[1] is None:
        return None
    one, two = load_file(found[0]), load_file(found[1])
    if one.keys() != two.keys():
        return None
    largest = max(float(each.abs().max()) for each in one.values())
    return max(float((one[name] - two[name]).abs().max()) for name in one) / largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for each launch")
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
            row["apart"] = apart(Path(kept, "0"), Path(kept, str(at)))
            found["rows"].append(row)
            (args.out / "shared_card.json").write_text(json.dumps(found, indent=1) + "\n")
            print(json.dumps({key: value for key, value in row.items() if key != "output"}), flush=True)
            print(row.get("output", ""), flush=True)
    return int(any(row["code"] != 0 for row in found["rows"]))


if __name__ == "__main__":
    sys.exit(main())
