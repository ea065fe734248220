"""Latency and throughput, interleaved with the baseline: a few calls of one, a few of the other, and again.

    found = against(baseline, child, seconds=2.0)        # both are children with something loaded
    found["ratio"], found["ratio_low"], found["ratio_high"]
    found["p50"], found["p95"], found["p99"]             # seconds of a call, batch 1

Other work on the machine comes and goes; two processes that take turns feel the same of it. No torch here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from holdfast.optimize.children import Child

WARM = 3
ROUNDS, FEWEST = 12, 6
SETTLE = 0.02
"""Seconds between two turns: threads of the one before may still be spinning."""
DEADLINE = 60.0


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: a value that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * (len(ordered) - 1))))]


def timed(child: Child, batch: int, count: int, seconds: float, deadline: float = DEADLINE) -> list[float]:
    """Seconds of each call, fewer than `count` if they take long."""
    said = child.ask({"do": "time", "batch": batch, "count": count, "seconds": seconds}, deadline + seconds)
    return [float(each) for each in said["times"]]


def against(
    baseline: Child,
    child: Child,
    *,
    seconds: float = 2.0,
    batch: int = 1,
    rounds: int = ROUNDS,
    deadline: float = DEADLINE,
) -> dict[str, Any]:
    """The child's latency, and how many times faster than the baseline it is."""
    once = sum(min(timed(each, batch, WARM, seconds / 2, deadline)) for each in (baseline, child))
    rounds = max(min(FEWEST, rounds), min(rounds, int(seconds / once)))  # a slow model gets fewer, but never too few
    slice_s = seconds / rounds / 2
    mine: list[float] = []
    theirs: list[float] = []
    ratios: list[float] = []
    for number in range(rounds):
        order = (baseline, child) if number % 2 == 0 else (child, baseline)
        found = {}
        for each in order:
            time.sleep(SETTLE)
            found[id(each)] = timed(each, batch, 400, slice_s, deadline)
        ratios.append(statistics.median(found[id(baseline)]) / statistics.median(found[id(child)]))
        mine += found[id(child)]
        theirs += found[id(baseline)]
    return {
        "calls": len(mine),
        **{f"p{share}": percentile(mine, share / 100) for share in (50, 95, 99)},
        "least": min(mine),
        "baseline_p50": statistics.median(theirs),
        # The smaller of two estimates: a machine that stalls in some rounds makes one of them far too good.
        "ratio": min(statistics.median(ratios), statistics.median(theirs) / statistics.median(mine)),
        "ratio_low": percentile(ratios, 0.25),
        "ratio_high": percentile(ratios, 0.75),
        "ratio_of_least": min(theirs) / min(mine),
    }


def throughput(child: Child, batches: Sequence[int], seconds: float, deadline: float = DEADLINE) -> dict[str, float]:
    """Inputs per second at larger batches."""
    found = {}
    for batch in batches:
        timed(child, batch, 1, seconds, deadline)
        times = timed(child, batch, 50, seconds, deadline)
        found[str(batch)] = batch * len(times) / sum(times)
    return found
