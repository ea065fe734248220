"""How much faster `holdfast optimize` makes models on this CPU, and what `holdfast serve` gains by batching.

Ratios are taken turn by turn in one run. The EEG transformer has fresh weights, its windows are simulated EEG, and its
labels are its own answers with noise, so that its score says how much of the answers survives; runs of the workloads
have scores of their own.
HOLDFAST_BENCH_RUNS names a folder with finished runs (eeg-challenge1-…, detection-…, ecosystem-…) to use instead of
training new ones.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import JOBS, Bound, command, exactly, say, train

from holdfast.optimize import bundle
from holdfast.optimize.candidates import Machine
from holdfast.optimize.measure import percentile
from holdfast.optimize.pipeline import Options, optimize

TOKEN = "benchmark-token-of-this-run"


def at_least(what: str, measured: float, limit: float) -> Bound:
    return Bound(what, measured, limit, measured >= limit, quick=False)


def _found(spec: dict[str, Any], out: Path, quick: bool, engines: tuple[str, ...] = ()) -> dict[str, Any]:
    options = Options(
        seconds=0.5 if quick else 3.0, profile=False, batches=(8,), engines=("onnxruntime fp32",) if quick else engines
    )
    result = optimize(spec, out, options, tell=lambda text: say(f"  {text}"))
    keep = ("name", "threads", "state", "reason", "p50", "p95", "p99", "ratio", "ratio_low", "ratio_high",
            "baseline_p50", "agreement", "scores", "loss", "rss", "bytes", "cold_s", "throughput",
            "ratio_of_least")  # fmt: skip
    rows = [{key: _short(row[key]) for key in keep if row.get(key) not in (None, "")} for row in result["rows"]]
    called = next((row["ratio"] for row in result["rows"] if row["state"] == "as called"), None)
    best = result["chosen"]
    eager = [row["ratio"] for row in result["rows"] if row["name"] == "eager fp32" and "ratio" in row]
    return {
        "machine_has": Machine.look().to_json(),
        "chosen": f"{best['name']}, {best['threads']} threads",
        "times_eager": round(best["ratio"] / max(eager), 2),
        "times_eager_with_all_cores": round(best["ratio"], 2),
        "times_as_called": None if called is None else round(best["ratio"] / called, 1),
        "scores": {"before": _short(result["scores"]), "after": _short(best["scores"])},
        "loss": _short(best.get("loss")),
        "rows": rows,
    }


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def eeg(scratch: Path, quick: bool) -> dict[str, Any]:
    """The EEG transformer at 129 x 1000, batch 1, against the way it was called and against eager inference_mode."""
    sys.path.insert(0, str(JOBS))
    import torch
    from optimize_models import transformer

    x = _windows(4 if quick else 24)
    np.save(scratch / "windows.npy", x)
    os.environ["HOLDFAST_BENCH_WINDOWS"] = str(scratch / "windows.npy")  # the model fits its channel scales to them
    rng = np.random.default_rng(0)
    with torch.inference_mode():
        said = transformer().eval()(torch.from_numpy(x)).numpy()
    targets = said + 0.3 * said.std() * rng.standard_normal(said.shape)
    np.savez(scratch / "val.npz", x=x, targets=targets)
    spec = {"kind": "module", "factory": f"{JOBS / 'optimize_models.py'}:transformer", "data": str(scratch / "val.npz")}
    engines = ("compile", "onnxruntime", "openvino fp32", "openvino fp16", "openvino bf16", "openvino int8-static")
    return _found(spec, scratch / "bundle", quick, engines)


def _windows(count: int) -> Any:
    """Simulated EEG of as many people, 129 x 1000: two seconds that were made at 100 Hz, at 500 Hz."""
    from holdfast.workloads.eeg.demo import demo_data
    from holdfast.workloads.eeg.inputs import demo_folder

    windows = demo_data(demo_folder(), 0)["challenge1"]
    rows = np.linspace(0, len(windows) - 1, count).astype(np.int64)
    found = np.asarray(windows.batch(rows))
    at = np.linspace(0, found.shape[2] - 1, 1000)
    low = np.minimum(at.astype(np.int64), found.shape[2] - 2)
    share = (at - low).astype(np.float32)
    return found[:, :, low] * (1 - share) + found[:, :, low + 1] * share


def eeg_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        at_least("times the way it was called (train mode, gradients on)", measured["times_as_called"], 20.0),
        at_least("times eager inference_mode", measured["times_eager"], 2.0),
        exactly("score within 0.5 %", (measured["loss"] or 0.0) <= 0.005, True),
    ]


def _run(scratch: Path, prefix: str, workload: str, words: list[str]) -> Path:
    """A finished run: one that is there, or a new short one."""
    given = os.environ.get("HOLDFAST_BENCH_RUNS")
    there = sorted(Path(given).glob(f"{prefix}*/final.safetensors")) if given else []
    if there:
        return there[-1].parent
    return Path(train(words, scratch / "runs", job=Path(workload))["folder"])


def eeg_run(scratch: Path, quick: bool) -> dict[str, Any]:
    """A finished run of the EEG workload, with its own score on held-out subjects."""
    folder = _run(scratch, "eeg-challenge1-", "eeg-challenge1", ["epochs=2", "tune=false"])
    model = json.loads((folder / "net.json").read_text())["model"]
    return {"model": model, **_found({"kind": "run", "folder": str(folder)}, scratch / "bundle", quick, ENGINES)}


def detector(scratch: Path, quick: bool) -> dict[str, Any]:
    """The detector with its non-maximum suppression."""
    folder = _run(scratch, "detection-", "detection", ["epochs=2", "tune=false"])
    return _found({"kind": "run", "folder": str(folder)}, scratch / "bundle", quick, ENGINES)


def policy(scratch: Path, quick: bool) -> dict[str, Any]:
    """The policy of the predators at batch 1."""
    folder = _run(scratch, "ecosystem-", "ecosystem", ["updates=4", "tune=false", "preset=full"])
    return _found({"kind": "run", "folder": str(folder)}, scratch / "bundle", quick, ENGINES)


USUAL = "compile,onnxruntime,openvino fp32,openvino fp16,openvino bf16,openvino int8-static"
ENGINES = tuple(os.environ.get("HOLDFAST_BENCH_ENGINES", USUAL).split(","))
"""Compiling takes longer than all the rest together: who is short of time leaves it out."""


def run_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [exactly("score within 0.5 %", (measured["loss"] or 0.0) <= 0.005, True)]


def detector_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [at_least("times eager inference_mode", measured["times_eager"], 2.5), *run_bounds(measured)]


def policy_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [at_least("times eager inference_mode", measured["times_eager"], 3.0), *run_bounds(measured)]


# Serving ------------------------------------------------------------------------------------------------------------


def serving(scratch: Path, quick: bool) -> dict[str, Any]:
    """A served policy: sixteen clients against one request at a time, and whether anything is lost or mixed up."""
    folder = _run(scratch, "ecosystem-", "ecosystem", ["updates=4", "tune=false", "preset=full"])
    options = Options(seconds=0.5, profile=False, batches=(8,), engines=("onnxruntime fp32",))
    optimize({"kind": "run", "folder": str(folder)}, scratch / "bundle", options, tell=lambda text: say(f"  {text}"))
    total = 400 if quick else int(os.environ.get("HOLDFAST_BENCH_REQUESTS", "100000"))
    with _Served(scratch / "bundle") as served:
        one, many = [], []
        for _ in range(3):  # turn by turn
            one.append(served.load(clients=1, requests=max(60, total // 500)))
            many.append(served.load(clients=16, requests=max(160, total // 100)))
        soak = served.load(clients=16, requests=total)
        memory = served.rss()
        metrics = served.metrics()
    rate = {name: sorted(each["per_s"] for each in rows)[1] for name, rows in (("one", one), ("many", many))}
    rows = [*one, *many, soak]
    return {
        "requests": sum(each["requests"] for each in rows),
        "wrong": sum(each["wrong"] for each in rows),
        "lost": sum(each["lost"] for each in rows),
        "per_s_one_at_a_time": round(rate["one"], 1),
        "per_s_16_clients": round(rate["many"], 1),
        "times_one_at_a_time": round(rate["many"] / rate["one"], 2),
        "soak": soak,
        "server_rss_bytes": memory,
        "inputs_per_batch": round(metrics["inputs_total"] / max(1.0, metrics["batches_total"]), 2),
    }


def serving_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        exactly("answers lost", measured["lost"], 0),
        exactly("answers mixed up", measured["wrong"], 0),
        at_least("times one request at a time, 16 clients, policy", measured["times_one_at_a_time"], 4.0),
    ]


class _Served:
    """`holdfast serve` in a process of its own, and clients in another."""

    def __init__(self, folder: Path) -> None:
        opened = bundle.open_bundle(folder)
        with np.load(folder / bundle.CHECK, allow_pickle=False) as kept:
            self.inputs = [kept[f"i{number}"] for number in range(len(opened.inputs))]
        self.names = [each["name"] for each in opened.inputs]
        self.answers = opened.engine().run(self.inputs)[0]
        words = command("serve", str(folder), "--port", "0", "--batch", "16")
        self.child = subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOLDFAST_SERVE_TOKEN": TOKEN}
        )
        assert self.child.stdout is not None
        found = re.search(r":(\d+)/predict", self.child.stdout.readline())
        assert found
        self.port = int(found[1])

    def __enter__(self) -> _Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.terminate()
        self.child.wait(20)

    def rss(self) -> int | None:
        from holdfast.runtime import process

        seen = process.inspect(self.child.pid)
        return None if seen is None else seen.rss_bytes

    def metrics(self) -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        text = connection.getresponse().read().decode()
        return {name: float(value) for name, value in re.findall(r"^holdfast_serve_(\w+) ([\d.]+)$", text, re.M)}

    def load(self, *, clients: int, requests: int) -> dict[str, Any]:
        """Each request asks about one of the kept inputs, whose answer is known."""
        bodies = []
        for row in range(len(self.inputs[0])):
            held = io.BytesIO()
            arrays = {name: each[row : row + 1] for name, each in zip(self.names, self.inputs, strict=True)}
            if len(arrays) == 1:
                np.save(held, next(iter(arrays.values())))
            else:
                np.savez(held, **arrays)
            bodies.append(held.getvalue())
        kind = "application/x-npy" if len(self.names) == 1 else "application/x-npz"
        times: list[float] = []
        counts = {"wrong": 0, "lost": 0}
        guard = threading.Lock()

        def client(number: int, mine: int) -> None:
            rng = np.random.default_rng(number)
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            took, wrong, lost = [], 0, 0
            for _ in range(mine):
                row = int(rng.integers(len(bodies)))
                began = time.perf_counter()
                try:
                    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
                    connection.request("POST", "/predict", bodies[row], headers)
                    answer = connection.getresponse()
                    data = answer.read()
                except (OSError, http.client.HTTPException):
                    lost += 1
                    continue
                took.append(time.perf_counter() - began)
                if answer.status != 200:
                    lost += 1
                    continue
                found = np.load(io.BytesIO(data))
                found = found if isinstance(found, np.ndarray) else found[found.files[0]]
                wrong += not np.allclose(found[0], self.answers[row], atol=1e-4, rtol=1e-4)
            with guard:
                times.extend(took)
                counts["wrong"] += wrong
                counts["lost"] += lost

        began = time.perf_counter()
        shares = [requests // clients] * clients
        threads = [threading.Thread(target=client, args=(n, mine)) for n, mine in enumerate(shares)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        spent = time.perf_counter() - began
        told = {f"p{share}_ms": round(1000 * percentile(times, share / 100), 2) for share in (50, 95, 99)}
        return {"clients": clients, "requests": sum(shares), "per_s": round(len(times) / spent, 1), **told, **counts}
