"""Windows to try things on: simulated once in a few seconds, found again after that.

windows = demo_data("~/.cache/holdfast/eeg-demo", seed=0)
windows["challenge1"], windows["challenge2"], windows["pretrain"]       # Windows, all of them simulated
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.base import files
from holdfast.workloads.eeg import bids, cache, locking, simulate
from holdfast.workloads.eeg.cache import Windows
from holdfast.workloads.eeg.prepare import OtherCache, Progress, prepare

SIZES: dict[str, Any] = {"subjects": 96, "runs": 1, "trials": 20, "rest_seconds": 40.0, "brisk": True}
_PATIENCE = 900.0
AS_SERVED: dict[str, Any] = {"band": None, "notch": None, "bad": "keep"}
"""The competition serves windows as they were recorded: a model that is trained on others is judged on these."""

KINDS: dict[str, dict[str, Any]] = {"challenge1": {}, "challenge2": {}, "pretrain": {"tasks": ("RestingState",)}}


def demo_data(
    folder: str | os.PathLike[str],
    seed: int = 0,
    *,
    kinds: Iterable[str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    **sizes: Any,
) -> dict[str, Windows]:
    """Windows of a simulated set, of all three kinds or of `kinds`; `sizes` are arguments of `simulate.write`."""
    root = Path(folder).expanduser()
    data, wanted = root / "data", {**SIZES, "seed": seed, **sizes}
    tell = progress or (lambda done, total, what: None)
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locking.held(root / "lock", wait=_PATIENCE):  # two trainings may ask at once: the second finds it made
        return _made(root, data, wanted, KINDS if kinds is None else tuple(kinds), workers, tell)


def _made(
    root: Path, data: Path, wanted: dict[str, Any], kinds: Iterable[str], workers: int | None, tell: Progress
) -> dict[str, Windows]:
    if (files.read_json(data / simulate.TRUTH) or {}).get("made_with") != _plain(wanted):
        _simulate(data, wanted, workers, tell)
    found = {}
    for kind in kinds:
        options = {"kind": kind, "workers": workers, "progress": tell, **AS_SERVED, **KINDS[kind]}
        try:
            report = prepare(data, root / "cache", **options)
        except OtherCache:  # made by an older holdfast; here nothing of value can be lost
            report = prepare(data, root / "cache", rebuild=True, **options)
        found[kind] = cache.open(report.folder)
    return found


def _simulate(data: Path, wanted: dict[str, Any], workers: int | None, tell: Progress) -> None:
    if bids.is_simulated(files.read_json(data / bids.DESCRIPTION) or {}):
        files.remove(data)
        files.remove(data.parent / "cache")
    simulate.write(data, workers=workers, progress=lambda done, total: tell(done, total, "simulating"), **wanted)
    truth = simulate.truth(data)
    files.write_json(data / simulate.TRUTH, {**truth, "made_with": _plain(wanted)}, durable=False)


def _plain(wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in sorted(wanted.items())}
