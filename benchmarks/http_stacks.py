"""Whether starlette and uvicorn could serve bundles, as they serve the page.

Answers a second of uvicorn beside those of holdfast's own server. Both are one process with the same engine, the same
batcher and the same sixteen clients (jobs/serve_load.py), turn by turn; what differs is HTTP. uvicorn is taken with
h11, which is in the lock, and with httptools where that is installed.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from typing import Any

from common import JOBS, Bound, command, say
from serving import Served

from holdfast.optimize.pipeline import Options, optimize

TURNS = 7
LOSS = 0.8
"""Of the own server's answers a second: what one HTTP stack may cost."""


def stacks(scratch: Path, quick: bool) -> dict[str, Any]:
    """One HTTP stack or two: answers a second of uvicorn and of the own server, small requests and large ones."""
    return {
        name: _compared(_bundle(scratch, name, shape), 64 if quick else many)
        for name, shape, many in (("policy", [1, 256], 4000), ("recording", [1, 129, 1000], 600))
    }


def _bundle(scratch: Path, name: str, shape: list[int]) -> Path:
    spec = {"kind": "module", "factory": f"{JOBS / 'http_models.py'}:{name}", "shapes": [shape]}
    options = Options(seconds=0.5, profile=False, batches=(16,), engines=("onnxruntime fp32",))
    optimize(spec, scratch / name, options, tell=lambda text: say(f"  {text}"))
    return scratch / name


def _compared(folder: Path, many: int) -> dict[str, Any]:
    """Turn by turn, the own server twice: its two rows say what is noise."""
    parsers = ["h11", *(["httptools"] if importlib.util.find_spec("httptools") else [])]
    asgi = [sys.executable, str(JOBS / "asgi_serve.py"), str(folder)]
    own = command("serve", str(folder), "--port", "0", "--batch", "16", "--readers", "0")
    ways = {"own": own, "own again": own, **{f"uvicorn, {each}": [*asgi, each] for each in parsers}}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, words in ways.items():
            with Served(folder, words=words) as served:
                served.load(16, max(16, many // 10))
                rate = float(served.load(16, many)["per_s"])
            if turn:  # the first turn warms files and caches
                rates[name].append(rate)
    return {name: _row(rates["own"], found) for name, found in rates.items()}


def _row(own: list[float], found: list[float]) -> dict[str, Any]:
    ratios = sorted(b / a for a, b in zip(own, found, strict=True))
    return {"per_s": round(statistics.median(found)), "of_own": round(statistics.median(ratios), 3),
            "ratios": [round(each, 3) for each in ratios]}  # fmt: skip


def stacks_bounds(measured: dict[str, Any]) -> list[Bound]:
    """The own server is worth its code while uvicorn loses more than a fifth somewhere."""
    best = min(max(row["of_own"] for name, row in rows.items() if "uvicorn" in name) for rows in measured.values())
    return [
        Bound("uvicorn: answers a second, of those of the own server", best, f"below {LOSS}", best < LOSS, quick=False)
    ]
