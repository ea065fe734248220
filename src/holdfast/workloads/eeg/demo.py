"""Windows to try things on: simulated once in a few seconds, found again after that.

windows = demo_data("~/.cache/holdfast/eeg-demo", seed=0)
windows["challenge1"], windows["challenge2"], windows["pretrain"]       # Windows, all of them simulated
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import files
from holdfast.workloads.eeg import bids, cache, simulate
from holdfast.workloads.eeg.cache import Windows
from holdfast.workloads.eeg.prepare import prepare

SIZES: dict[str, Any] = {"subjects": 96, "runs": 1, "trials": 20, "rest_seconds": 40.0, "brisk": True}
AS_SERVED: dict[str, Any] = {"band": None, "notch": None, "bad": "keep"}
"""The competition serves windows as they were recorded: a model that is trained on others is judged on these."""


def demo_data(
    folder: str | os.PathLike[str],
    seed: int = 0,
    *,
    workers: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    **sizes: Any,
) -> dict[str, Windows]:
    """The three kinds of windows of a simulated set; `sizes` are arguments of `simulate.write`."""
    root = Path(folder).expanduser()
    data, wanted = root / "data", {**SIZES, "seed": seed, **sizes}
    tell = progress or (lambda done, total, what: None)
    if (files.read_json(data / simulate.TRUTH) or {}).get("made_with") != _plain(wanted):
        _simulate(data, wanted, workers, tell)
    kinds = {"challenge1": {}, "challenge2": {}, "pretrain": {"tasks": ("RestingState",)}}  # type: dict[str, dict[str, Any]]
    found = {}
    for kind, more in kinds.items():
        report = prepare(
            data, root / "cache", kind=kind, workers=workers, progress=tell, rebuild=False, **AS_SERVED, **more
        )
        found[kind] = cache.open(report.folder)
    return found


def _simulate(data: Path, wanted: dict[str, Any], workers: int | None, tell: Callable[[int, int, str], None]) -> None:
    if bids.is_simulated(files.read_json(data / bids.DESCRIPTION) or {}):
        files.remove(data)
        files.remove(data.parent / "cache")
    simulate.write(data, workers=workers, progress=lambda done, total: tell(done, total, "simulating"), **wanted)
    truth = simulate.truth(data)
    files.write_json(data / simulate.TRUTH, {**truth, "made_with": _plain(wanted)}, durable=False)


def _plain(wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in sorted(wanted.items())}
