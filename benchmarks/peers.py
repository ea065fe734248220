"""The part `peers` of bench.py: the same small job bare, with torchrun, Lightning, Accelerate, holdfast; faults.

Every way is a real process of its own that gets a real fault; each is written as its own documentation recommends, and
the three that can only save are started again by torchrun, which each of them documents. docs/how-it-compares.md is
made from what is kept here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import JOBS, Bound, at_most, end_group, exactly, say

PEERS = JOBS / "peers"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--max-restarts", "3"]
WAYS: dict[str, list[str]] = {
    "bare": [str(PEERS / "bare.py")],
    "torchrun": [*TORCHRUN, str(PEERS / "elastic.py")],
    "Lightning": [*TORCHRUN, str(PEERS / "with_lightning.py")],
    "Accelerate": [*TORCHRUN, str(PEERS / "with_accelerate.py")],
    "holdfast": ["-m", "holdfast", "train", str(PEERS / "protected.py"), "--json", "-q"],
}
FAULTS = ("kill", "hang", "oom", "assert", "bad")
HANGS_AFTER = 45.0
"""Seconds after a hang within which a way has to notice it; holdfast notices after 5 by default."""
PATIENCE = 300.0
"""Seconds without a step after any other fault, or at the start: a busy machine imports frameworks slowly."""
LIMIT = 14 * 60.0
"""Seconds for the whole part: what is not done by then is left out, and says so."""


def peers(scratch: Path, quick: bool) -> dict[str, Any]:
    """The same job in five ways, undisturbed and under five faults: finished, repeated, lost, equal."""
    size = {"PEER_EPOCHS": "2", "PEER_SAMPLES": "640", "PEER_AT": "30"} if quick else {}
    ways = ("bare", "torchrun", "holdfast") if quick else tuple(WAYS)
    faults = ("kill", "oom") if quick else FAULTS
    until = time.monotonic() + LIMIT
    plain: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for number in range(1 if quick else 2):  # one way after the other, so that a busy moment is everybody's
        for way in ways:
            plain[way].append(_run(scratch / f"{way}-{number}", way, "", size))
            say(f"  {way:<11}undisturbed  {_short(plain[way][-1])}")
    cells, skipped = [], []
    for fault in faults:
        for way in ways:
            if time.monotonic() > until:
                skipped.append(f"{way} {fault}")
                continue
            found = _run(scratch / f"{way}-{fault}", way, fault, size)
            cells.append({"way": way, "fault": fault, **_against(found, plain[way])})
            say(f"  {way:<11}{fault:<13}{_short(cells[-1])}")
    return {
        "at_step": int(size.get("PEER_AT", "250")),
        "steps": plain["bare"][0]["reached"],
        "hangs_after_s": HANGS_AFTER,
        "undisturbed": {way: _undisturbed(plain[way], plain["bare"]) for way in ways},
        "cells": cells,
        "skipped": skipped,
    }


def _run(folder: Path, way: str, fault: str, size: dict[str, str]) -> dict[str, Any]:
    """One process from its start to its end, or to where it does nothing any more."""
    folder.mkdir(parents=True)
    words = [*WAYS[way]]
    if way == "holdfast":
        # A device error is one only where there is a device: the pretend one computes on the CPU as the others do.
        device = "pretend:0" if fault == "assert" else "cpu"
        words += [f"run.folder={folder / 'runs'}", f"run.device={device}", "run.threads=1"]
        words += ["data.skip_bad=true"] if fault == "bad" else []
    env = {**os.environ, **size, "PEER_FOLDER": str(folder), "PEER_FAULT": fault, "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([env.get("PYTHONPATH", ""), str(PEERS)])
    began = time.time()
    with (
        open(folder / "output.txt", "wb") as output,
        subprocess.Popen(
            [sys.executable, *words], env=env, cwd=folder, stdout=output, stderr=output, start_new_session=True
        ) as run,
    ):
        try:
            hangs = _wait(run, folder)
        finally:
            end_group(run)
    steps = _steps(folder / "steps.log")
    finished = folder / "finished.json"
    end = json.loads(finished.read_text()) if finished.exists() else {}
    gaps = [after[1] - before[1] for before, after in itertools.pairwise(steps[20:])]
    return {
        "finished": bool(end),
        "exit_code": run.returncode,
        "hangs": hangs,
        "seconds": round(time.time() - began, 2) if not hangs else None,
        "computed": len(steps),
        "reached": max((step for step, _ in steps), default=0),
        "repeated": len(steps) - len({step for step, _ in steps}),
        "sha256": end.get("sha256"),
        "step_ms": round(1e3 * statistics.median(gaps), 3) if gaps else None,
        "pause_s": round(max(gaps), 2) if gaps else None,
    }


def _wait(run: subprocess.Popen[bytes], folder: Path) -> bool:
    """True if it stopped making steps and did not end."""
    log, fired = folder / "steps.log", folder / "fired"
    seen, since = -1, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(timeout=0.5)
            return False
        size = log.stat().st_size if log.exists() else 0
        if size != seen:
            seen, since = size, time.monotonic()
        stuck = fired.exists() and fired.read_text() == "hang"
        if time.monotonic() - since > (HANGS_AFTER if stuck else PATIENCE):
            return True


def _steps(log: Path) -> list[tuple[int, float]]:
    rows = [line.split() for line in (log.read_text() if log.exists() else "").splitlines()]
    return [(int(row[1]), float(row[2])) for row in rows if len(row) == 3]


def _against(found: dict[str, Any], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """A run with a fault beside the same way without."""
    usual = statistics.median(each["seconds"] for each in plain)
    same = {each["sha256"] for each in plain}
    equal = None if not found["finished"] or len(same) > 1 else found["sha256"] in same
    lost = round(found["seconds"] - usual, 2) if found["finished"] and found["seconds"] is not None else None
    return {**found, "seconds_lost": lost, "weights_equal": equal}


def _undisturbed(runs: list[dict[str, Any]], bare: list[dict[str, Any]]) -> dict[str, Any]:
    """What a way costs: the median of each round beside the bare loop of the same round."""
    ratios = [mine["step_ms"] / other["step_ms"] for mine, other in zip(runs, bare, strict=True)]
    return {
        "seconds": round(statistics.median(each["seconds"] for each in runs), 2),
        "step_ms": round(statistics.median(each["step_ms"] for each in runs), 3),
        "overhead_percent": round(100 * (statistics.median(ratios) - 1), 1),
        "same_bits_each_time": len({each["sha256"] for each in runs}) == 1,
        "finished": all(each["finished"] for each in runs),
    }


def _short(found: dict[str, Any]) -> str:
    words = "hangs" if found["hangs"] else "finished" if found["finished"] else f"ended with {found['exit_code']}"
    more = f", weights equal {found['weights_equal']}" if "weights_equal" in found else ""
    return f"{words}, {found['repeated']} repeated, {found['seconds']} s, step {found['step_ms']} ms{more}"


def peers_bounds(measured: dict[str, Any]) -> list[Bound]:
    """What the project promises of its own row; the others are as they are."""
    ours = [cell for cell in measured["cells"] if cell["way"] == "holdfast"]
    bounds = [exactly(f"finished after {cell['fault']}", cell["finished"], True) for cell in ours]
    exact = [cell for cell in ours if cell["fault"] != "bad"]  # a run without a sample is another run
    bounds += [exactly(f"weights equal after {cell['fault']}", cell["weights_equal"], True) for cell in exact]
    bounds += [at_most(f"steps repeated after {cell['fault']}", cell["repeated"], 2) for cell in ours]
    undisturbed = [row["finished"] for row in measured["undisturbed"].values()]
    return [
        *bounds,
        exactly("undisturbed runs that did not finish", undisturbed.count(False), 0),
        exactly("cells that were left out for time", len(measured["skipped"]), 0, quick=False),
    ]
