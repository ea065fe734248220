"""`predict.py` of a bundle beside ONNX Runtime by hand: the same model and input, batch 1, calls in turns.

    python benchmarks/predict_by_hand.py --out results
    python benchmarks/predict_by_hand.py --models eeg_tempo,torchvision_mobilenet --repetitions 3

`holdfast optimize` makes the bundle. By hand is `torch.onnx.export` as it comes (fixed shape), then a session: as it
comes, and with as many threads as predict.py has. The session as it comes is there twice: the ratio of these two is
what the machine calls a difference where there is none. Each way is a process of its own, and one works at a time;
their order turns from round to round. A repetition starts all processes anew. What is compared are the medians of a
round, and the ratio is of the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import common
import numpy as np
from common import JOBS, at_most, say
from many import model as processor

from holdfast.optimize.pipeline import Options, optimize

MODELS = JOBS / "predict_models.py"
CALLS = JOBS / "predict_calls.py"
ENGINES = ("onnxruntime fp32", "onnxruntime defaults", "openvino fp32")
"""In fp32, as by hand: smaller numbers would be faster for another reason."""
LIMIT_S = 1200.0
"""For `holdfast optimize`: on a busy machine a process takes half a minute to start."""
SETTLE = 0.03
"""Seconds between two turns: threads of a plain session spin for a while after a call."""
FIRST, TWIN, SAME = "by hand", "by hand again", "by hand, as many threads"


class Way:
    """A process that calls the model when it is asked to."""

    def __init__(self, words: list[str], x: Path) -> None:
        # outside of the tree: a predict.py has to work without holdfast
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.run = subprocess.Popen([sys.executable, str(CALLS), str(x), *words], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True, env=env)  # fmt: skip
        self.answer = np.array(self._line()["answer"])

    def _line(self) -> Any:
        assert self.run.stdout is not None
        line = self.run.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.run.args)} ended with {self.run.wait()}")  # type: ignore[arg-type]
        return json.loads(line)

    def times(self, count: int, seconds: float) -> list[float]:
        assert self.run.stdin is not None
        self.run.stdin.write(f"{count} {seconds}\n")
        self.run.stdin.flush()
        return [float(each) for each in self._line()]

    def close(self) -> None:
        assert self.run.stdin is not None
        self.run.stdin.close()
        self.run.wait(timeout=60)


def exported(name: str, shape: tuple[int, ...], target: Path) -> None:
    """In a process of its own, as somebody would do it."""
    text = (
        f"import sys; sys.path.insert(0, {str(JOBS)!r})\nimport torch, predict_models\n"
        f"model, x = predict_models.{name}(), torch.randn(1, *{shape!r})\n"
        f"torch.onnx.export(model, (x,), {str(target)!r}, external_data=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} cannot be exported: {done.stderr[-800:]}")


def compared(name: str, scratch: Path, repetitions: int, rounds: int, quick: bool) -> dict[str, Any]:
    sys.path.insert(0, str(JOBS))
    from predict_models import SHAPES

    shape, net, x = SHAPES[name], scratch / f"{name}.onnx", scratch / f"{name}.npy"
    np.save(x, np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32))
    exported(name, shape, net)
    bundle = scratch / f"{name}-bundle"
    spec = {"kind": "module", "factory": f"{MODELS}:{name}", "shapes": [[1, *shape]]}
    options = Options(profile=False, batches=(), engines=ENGINES[:1] if quick else ENGINES, limit_s=LIMIT_S)
    chosen = optimize(spec, bundle, options, tell=lambda text: say(f"  {text}"))["chosen"]
    threads = int(chosen["threads"])
    ways = {
        "predict.py": ["predict", str(bundle / "predict.py")],
        FIRST: ["by-hand", str(net)],
        TWIN: ["by-hand", str(net)],
        SAME: ["by-hand", str(net), str(threads)],
    }
    found = [_repetition(ways, x, rounds, number) for number in range(repetitions)]
    settings = re.findall(r"^options\..*$|^settings = .*$", (bundle / "predict.py").read_text(), re.MULTILINE)
    told = {
        "chosen": f"{chosen['name']}, {threads} threads",
        "alone": chosen.get("alone"),
        "program": chosen.get("program"),
        "settings_of_predict": settings,
        "largest_difference": max(each["apart"] for each in found),
        "median_ms": {way: round(1000 * statistics.median([each["p50"][way] for each in found]), 4) for way in ways},
        "ratio_to_by_hand": _ratio(found, "predict.py", FIRST),
        "ratio_to_by_hand_same_threads": _ratio(found, "predict.py", SAME),
        "noise_by_hand_to_by_hand": _ratio(found, TWIN, FIRST),
    }
    say(f"  {name}: {json.dumps(told)}")
    return told


def _repetition(ways: dict[str, list[str]], x: Path, rounds: int, number: int) -> dict[str, Any]:
    running = {name: Way(words, x) for name, words in ways.items()}
    order = random.Random(number)
    medians: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for _ in range(rounds):
            for name in order.sample(list(ways), len(ways)):
                time.sleep(SETTLE)
                medians[name].append(statistics.median(running[name].times(100, 0.5)))
    finally:
        for each in running.values():
            each.close()
    wanted, mine = running[FIRST].answer, running["predict.py"].answer
    apart = float(np.abs(wanted - mine).max() / max(1e-9, float(np.abs(wanted).max())))
    return {"p50": {name: statistics.median(each) for name, each in medians.items()}, "rounds": medians, "apart": apart}


def _ratio(found: list[dict[str, Any]], one: str, other: str) -> dict[str, Any]:
    """Of each round; the median with its interval of 95 % (rounds drawn with replacement), and of each repetition."""
    each = [[a / b for a, b in zip(row["rounds"][one], row["rounds"][other], strict=True)] for row in found]
    ratios = np.array([ratio for row in each for ratio in row])
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    quarter, three = np.percentile(ratios, [25, 75])
    return {
        "median": round(float(np.median(ratios)), 3),
        "interval": [round(float(low), 3), round(float(high), 3)],
        "middle_half": [round(float(quarter), 3), round(float(three), 3)],
        "repetitions": [round(statistics.median(row), 3) for row in each],
        "rounds": len(ratios),
    }


def bounds(measured: dict[str, Any]) -> list[common.Bound]:
    """At least as fast: the median ratio is not above 1 by more than two sessions by hand are apart from each other."""
    return [
        at_most(f"{name}, predict.py against a session by hand", row["ratio_to_by_hand"]["median"], _noise(row))
        for name, row in measured.items()
    ]


def _noise(row: dict[str, Any]) -> float:
    """The upper end of what equal sessions differ by; 1.0 at least."""
    low, high = row["noise_by_hand_to_by_hand"]["interval"]
    return round(max(1.0, high, 1 / low), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=common.RESULTS)
    parser.add_argument("--models", default="eeg_tempo,braindecode_shallow,torchvision_mobilenet")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    began, measured = time.monotonic(), {}
    with tempfile.TemporaryDirectory(prefix="holdfast-by-hand-") as place:
        common.adopt(Path(place))
        for name in given.models.split(","):
            measured[name] = compared(name, Path(place), given.repetitions, given.rounds, given.quick)
    versions = {name: metadata.version(name) for name in ("onnxruntime", "openvino", "torchvision", "braindecode")}
    record = {
        "part": "predict-by-hand",
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python benchmarks/predict_by_hand.py --models {given.models} --repetitions {given.repetitions} "
        f"--rounds {given.rounds}",
        "machine": common.machine() | {"model": processor()},
        "versions": common.versions() | versions,
        "seconds": round(time.monotonic() - began, 1),
        "measured": measured,
    }
    kept = bounds(measured)
    common.write(given.out / "predict-by-hand-cpu.json", record, kept)
    common.told(kept, quick=given.quick)


if __name__ == "__main__":
    main()
