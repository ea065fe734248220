"""On paper: how much of the time 8 to 16,384 ranks train, for three ways to live with failures.

    python benchmarks/scale_simulation.py       # writes results/scale-simulation.json and docs/pictures/scale.svg

Nothing here was measured with more than four ranks. Costs that were measured are read from benchmarks/results, each
with the file it is in (MEASURED); everything else is an assumption and stands in ASSUMED. Failures come at random
(exponentially distributed), as often as published for Llama 3: 466 interruptions in 54 days on 16,384 GPUs. All draws
come from one seed. `checkpoint_restart` can be checked against a closed form (`expected_share`, after Daly).

The ways:
- checkpoint-restart: all stop at a failure, start again, and compute again what came after the last checkpoint. The
  checkpoints come as often as is best (Young and Daly), which nobody knows beforehand.
- replicas go on (torchft): the others wait for a heartbeat that does not come, discard the step, and go on without the
  replica of the lost rank, which joins again after its restart or repair.
- holdfast: all go back to the last commit in memory and build a new group. The lost rank is replaced at once after a
  fault of its process; after a fault of its hardware the ranks of its host are away until the repair (--min-ranks).
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PICTURE = HERE.parent / "docs" / "pictures" / "scale.svg"
SEED = 20261117
RANKS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10000, 16384)
HOUR = 3600.0


def _read(name: str, *keys: Any) -> float:
    found: Any = json.loads((RESULTS / name).read_text())
    for key in keys:
        found = found[key]
    return float(found)


def _job(name: str, job: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / name).read_text())["jobs"]
    return next(row for row in rows if row["job"] == job)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, unless a name says something else."""

    step: float
    commit_every: float
    slowdown: float
    """Times the step without holdfast."""
    regroup: float
    """From the loss of a rank to the next commit, with four ranks."""
    checkpoint: float
    restart: float
    heartbeat: float
    rejoin: float
    repair: float
    hardware_share: float
    host: int
    rank_mtbf: float


def measured() -> dict[str, dict[str, Any]]:
    """What was measured, and where it stands."""
    gpt = _job("cost-h200.json", "gpt-774m")
    storage = json.loads((RESULTS / "storage-cpu.json").read_text())["measured"]
    state_mb = 774e6 * 12 / 1e6  # weights in float32 and two numbers of Adam for each
    return {
        "step": {"value": gpt["cadence"]["step_ms"] / 1e3, "from": "cost-h200.json: gpt-774m, one H200"},
        "commit_every": {"value": gpt["cadence"]["every_s"], "from": "cost-h200.json: gpt-774m, one H200"},
        "slowdown": {
            "value": max(gpt["ratio"], 1.0 + gpt["cadence"]["commit_ms"] / 1e3 / gpt["cadence"]["every_s"]),
            "from": "cost-h200.json: gpt-774m, the larger of held / bare and of what its commits take of the time",
        },
        "regroup": {
            "value": _read(
                "ranks-cpu.json", "measured", "4 ranks", "seconds_from_the_last_beat_to_the_next_commit", "p50"
            ),
            "from": "ranks-cpu.json: 4 ranks over gloo on 2 cores",
        },
        "checkpoint": {
            "value": state_mb / storage["megabytes"] * storage["write_s"],
            "from": "storage-cpu.json: 537 MB in 1.88 s, times the 9.3 GB of gpt-774m with Adam; training waits",
        },
    }


ASSUMED: dict[str, dict[str, Any]] = {
    "restart": {"value": 300.0, "why": "schedule, import, connect and load for all ranks; measured with two: 4 s"},
    "heartbeat": {"value": 5.0, "why": "torchft's lighthouse calls a replica dead after 5,000 ms (its default)"},
    "rejoin": {"value": 60.0, "why": "one replica of torchft starts again and gets its state from another"},
    "repair": {"value": HOUR, "why": "until the host of a broken GPU is replaced, for all ways that go on without it"},
    "hardware_share": {"value": 0.78, "why": "of the unexpected interruptions of Llama 3"},
    "host": {"value": 8, "why": "ranks that leave together when a GPU of their host breaks; also torchft's replica"},
    "rank_mtbf": {"value": 54 * 24 * HOUR * 16384 / 466, "why": "Llama 3: 466 in 54 days on 16,384 GPUs"},
}


def costs() -> Costs:
    values = {name: row["value"] for name, row in (measured() | ASSUMED).items()}
    return Costs(**values)


# Checkpoint and restart -------------------------------------------------------------------------------------


def best_interval(checkpoint: float, mtbf: float) -> float:
    """Young: seconds of training between two checkpoints."""
    return math.sqrt(2.0 * checkpoint * mtbf)


