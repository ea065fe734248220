"""Looks at networks that are trained a little on a right device: every disagreement is one too many.

    python -m benchmarks.zoo.looks --looks 5 --held-out no                 # on the CPU, which pretends to be a device
    python -m benchmarks.zoo.looks --device cuda --looks 200 --out zoo.json

Every look is judged in this process. One line a network and precision; with --out, a JSON file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples")]

from benchmarks.zoo.networks import make, names  # noqa: E402

from holdfast.worker.operators.comparison import compare  # noqa: E402
from holdfast.worker.operators.recorder import Recorder  # noqa: E402

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def look_at(
    name: str, precision: str, *, device: str = "cpu", looks: int = 5, operators: int = 24, channels_last: bool = False
) -> dict[str, Any]:
    """Train a network a few steps and look at each."""
    place = torch.device(device)
    network = make(name)
    model = network.model.to(place)
    if channels_last and network.images:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    recorder = Recorder(place, label="pretend:0" if device == "cpu" else device, seed=0)
    recorder.operators = operators
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    scaler = torch.amp.GradScaler(place.type, enabled=precision == "fp16", init_scale=2.0**10)
    kind = PRECISIONS[precision]
    compared, skipped, wrong = 0, Counter[str](), []
    began = time.perf_counter()
    for number in range(looks):
        with recorder.look(number):
            with torch.autocast(place.type, kind or torch.bfloat16, enabled=kind is not None):
                loss = network.loss(_to(network.batch(), place))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        recorder.wait()
        for case in recorder.taken():
            finding = compare(case)
            compared += not finding.skipped
            if finding.skipped:
                skipped[f"{case.title}: {finding.skipped}"] += 1
            if not finding.agrees:
                wrong.append(finding.text)
    return {
        "network": name, "precision": precision, "channels_last": channels_last and network.images, "looks": looks,
        "compared": compared, "suspicions": wrong, "skipped": dict(skipped), "left_alone": dict(recorder.left_alone),
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _to(each, device) for key, each in batch.items()}
    return [_to(each, device) for each in batch]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--looks", type=int, default=5)
    parser.add_argument("--operators", type=int, default=24)
    parser.add_argument("--precisions", default="fp32,bf16,fp16")
    parser.add_argument("--networks", default="")
    parser.add_argument("--held-out", choices=["yes", "no", "both"], default="both")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    torch.set_num_threads(1)
    held = {"yes": True, "no": False, "both": None}[words.held_out]
    rows = []
    for name in words.networks.split(",") if words.networks else names(held_out=held):
        for number, precision in enumerate(words.precisions.split(",")):
            try:
                row = look_at(name, precision, device=words.device, looks=words.looks, operators=words.operators,
                              channels_last=number % 2 == 1)  # fmt: skip
            except Exception as error:  # a network that this version of its library cannot train says so
                row = {"network": name, "precision": precision, "failed": f"{type(error).__name__}: {str(error)[:200]}"}
            rows.append(row)
            print(json.dumps(row), flush=True)
    told = [row for row in rows if "failed" not in row]
    summary = {
        "networks": len({row["network"] for row in told}), "compared": sum(row["compared"] for row in told),
        "suspicions": sum(len(row["suspicions"]) for row in told), "failed": len(rows) - len(told),
    }  # fmt: skip
    print(json.dumps(summary))
    if words.out:
        words.out.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
