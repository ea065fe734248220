"""How long a step takes with the sentinel and without, in runs of `holdfast train` as users have them.

timed("gpt124", device="cuda:0", seconds=40, scratch=folder)          # a row with the figures
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
JOB = ROOT / "benchmarks" / "jobs" / "watched.py"
FIRST = 12
"""Steps of a run that are not counted: libraries and the copies of the state begin in them."""
AFTER = 5
"""Steps after a look that it may still disturb: its copies are written and handed over then."""


def timed(
    model: str, *, device: str, seconds: float, scratch: Path, most: float, words: tuple[str, ...] = ()
) -> dict[str, Any]:
    """One run; ended as soon as its figures are there."""
    out = scratch / f"steps-{model}{'-'.join(words)}.json"
    began = time.monotonic()
    with (scratch / f"run-{model}.txt").open("w") as log:
        run = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "train", str(JOB), f"model={model}", f"seconds={seconds}",
             f"out={out}", f"run.folder={scratch / 'runs'}", "--device", device, *words],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, cwd=scratch,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOLDFAST_STATE": str(scratch / "state")},
        )  # fmt: skip
        while run.poll() is None and not _whole(out) and time.monotonic() - began < most:
            time.sleep(0.2)
        _end(run)
    tail = (scratch / f"run-{model}.txt").read_text(errors="replace")[-1500:]
    row: dict[str, Any] = {"model": model, "seconds": round(time.monotonic() - began, 1)}
    if not _whole(out):
        return {**row, "failed": f"no figures; the run said: {tail}"}
    told = json.loads(out.read_text())
    return {**row, **figures(told), "suspected": "suspic" in tail}


def _whole(out: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        json.loads(out.read_text())
        return True
    return False


def _end(run: subprocess.Popen[bytes]) -> None:
    """It would write a last checkpoint, which takes a minute for the largest; nobody needs it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if run.poll() is None:
            run.send_signal(signal.SIGTERM)
        run.wait(4)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def figures(told: dict[str, Any]) -> dict[str, Any]:
    """Medians, means, and the longest step that a look can have caused; the first steps of a run do not count."""
    rows = told.pop("rows")
    looks = [place for place, (_, _, checks) in enumerate(rows) if place and checks > rows[place - 1][2]]
    near = {place + after for place in looks for after in range(AFTER + 1)}
    steady = range(FIRST, len(rows))
    on = [rows[place][0] for place in steady if rows[place][1]]
    off = [rows[place][0] for place in steady if not rows[place][1] and place not in near]
    told |= {"steps": len(rows), "looks": len(looks), "steps_ms": [_ms(each) for each, _, _ in rows][:4000],
             "looks_at": looks, "first_steps_ms": [_ms(each) for each, _, _ in rows[:10]]}  # fmt: skip
    if not on or not off:
        return {**told, "failed": "too few steps"}
    middle = statistics.median(off)
    seen = [rows[place][0] for place in looks if place >= FIRST]
    after = [rows[place][0] for place in near if FIRST <= place < len(rows) and place not in looks]
    return {
        **told, "median_on_ms": _ms(statistics.median(on)), "median_off_ms": _ms(middle),
        "ratio_median": round(statistics.median(on) / middle, 4), "ratio_neighbours": _paired(rows)[0],
        "give_or_take": _paired(rows)[1],
        "mean_on_ms": _ms(statistics.mean(on)), "mean_off_ms": _ms(statistics.mean(off)),
        "ratio_mean": round(statistics.mean(on) / statistics.mean(off), 4),
        "looks_ms": [_ms(each) for each in seen], "longest_look_ms": _ms(max(seen, default=0.0)),
        "longest_after_ms": _ms(max(after, default=0.0)), "longest_off_ms": _ms(max(off)),
        "first_look_ms": _ms(rows[looks[0]][0]) if looks else None,
        "looks_over_bound": sum(each > max(2 * middle, 0.05) for each in seen),
    }  # fmt: skip


def _paired(rows: list[Any]) -> tuple[float | None, float | None]:
    """Each window with the sentinel against its two neighbours without it, and how far the median may be off.

    What drifts is in both.
    """
    windows: list[tuple[bool, list[float]]] = []
    for seconds, on, _ in rows[FIRST:]:
        if not windows or windows[-1][0] != on:
            windows.append((on, []))
        windows[-1][1].append(seconds)
    middles = [(on, statistics.median(each)) for on, each in windows]
    ratios = [
        2 * middle / (middles[place - 1][1] + middles[place + 1][1])
        for place, (on, middle) in enumerate(middles[:-1])
        if on and place
    ]
    if len(ratios) < 2:
        return (round(ratios[0], 4), None) if ratios else (None, None)
    return round(statistics.median(ratios), 4), round(1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5, 4)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