def expected_share(interval: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Daly's closed form: useful time over all time, where failures also come during checkpoints and restarts."""
    return interval / (mtbf * math.exp(restart / mtbf) * math.expm1((interval + checkpoint) / mtbf))


def checkpoint_restart(
    interval: float, checkpoint: float, restart: float, mtbf: float, failures: int, draw: random.Random
) -> float:
    """The same share, from so many failures."""
    useful = elapsed = 0.0
    for _ in range(failures):
        until = draw.expovariate(1.0 / mtbf)
        useful += interval * (until // (interval + checkpoint))
        elapsed += until
        while (again := draw.expovariate(1.0 / mtbf)) < restart:
            elapsed += again
        elapsed += restart
    return useful / elapsed


# The others go on -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """What one failure costs all ranks, and how many are away for how long."""

    pause: float
    away_ranks: int
    away: float
    pause_again: float
    """When those that were away join."""


def others_go_on(
    ranks: int, mtbf: float, failures: int, draw: random.Random, lose: Callable[[random.Random], Loss], speed: float
) -> float:
    """Useful time over all time, of so many failures. A failure during a pause begins the pause anew."""
    useful = elapsed = 0.0
    back: list[tuple[float, int, float]] = []  # when, how many, and what their joining costs
    away = 0
    for _ in range(failures):
        end = elapsed + draw.expovariate(1.0 / mtbf)
        while back and back[0][0] <= end:
            when, many, cost = heapq.heappop(back)
            useful += max(0.0, when - elapsed) * (ranks - away) / ranks
            elapsed = max(elapsed, when) + cost
            away -= many
        useful += max(0.0, end - elapsed) * (ranks - away) / ranks
        loss = lose(draw)
        elapsed = max(elapsed, end)
        while (again := draw.expovariate(1.0 / mtbf)) < loss.pause:
            elapsed += again
        elapsed += loss.pause
        if loss.away_ranks and away + loss.away_ranks < ranks:
            away += loss.away_ranks
            heapq.heappush(back, (elapsed + loss.away, loss.away_ranks, loss.pause_again))
        elif loss.away_ranks:
            elapsed += loss.away  # nobody is left: all wait for the repair
    return speed * useful / elapsed


def holdfast_way(c: Costs, regroup: float) -> Callable[[random.Random], Loss]:
    def lose(draw: random.Random) -> Loss:
        pause = regroup + draw.random() * c.commit_every + c.step
        if draw.random() < c.hardware_share:
            return Loss(pause, c.host, c.repair, regroup)
        return Loss(pause, 0, 0.0, 0.0)

    return lose


def replicas_way(c: Costs, regroup: float) -> Callable[[random.Random], Loss]:
    def lose(draw: random.Random) -> Loss:
        hardware = draw.random() < c.hardware_share
        pause = c.heartbeat + regroup + draw.random() * c.step
        return Loss(pause, c.host, c.repair if hardware else c.rejoin, regroup)

    return lose


# All of it --------------------------------------------------------------------------------------------------


def log_regroup(c: Costs, ranks: int) -> float:
    """An assumption: a tree of connections. Measured with four ranks only."""
    return c.regroup * max(1.0, math.log2(ranks) / math.log2(4))


def linear_regroup(c: Costs, ranks: int) -> float:
    """The worst case: each rank adds as much as each of the first four."""
    return c.regroup * ranks / 4


def simulate(failures: int = 4000) -> dict[str, Any]:
    c = costs()
    rows = []
    for ranks in RANKS:
        mtbf = c.rank_mtbf / ranks
        draw = random.Random(SEED + ranks)
        interval = best_interval(c.checkpoint, mtbf)
        log, linear = log_regroup(c, ranks), linear_regroup(c, ranks)
        ours, theirs = holdfast_way, replicas_way
        rows.append(
            {
                "ranks": ranks,
                "hours_between_failures": round(mtbf / HOUR, 2),
                "best_interval_s": round(interval),
                "checkpoint_restart": _share(
                    checkpoint_restart(interval, c.checkpoint, c.restart, mtbf, failures, draw)
                ),
                "checkpoint_restart_closed_form": _share(expected_share(interval, c.checkpoint, c.restart, mtbf)),
                "replicas": _share(others_go_on(ranks, mtbf, failures, draw, theirs(c, log), 1.0)),
                "holdfast": _share(others_go_on(ranks, mtbf, failures, draw, ours(c, log), 1.0 / c.slowdown)),
                "holdfast_without_its_slowdown": _share(others_go_on(ranks, mtbf, failures, draw, ours(c, log), 1.0)),
                "holdfast_linear_regroup": _share(
                    others_go_on(ranks, mtbf, failures, draw, ours(c, linear), 1.0 / c.slowdown)
                ),
            }
        )
    at = c.rank_mtbf / 16384
    restarts = {}
    for seconds in (4.0, 60.0, 300.0, 900.0):
        share = expected_share(best_interval(c.checkpoint, at), c.checkpoint, seconds, at)
        restarts[f"{seconds:.0f} s"] = _share(share)
    return {"seed": SEED, "failures": failures, "rows": rows, "checkpoint_restart_at_16384_by_restart": restarts}


def _share(value: float) -> float:
    return round(value, 4)


def draw_picture(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "scale", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.0))
    ranks = [row["ranks"] for row in rows]
    for key, label, style in (
        ("checkpoint_restart", "checkpoint and restart, best interval", "C3-o"),
        ("replicas", "replicas go on (torchft's scheme)", "C0-s"),
        ("holdfast", "holdfast, as measured on one H200", "C2-D"),
        ("holdfast_without_its_slowdown", "holdfast, protection for free", "C2:"),
        ("holdfast_linear_regroup", "holdfast, regroup grows with ranks", "C2--"),
    ):
        axes.plot(ranks, [100 * row[key] for row in rows], style, label=label, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [f"{each:,}" for each in ranks], rotation=45)
    axes.set_ylim(40, 101)
    axes.set_xlabel("ranks")
    axes.set_ylabel("% of the time spent on training")
    axes.set_title("On paper: nothing here was run with more than four ranks", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    record = {
        "date": "2026-11-17",
        "command": "python benchmarks/scale_simulation.py",
        "note": "A simulation, not a measurement: no run had more than four ranks.",
        "measured": measured(),
        "assumed": ASSUMED,
        **simulate(),
    }
    (RESULTS / "scale-simulation.json").write_text(json.dumps(record, indent=1) + "\n")
    draw_picture(record["rows"], PICTURE)
    for row in record["rows"]:
        print(row)


if __name__ == "__main__":
    main()
