"""The EEG transformer at batch 1 on a GPU: what `holdfast optimize` finds there against eager PyTorch on the same GPU.

    python benchmarks/optimize_gpu.py --out benchmarks/results/optimize-h200.json     # minutes, most of them compiling

Windows are drawn at random and labels are the model's own answers with noise: what is measured is speed, and the score
says how much of the answers survives. The bound is at least 3 times eager.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import JOBS, Bound, adopt, machine, say, told, versions, write

from holdfast.optimize.pipeline import Options, optimize
from optimize import KEPT, _short, at_least

ENGINES = ("eager", "compile", "export fp32")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--engines", default=",".join(ENGINES), help="fewer of them: `eager,compile bf16 cuda,export fp32`"
    )
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        say("✗ there is no GPU that PyTorch can use")
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place:
        adopt(Path(place))
        measured = _measured(Path(place), tuple(args.engines.split(",")))
    measured["gpu"] = torch.cuda.get_device_name()
    bounds = [_bound(measured)]
    record = {"part": "optimize-gpu", "date": time.strftime("%Y-%m-%d"), "command": " ".join(["python", *sys.argv]),
              "machine": machine(), "versions": versions(), "seconds": round(time.monotonic() - began, 1),
              "measured": measured}  # fmt: skip
    write(args.out, record, bounds)
    return 1 if told(bounds, quick=False) else 0


def _measured(scratch: Path, engines: tuple[str, ...]) -> dict[str, Any]:
    sys.path.insert(0, str(JOBS))
    import torch
    from optimize_models import WEIGHTS, train, transformer

    x = np.cumsum(np.random.default_rng(0).standard_normal((64, 129, 1000)), axis=2).astype(np.float32) * 1e-6
    train(x, x[:, 0, -1], 0, str(scratch / "w.safetensors"))  # no step: only the scales of its channels
    os.environ[WEIGHTS] = str(scratch / "w.safetensors")
    with torch.inference_mode():
        said = transformer().eval()(torch.from_numpy(x)).numpy()
    noise = 0.3 * said.std() * np.random.default_rng(1).standard_normal(said.shape)
    np.savez(scratch / "val.npz", x=x, targets=said + noise)
    spec = {"kind": "module", "factory": f"{JOBS / 'optimize_models.py'}:transformer", "data": str(scratch / "val.npz")}
    options = Options(seconds=2.0, profile=False, batches=(16,), engines=engines, merge=False)
    rows = optimize(spec, scratch / "bundle", options, tell=lambda text: say(f"  {text}"))["rows"]
    return {"rows": [{key: _short(row[key]) for key in KEPT if row.get(key) not in (None, "")} for row in rows]}


def _bound(measured: dict[str, Any]) -> Bound:
    """The best that is right against eager fp32, both on the GPU; `ratio` is against the CPU in either case."""
    on_gpu = {row["name"]: row for row in measured["rows"] if row["name"].endswith(" cuda") and row["state"] == "ok"}
    eager = on_gpu["eager fp32 cuda"]["ratio"]
    best = max(on_gpu.values(), key=lambda row: float(row["ratio"]))
    measured["chosen"], measured["times_eager_on_gpu"] = best["name"], round(best["ratio"] / eager, 2)
    return at_least("times eager inference_mode on the GPU", measured["times_eager_on_gpu"], 3.0)


if __name__ == "__main__":
    raise SystemExit(main())
