"""Looks at networks that are trained a little on a right device: every disagreement is one too many.

    python -m benchmarks.zoo.looks --looks 5 --held-out no                 # on the CPU, which pretends to be a device
    python -m benchmarks.zoo.looks --device cuda --looks 200 --out zoo.json

Every look is judged in this process. One line a network and precision; with --out, a JSON file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples")]

from benchmarks.zoo.networks import make, names  # noqa: E402

from holdfast.worker.operators.case import Case  # noqa: E402
from holdfast.worker.operators.comparison import compare  # noqa: E402
from holdfast.worker.operators.confirmation import confirmed, repeat  # noqa: E402
from holdfast.worker.operators.recorder import Recorder  # noqa: E402

PRECISIONS = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def look_at(
    name: str, precision: str, *, device: str = "cpu", looks: int = 5, operators: int = 24, channels_last: bool = False,
    seconds: float = math.inf, keep: Path | None = None, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Train a network a little and look at random steps of it; on the CPU, where a step is dear, at each."""
    place = torch.device(device)
    _set_products(precision)
    network = make(name)
    torch.manual_seed(seed)
    model = network.model.to(place)
    if channels_last and network.images:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    recorder = Recorder(place, label="pretend:0" if device == "cpu" else device, seed=seed)
    recorder.operators, recorder.most_s = operators, math.inf
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    scaler = torch.amp.GradScaler(place.type, enabled=precision == "fp16", init_scale=2.0**10)
    kind = PRECISIONS[precision]
    told = Told()
    began = time.perf_counter()

    def step() -> None:
        with torch.autocast(place.type, kind or torch.bfloat16, enabled=kind is not None):
            loss = network.loss(_to(network.batch(), place, channels_last and network.images))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    chance = random.Random(seed + 1)
    for number in range(looks):
        while device != "cpu" and chance.random() < 0.5:
            step()
        with recorder.look(number):
            step()
        recorder.wait()
        before = time.perf_counter()
        for case in recorder.taken():
            told.hear(case, place, keep)
        told.comparing += time.perf_counter() - before
        told.looks += 1
        if time.perf_counter() - began > seconds:
            break
    return {
        "network": name, "precision": precision, "channels_last": channels_last and network.images,
        "looks": told.looks, "compared": told.compared, "kinds": len(recorder.seen), "suspicions": told.wrong,
        "confirmed": told.confirmed, "skipped": dict(told.skipped), "left_alone": dict(recorder.left_alone),
        "seconds": round(time.perf_counter() - began, 1), "comparing": round(told.comparing, 1),
    }  # fmt: skip


@dataclass
class Told:
    """What the comparisons gave."""

    looks: int = 0
    compared: int = 0
    confirmed: int = 0
    comparing: float = 0.0
    """Seconds."""
    wrong: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def hear(self, case: Case, place: torch.device, keep: Path | None) -> None:
        finding = compare(case)
        self.compared += not finding.skipped
        if finding.skipped:
            self.skipped[f"{case.title}: {finding.skipped}"] += 1
        if finding.agrees:
            return
        self.wrong.append(finding.text)
        if len(self.wrong) > 4:
            return
        if keep is not None:
            case.save(keep / f"{os.getpid()}-{case.title}-{case.step}-{len(self.wrong)}.safetensors")
        if place.type != "cpu":
            try:
                self.confirmed += confirmed(repeat(case, place))
            except Exception as error:  # it cannot be done again: nothing is confirmed by that
                self.wrong[-1] += f" (again: {type(error).__name__}: {str(error)[:200]})"


def _set_products(precision: str) -> None:
    """Products of fp32 as they are written, or in TF32."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _to(batch: Any, device: torch.device, last: bool = False) -> Any:
    if isinstance(batch, torch.Tensor):
        there = batch.to(device)
        return there.to(memory_format=torch.channels_last) if last and there.dim() == 4 else there
    if isinstance(batch, dict):
        return {key: _to(each, device, last) for key, each in batch.items()}
    return [_to(each, device, last) for each in batch]


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
