"""The EEG transformer on a GPU: what `holdfast optimize` finds there against eager PyTorch on the same GPU, and served.

    python benchmarks/optimize_gpu.py --out benchmarks/results/optimize-h200.json     # about five minutes

The transformer is trained on simulated windows of training people and scored on others (optimize.py). Then its bundle,
and that of a policy, are served: sixteen clients against one that asks one question at a time. The bounds are at least
3 times eager at batch 1, and 4 times one at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import Bound, adopt, exactly, machine, say, told, versions, write
from serving import Served, gain

from holdfast.optimize.bundle import open_bundle
from holdfast.optimize.pipeline import Options, optimize
from holdfast.run.machine import usable_cpus
from holdfast.serving.readers import readers_for
from optimize import KEPT, _short, at_least, run_of, transformer_of, windows

ENGINES = "eager fp32 cuda,compile bf16 cuda,cudagraph fp32 cuda,cudagraph bf16 cuda,cudagraph fp16 cuda"
PARTS = ("eeg", "serve-eeg", "serve-policy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engines", default=ENGINES, help=f"fewer of them (default {ENGINES})")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"fewer of {', '.join(PARTS)}")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        say("✗ there is no GPU that PyTorch can use")
        return 1
    began, parts = time.monotonic(), args.parts.split(",")
    measured: dict[str, Any] = {"gpu": torch.cuda.get_device_name()}
    bounds: list[Bound] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place:
        scratch = Path(place)
        adopt(scratch)
        if {"eeg", "serve-eeg"} & set(parts):
            measured |= eeg(scratch, tuple(args.engines.split(",")))
            bounds += eeg_bounds(measured)
            keep(args.out, measured, bounds, began)
        for part, bundle, many in (("serve-eeg", _given, 3000), ("serve-policy", _policy, 6000)):
            if part in parts:
                say(f"  {part}")
                measured[part] = _served(bundle(scratch), many)
                bounds += _served_bounds(part, measured[part])
                keep(args.out, measured, bounds, began)
    return 1 if told(bounds, quick=False) else 0


def keep(out: Path, measured: dict[str, Any], bounds: list[Bound], began: float) -> None:
    """After each part: a lent machine may be taken back."""
    say(f"  {json.dumps(measured)}")
    record = {"part": "optimize-gpu", "date": time.strftime("%Y-%m-%d"), "command": " ".join(["python", *sys.argv]),
              "machine": machine(), "versions": versions(), "seconds": round(time.monotonic() - began, 1),
              "measured": measured}  # fmt: skip
    write(out, record, bounds)


def eeg(scratch: Path, engines: tuple[str, ...]) -> dict[str, Any]:
    spec, _ = transformer_of(scratch, windows(640, 128), 300)
    options = Options(seconds=2.0, profile=False, batches=(16,), engines=engines)
    result = optimize(spec, scratch / "eeg", options, tell=lambda text: say(f"  {text}"))
    rows = [{key: _short(row[key]) for key in KEPT if row.get(key) not in (None, "")} for row in result["rows"]]
    right = {row["name"]: row["ratio_on_device"] for row in rows if row["state"] == "ok" and "ratio_on_device" in row}
    return {
        "chosen": result["chosen"]["name"],
        "times_eager_on_gpu": right.get(result["chosen"]["name"], 0.0),
        "times_eager_on_gpu_every_token": max((each for name, each in right.items() if "merge" not in name), default=0),
        "on_gpu_times_eager": right,
        "scores": {"before": _short(result["scores"]), "after": _short(result["chosen"]["scores"])},
        "rows": rows,
    }


def eeg_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        exactly("chosen for the bundle: something on the GPU", " cuda" in measured["chosen"], True),
        at_least("times eager inference_mode on the GPU", measured["times_eager_on_gpu"], 3.0),
        at_least("r of the model itself", float(measured["scores"]["before"]["r"]), 0.3),
    ]


def _given(scratch: Path) -> Path:
    return scratch / "eeg"


def _policy(scratch: Path) -> Path:
    spec = {"kind": "run", "folder": str(run_of(scratch, "ecosystem", quick=False))}
    options = Options(seconds=0.5, profile=False, batches=(16,), engines=("cudagraph fp32 cuda",))
    optimize(spec, scratch / "policy", options, tell=lambda text: say(f"  {text}"))
    return scratch / "policy"


def _served(folder: Path, many: int) -> dict[str, Any]:
    """As it is by default; where other processes read for the engine, also without them, a third as many questions."""
    readers = readers_for(open_bundle(folder), usable_cpus() or 1)
    with Served(folder) as served:
        measured = {"readers": readers, **gain(served, many), "inputs_per_batch": served.inputs_per_batch()}
    if readers:
        with Served(folder, "--readers", "0") as served:
            alone = gain(served, many // 3)
        measured["without_readers"] = {
            key: alone[key] for key in ("times_one_at_a_time", "one_at_a_time", "16_clients", "lost", "wrong")
        }
    return measured


def _served_bounds(part: str, measured: dict[str, Any]) -> list[Bound]:
    return [
        at_least(f"{part}: 16 clients, times one at a time", measured["times_one_at_a_time"], 4.0),
        exactly(f"{part}: answers lost or mixed up", measured["lost"] + measured["wrong"], 0),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
