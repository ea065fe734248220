"""Runs side by side: which settings differ, what each went through, and which numbers they share.

    together([side(run, ident) for …])      # runs, metrics all of them have, rows that differ, faults side by side

Two runs of one script with one seed on two devices are the question of trust: `same_seed` says so, and the largest
distance between their curves is measured, not guessed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.monitor import payload
from holdfast.monitor.reader import Run

_OF_INTEREST = ("script", "script_sha256", "seed", "threads", "holdfast", "python")
_NOT_SETTINGS = ("run.folder",)


def side(run: Run, ident: str) -> dict[str, Any]:
    """One run's column."""
    identity = {key: run.info.get(key) for key in _OF_INTEREST}
    arguments = run.info.get("arguments")
    receipt = run.receipt or {}
    column: dict[str, Any] = payload.finite(
        {
            **payload.glance(run, ident),
            "lasted_s": run.lasted_s,
            "identity": identity,
            "arguments": arguments if isinstance(arguments, dict) else {},
            "settings": {each.key: each.shown for each in run.settings if each.key not in _NOT_SETTINGS},
            "torch": run.story.torch,
            "metrics": list(run.curves),
            "last": run.curves.last(),
            "devices": list(dict.fromkeys(str(row.get("device")) for row in run.device_timeline)),
            "faults_by": dict(Counter(f"{fault.code} {fault.kind}" for fault in run.faults)),
            "faults_total": run.faults_total,
            "seconds_lost": receipt.get("seconds_lost"),
            "weights_sha256": receipt.get("weights_sha256"),
        }
    )
    return column


def together(sides: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs share and where they differ."""
    names = list(dict.fromkeys(name for each in sides for name in each["metrics"]))
    counts = Counter(name for each in sides for name in each["metrics"])
    return {
        "runs": sides,
        "metrics": sorted(names, key=lambda name: -counts[name]),
        "differs": _differing(sides),
        "same_seed": _same_seed(sides),
        "faults": sorted({kind for each in sides for kind in each["faults_by"]}),
    }


def _differing(sides: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose values are not all the same: identity, arguments, settings."""
    rows: list[dict[str, Any]] = []
    for group in ("identity", "arguments", "settings"):
        keys = dict.fromkeys(key for each in sides for key in each[group])
        for key in keys:
            values = [each[group].get(key) for each in sides]
            if any(value != values[0] for value in values):
                rows.append(
                    {"group": group, "key": key, "values": [None if v is None else str(v)[:200] for v in values]}
                )
    for key in ("torch", "devices"):
        values = [", ".join(each[key]) if isinstance(each[key], list) else each[key] for each in sides]
        if any(value != values[0] for value in values):
            rows.append({"group": "where", "key": key, "values": values})
    return rows


def _same_seed(sides: list[dict[str, Any]]) -> bool:
    """The same script, seed and arguments: what differs between them is the hardware."""
    if len(sides) < 2:
        return False
    keys = [
        (each["identity"].get("script_sha256"), each["identity"].get("seed"), str(each["arguments"])) for each in sides
    ]
    return keys[0][0] is not None and all(key == keys[0] for key in keys)
