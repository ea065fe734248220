"""The parts of bench.py about training the EEG workload: a CPU step, the two heads, the whole demo.

Data are simulated here, with known truth. Speed is a ratio of steps taken in turns inside one process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import Bound, at_most, command, exactly, say

STEPS, BATCH, LR = 40, 8, 1e-3


def at_least(what: str, measured: float, limit: float, *, quick: bool = True) -> Bound:
    return Bound(what, measured, f"at least {limit}", measured >= limit, quick)


# One step of the baseline transformer ---------------------------------------------------------------------------


def step(scratch: Path, quick: bool) -> dict[str, Any]:
    """A CPU step of the 541K transformer (batch 8, 129 x 1000) against the loop it was first trained with."""
    import torch

    from holdfast.planning import measure
    from holdfast.planning.choice import Choice

    windows = _windows_500(scratch, subjects=6 if quick else 24)
    train, valid = _halves(windows)
    steps = 2 if quick else STEPS
    # As first written: dropout inside attention, a token per sample, fp32, whatever PyTorch does by itself.
    loops = {
        "plain": _loop(windows, train, Choice(), attention_dropout=True, token_rate=0),
        "no_attention_dropout": _loop(windows, train, Choice(), token_rate=0),
    }
    with measure.untouched_generators():
        trial = measure.Training(_net(windows), _loss, _Items(windows, train), batch=BATCH, lr=LR, steps=steps)
        found = measure.tune(trial.make, trial.knobs(), budget_s=2.0 if quick else 30.0)
    say(f"  {found.words()}")
    loops["ours"] = _loop(windows, train, found.choice)
    took: dict[str, list[float]] = {name: [] for name in loops}
    orders = [list(loops), list(loops)[::-1]]
    losses: dict[str, dict[int, float]] = {name: {} for name in loops}
    for number in range(steps):
        for name in orders[number % 2]:
            began = time.perf_counter()
            loops[name].step(number)
            took[name].append(time.perf_counter() - began)
        if (number + 1) in {steps // 4, steps // 2, steps}:
            for name, loop in loops.items():
                losses[name][number + 1] = round(loop.validation(valid), 5)
            say(f"  step {number + 1}: {json.dumps({name: list(each.values())[-1] for name, each in losses.items()})}")
    pairs = {
        name: [plain / mine for plain, mine in zip(took["plain"], each, strict=True)] for name, each in took.items()
    }
    truth = windows.table["response_time"][valid]
    return {
        "steps": steps,
        "threads": torch.get_num_threads(),
        "median_ms": {name: round(1000 * statistics.median(each), 1) for name, each in took.items()},
        "times_as_fast_as_plain": {name: round(statistics.median(each), 2) for name, each in pairs.items()},
        "validation_loss": losses,
        "validation_variance": round(float(truth.var()), 5),
        "chosen": found.choice.to_json(),
        "tuner": found.words(),
    }


def step_bounds(measured: dict[str, Any]) -> list[Bound]:
    last = {name: list(each.values())[-1] for name, each in measured["validation_loss"].items()}
    apart = round(last["ours"] / last["plain"], 4)
    return [
        at_least("times as fast as the plain loop", measured["times_as_fast_as_plain"]["ours"], 5.0, quick=False),
        Bound("validation loss over that of the plain loop", apart, 1.05, apart <= 1.05, quick=False),
    ]


def _windows_500(scratch: Path, subjects: int) -> Any:
    from holdfast.workloads.eeg import cache, simulate
    from holdfast.workloads.eeg.prepare import prepare

    data = simulate.write(scratch / "data", subjects=subjects, rate=500, runs=1, trials=16, rest_seconds=5, brisk=True)
    report = prepare(data, scratch / "cache", kind="challenge1", rate=500.0)
    return cache.open(report.folder)


def _halves(windows: Any) -> tuple[Any, Any]:
    people = sorted(set(windows.table["subject"].tolist()))
    held = np.isin(windows.table["subject"], people[::4])
    known = np.isfinite(windows.table["response_time"])
    return np.flatnonzero(known & ~held), np.flatnonzero(known & held)


def _net(windows: Any, name: str = "transformer", **options: Any) -> Any:
    import torch

    from holdfast.workloads.eeg import heads, models

    torch.manual_seed(7)
    sizes = {"channels": len(windows.channels), "samples": windows.samples, "rate": windows.rate}
    backbone = models.build(name, **sizes, **options)
    backbone.norm.fit(torch.from_numpy(windows.batch(np.arange(0, len(windows), max(1, len(windows) // 64)))))
    return heads.Net(backbone, heads.ScalarHead(backbone, mean=0.0, pooled=True))


def _loss(net: Any, batch: Any) -> Any:
    return net.loss(batch[0], batch[1])


class _Items:
    def __init__(self, windows: Any, rows: Any) -> None:
        self.windows, self.rows = windows, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        import torch

        row = self.rows[index]
        return torch.from_numpy(np.array(self.windows.signals[row])), torch.tensor(
            [self.windows.table["response_time"][row]], dtype=torch.float32
        )


@dataclasses.dataclass
class _Loop:
    """The loop everybody writes, with a choice of how the loss is computed."""

    net: Any
    compute: Any
    optimizer: Any
    batches: Any
    windows: Any

    def step(self, number: int) -> None:
        import torch

        torch.manual_seed(number)
        rows = self.batches[number % len(self.batches)]
        x = torch.from_numpy(self.windows.batch(np.sort(rows)))
        y = torch.tensor(self.windows.table["response_time"][np.sort(rows)], dtype=torch.float32)[:, None]
        self.optimizer.zero_grad(set_to_none=True)
        self.compute((x, y)).backward()
        self.optimizer.step()

    def validation(self, rows: Any) -> float:
        import torch

        from holdfast.workloads.eeg.training import predict

        guess = predict(self.net, self.windows, rows, torch.device("cpu"), batch=16)[:, 0]
        return float(np.mean((guess - self.windows.table["response_time"][rows]) ** 2))


def _loop(windows: Any, rows: Any, choice: Any, **options: Any) -> _Loop:
    import torch

    net = _net(windows, **options).train()
    order = np.random.default_rng(3).permutation(rows)
    batches = [order[start : start + BATCH] for start in range(0, len(order) - BATCH + 1, BATCH)]
    compute = choice.loss(lambda batch: _loss(net, batch), torch.device("cpu"))
    return _Loop(net, compute, torch.optim.AdamW(net.parameters(), lr=LR), batches, windows)


# Compiling ------------------------------------------------------------------------------------------------------


def compiling(scratch: Path, quick: bool) -> dict[str, Any]:
    """The knob `compile` of the tuner, tried for real: what it costs, what it gives, and if the loss is the same."""
    from holdfast.planning import measure
    from holdfast.workloads.eeg import cache, simulate
    from holdfast.workloads.eeg.prepare import prepare

    data = simulate.write(scratch / "data", subjects=6, runs=1, trials=16, rest_seconds=5, brisk=True)
    windows = cache.open(prepare(data, scratch / "cache", kind="challenge1").folder)
    train, _ = _halves(windows)
    found: dict[str, Any] = {}
    for name in ("tempo",) if quick else ("tempo", "transformer"):
        with measure.untouched_generators():
            trial = measure.Training(_net(windows, name), _loss, _Items(windows, train), batch=16, lr=LR)
            took: dict[str, float] = {}
            result = measure.tune(_unhurried(trial.make, took), [measure.COMPILE], budget_s=120.0)
        (*_, row) = [each for each in result.rows if each.choice.compile]
        found[name] = {
            "first_two_steps_s": {way: round(seconds, 2) for way, seconds in took.items()},
            "step_against_plain": None if row.ratio is None else round(row.ratio, 3),
            "refused": row.refused,
            "chosen": result.choice.compile,
            "tuner": result.words(),
        }
        say(f"  {name}: {json.dumps(found[name])}")
    return found


def _unhurried(make: Any, took: dict[str, float]) -> Any:
    """Steps that tell what the first two took: compiling happens there, once without dropout and once with it."""

    def made(choice: Any) -> Any:
        step, way, steps = make(choice), "compiled" if choice.compile else "plain", 0

        def timed() -> float:
            nonlocal steps
            began = time.perf_counter()
            loss: float = step()
            if steps < 2:
                took[way] = took.get(way, 0.0) + time.perf_counter() - began
            steps += 1
            return loss

        return timed

    return made


def compiling_bounds(measured: dict[str, Any]) -> list[Bound]:
    bounds = []
    for name, each in measured.items():
        ratio = each["step_against_plain"]
        kept_to = each["chosen"] == (ratio is not None and ratio < 0.97)
        bounds.append(exactly(f"{name} compiled and its loss was that of plain", each["refused"], ""))
        bounds.append(exactly(f"{name} is compiled if and only if that is clearly faster", kept_to, True, quick=False))
    return bounds


# The whole chain ------------------------------------------------------------------------------------------------


def heads(scratch: Path, quick: bool) -> dict[str, Any]:
    """Response time as a distribution over the window against plain regression: same backbone, same steps, seeds."""
    found: dict[str, list[dict[str, Any]]] = {"time": [], "scalar": []}
    for seed in range(1 if quick else 3):
        for head in found:
            words = ["eeg-challenge1", f"head={head}", "tune=false", *(["epochs=2"] if quick else [])]
            folder = _train(words, scratch, seed=seed, own_data=not quick)
            kept = json.loads((folder / "scores.json").read_text())
            found[head].append({key: kept[key] for key in ("nrmse", "r", "auroc")})
            say(f"  {head}, seed {seed}: {found[head][-1]}")
    means = {
        head: {key: round(statistics.mean(row[key] for row in rows), 4) for key in rows[0]}
        for head, rows in found.items()
    }
    return {"mean": means, "runs": found}


def heads_bounds(measured: dict[str, Any]) -> list[Bound]:
    ours, plain = measured["mean"]["time"]["nrmse"], measured["mean"]["scalar"]["nrmse"]
    worst = max(row["nrmse"] for row in measured["runs"]["time"])
    best = min(row["nrmse"] for row in measured["runs"]["scalar"])
    return [
        Bound("nRMSE of the time head, mean over seeds", ours, f"below {plain}", ours < plain, False),
        Bound("worst time head against best scalar head", worst, f"below {best}", worst < best, False),
    ]


def demo(scratch: Path, quick: bool) -> dict[str, Any]:
    """`holdfast train eeg` from nothing to scores: simulate, prepare, both challenges."""
    if quick:
        os.environ["HOLDFAST_EEG_DEMO"] = str(scratch / "demo")
    began, spent = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["epochs=2"] if quick else []
    done = subprocess.run(
        command("train", "eeg", *words, f"run.folder={scratch / 'runs'}", "--json", "-q"),
        stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "HOLDFAST_EEG_DEMO": str(scratch / "demo")},
    )  # fmt: skip
    took, now = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    runs = json.loads(done.stdout)["runs"]
    scores = [json.loads((Path(run["folder"]) / "scores.json").read_text()) for run in runs]
    keys = ("nrmse", "r", "r_low", "auroc", "mean_r", "mean_r_low", "subjects")
    return {
        "seconds": round(took, 1),
        "cpu_seconds": round(now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime, 1),
        "challenge1": {key: scores[0].get(key) for key in keys},
        "challenge2": {key: scores[1].get(key) for key in keys},
        "simulated": all(each["simulated"] for each in scores),
    }


def demo_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        # by the clock it takes longer on a machine that is busy with other things
        at_most("processor seconds for all of it, half of them on each of two cores", measured["cpu_seconds"] / 2, 180),
        at_least("Challenge 1, Pearson r", measured["challenge1"]["r"], 0.3, quick=False),
        at_least("Challenge 1, AUROC", measured["challenge1"]["auroc"], 0.7, quick=False),
        at_least("Challenge 2, mean r over four factors", measured["challenge2"]["mean_r"], 0.2, quick=False),
        exactly("labelled as simulated", measured["simulated"], True),
    ]


def _train(words: list[str], scratch: Path, *, seed: int, own_data: bool) -> Path:
    """A run to its end, on a set that is simulated for this bench, or on the one that is there already."""
    place = {"HOLDFAST_EEG_DEMO": str(scratch / "demo")} if own_data else {}
    done = subprocess.run(
        command("train", *words, "--seed", str(seed), f"run.folder={scratch / 'runs'}", "--json", "-q"),
        stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **place},
    )  # fmt: skip
    return Path(json.loads(done.stdout)["folder"])
