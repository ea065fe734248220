"""How much faster `holdfast optimize` makes models on this CPU, with the peers in the same run.

Ratios are taken turn by turn in one run. The EEG transformer is trained for a few minutes on simulated windows of
training people and scored on others; runs of the workloads have scores of their own.

HOLDFAST_BENCH_RUNS      a folder with finished runs (eeg-challenge1-…, detection-…, ecosystem-…) instead of new ones
HOLDFAST_BENCH_ENGINES   fewer candidates: compiling takes longer than all the rest together
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import JOBS, Bound, exactly, say, train

from holdfast.optimize.engines import packages
from holdfast.optimize.pipeline import Options, optimize
from holdfast.optimize.processor import Machine

USUAL = "compile,onnxruntime,onnxruntime defaults,openvino fp32,openvino fp16,openvino bf16,openvino int8-static"
ENGINES = tuple(os.environ.get("HOLDFAST_BENCH_ENGINES", USUAL).split(","))
PEERS = {"compile fp32": "torch.compile alone", "onnxruntime defaults": "plain ONNX Runtime"}
KEPT = ("name", "threads", "state", "reason", "p50", "p95", "p99", "ratio", "ratio_low", "ratio_high", "baseline_p50",
        "agreement", "scores", "loss", "rss", "bytes", "cold_s", "throughput", "ratio_of_least",
        "ratio_on_device")  # fmt: skip


def at_least(what: str, measured: float, limit: float) -> Bound:
    return Bound(what, measured, limit, measured >= limit, quick=False)


def found(spec: dict[str, Any], out: Path, quick: bool) -> dict[str, Any]:
    """What `holdfast optimize` found for a model."""
    engines = ("onnxruntime fp32", "onnxruntime defaults") if quick else ENGINES
    options = Options(seconds=0.5 if quick else 3.0, profile=False, batches=(8,), engines=engines)
    result = optimize(spec, out, options, tell=lambda text: say(f"  {text}"))
    rows = result["rows"]
    called = next((row["ratio"] for row in rows if row["state"] == "as called"), None)
    best = result["chosen"]
    eager = max(row["ratio"] for row in rows if row["name"] == "eager fp32" and "ratio" in row)
    exact = [row for row in rows if row["state"] == "ok" and row["merge"] == 1 and row["engine"] not in ("eager",)]
    return {
        "machine_has": Machine.look(packages()).to_json(),
        "chosen": f"{best['name']}, {best['threads']} threads",
        "times_eager": round(best["ratio"] / eager, 2),
        "times_eager_with_all_cores": round(best["ratio"], 2),
        "times_eager_every_token": round(max((row["ratio"] for row in exact), default=1.0) / eager, 2),
        "times_as_called": None if called is None else round(best["ratio"] / called, 1),
        "as_called_times_slower_than_eager": None if called is None else round(eager / called, 2),
        "peers_times_eager": {
            PEERS[row["name"]]: round(row["ratio"] / eager, 2) if "ratio" in row else row["reason"][:200]
            for row in rows
            if row["name"] in PEERS
        },
        "scores": {"before": _short(result["scores"]), "after": _short(best["scores"])},
        "loss": _short(best.get("loss")),
        "rows": [{key: _short(row[key]) for key in KEPT if row.get(key) not in (None, "")} for row in rows],
    }


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


# EEG ----------------------------------------------------------------------------------------------------------------


def eeg(scratch: Path, quick: bool) -> dict[str, Any]:
    """The EEG transformer at 129 x 1000, batch 1, against the way it was called and against eager inference_mode."""
    sides = windows(8 if quick else 640, 4 if quick else 128)
    steps = 2 if quick else int(os.environ.get("HOLDFAST_BENCH_STEPS", "300"))
    spec, losses = transformer_of(scratch, sides, steps)
    measured = found(spec, scratch / "bundle", quick)
    tail = losses[-max(1, steps // 10) :]
    return {"steps_trained": steps, "last_loss": _short(sum(tail) / len(tail)), **measured}


def transformer_of(scratch: Path, sides: dict[str, tuple[Any, Any]], steps: int) -> tuple[dict[str, Any], list[float]]:
    """The transformer, trained on these windows: what `holdfast optimize` is asked for, and the losses."""
    sys.path.insert(0, str(JOBS))
    from optimize_models import WEIGHTS, transformer
    from optimize_models import train as train_transformer

    say(f"  training it for {steps} steps")
    losses = train_transformer(*sides["training"], steps, str(scratch / "w.safetensors"))
    os.environ[WEIGHTS] = str(scratch / "w.safetensors")
    x, targets = sides["test"]
    np.savez(scratch / "val.npz", x=x, targets=targets.reshape(-1, 1))
    np.save(scratch / "calibration.npy", sides["training"][0][:64])
    spec = {"kind": "module", "factory": f"{JOBS / 'optimize_models.py'}:{transformer.__name__}",
            "data": str(scratch / "val.npz"), "calibration": str(scratch / "calibration.npy")}  # fmt: skip
    return spec, losses


def windows(training: int, test: int) -> dict[str, tuple[Any, Any]]:
    """Simulated EEG, 129 x 1000: two seconds that were made at 100 Hz, at 500 Hz; and the response times."""
    from holdfast.workloads.eeg.demo import demo_data
    from holdfast.workloads.eeg.inputs import demo_folder
    from holdfast.workloads.eeg.splits import split

    windows = demo_data(demo_folder(), 0)["challenge1"]
    truth = windows.table["response_time"]
    parts = split(windows.table, keep=np.isfinite(truth))
    at = np.linspace(0, windows.samples - 1, 1000)
    low = np.minimum(at.astype(np.int64), windows.samples - 2)
    share = (at - low).astype(np.float32)
    found = {}
    for name, rows, most in (("training", parts.train, training), ("test", parts.test, test)):
        chosen = np.sort(np.random.default_rng(0).permutation(rows)[:most])
        x = np.asarray(windows.batch(chosen))
        found[name] = (x[:, :, low] * (1 - share) + x[:, :, low + 1] * share, truth[chosen].astype(np.float32))
    return found


def eeg_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        at_least("times the way it was called (train mode, gradients on)", measured["times_as_called"], 20.0),
        at_least("times eager inference_mode", measured["times_eager"], 2.0),
        at_least("r of the model itself: one that has learned nothing has nothing to lose", _r(measured), 0.3),
        *run_bounds(measured),
    ]


def _r(measured: dict[str, Any]) -> float:
    return float(measured["scores"]["before"]["r"])


def eeg_run(scratch: Path, quick: bool) -> dict[str, Any]:
    """A finished run of the EEG workload, our best model, with its own score on held-out subjects."""
    folder = run_of(scratch, "eeg-challenge1", quick)
    model = json.loads((folder / "net.json").read_text())["model"]
    return {"model": model, **found({"kind": "run", "folder": str(folder)}, scratch / "bundle", quick)}


# The other workloads --------------------------------------------------------------------------------------------------

NEW = {
    "eeg-challenge1": ["epochs=2", "tune=false"],
    "detection": ["epochs=24", "evaluate_every=24", "tune=false"],
    "ecosystem": ["updates=4", "tune=false", "preset=full"],
}
QUICK = {"eeg-challenge1": "epochs=1", "detection": "epochs=1", "ecosystem": "updates=1"}


def run_of(scratch: Path, workload: str, quick: bool) -> Path:
    """A finished run: one that is there, or a new short one."""
    given = os.environ.get("HOLDFAST_BENCH_RUNS")
    there = sorted(Path(given).glob(f"{workload}-*/final.safetensors")) if given else []
    if there:
        return there[-1].parent
    words = [*NEW[workload], *([QUICK[workload]] if quick else [])]
    say(f"  training {workload} {' '.join(words)}")
    return Path(train(words, scratch / "runs", job=Path(workload))["folder"])


def detector(scratch: Path, quick: bool) -> dict[str, Any]:
    """The detector with its non-maximum suppression."""
    folder = run_of(scratch, "detection", quick)
    measured = found({"kind": "run", "folder": str(folder)}, scratch / "bundle", quick)
    side = int(json.loads((folder / "detector.json").read_text())["imgsz"])
    measured["peers_times_eager"]["ultralytics export, its own model"] = _ultralytics(side, 1.0 if quick else 5.0)
    return measured


def _ultralytics(side: int, seconds: float) -> Any:
    """Only where somebody has installed it; it runs in a process of its own."""
    words = [sys.executable, str(JOBS / "ultralytics_export.py"), str(side), str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        return "not installed" if "No module named" in done.stderr else f"failed: {done.stderr[-200:]}"
    return json.loads(done.stdout.splitlines()[-1])


def policy(scratch: Path, quick: bool) -> dict[str, Any]:
    """The policy of the predators at batch 1."""
    folder = run_of(scratch, "ecosystem", quick)
    return found({"kind": "run", "folder": str(folder)}, scratch / "bundle", quick)


def run_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [exactly("score within 0.5 %", (measured["loss"] or 0.0) <= 0.005, True)]


def detector_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [at_least("times eager inference_mode", measured["times_eager"], 2.5), *run_bounds(measured)]


def policy_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [at_least("times eager inference_mode", measured["times_eager"], 3.0), *run_bounds(measured)]
