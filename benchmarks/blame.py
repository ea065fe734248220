"""Is blame right? A hundred runs, each with one known culprit, and what the run said about it.

    python benchmarks/bench.py --parts blame

Device, data, code, precision, memory and what comes from outside, in kinds and places drawn by a seed: a pretended
device that crashes, hangs, reports sticky errors or computes wrong numbers, once or each time; samples with a label out
of range, a NaN, an event table that cannot be read, or that kill their reader; a script that raises, crashes the
interpreter or takes the logarithm of zero; fp16 that overflows; memory that runs out; kill -9. "unknown" is an answer,
and counted.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, Bound, at_most, command, events, exactly, say

from holdfast.base.state_folder import VARIABLE as STATE
from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment
from holdfast.injection.chaos import VARIABLE as CHAOS
from holdfast.injection.chaos import FaultPlan

JOB = ROOT / "tests" / "faults" / "jobs" / "doubt.py"
LEAST_RIGHT = 95
COMMON = ["run.threads=1", "watchdog.floor=2s", "watchdog.first_step=30s", "probation.enabled=false"]


@dataclass(frozen=True)
class Scene:
    """One run: who is at fault, and how that is brought about."""

    culprit: str
    name: str
    words: tuple[str, ...] = ()
    ailment: Ailment | None = None
    chaos: str = ""
    device: str = "pretend:0"
    env: dict[str, str] = field(default_factory=dict)


def _device(draw: random.Random) -> Iterator[Scene]:
    step = draw.randint(3, 12)
    for kind in ("crash", "hang", "error"):
        yield Scene("device", f"{kind} once", ailment=Ailment(kind, step=step, times=1))
    for kind in ("crash", "error"):
        yield Scene("device", f"{kind} each time", ailment=Ailment(kind, step=step, times=None))
    for how in ("scale", "zero", "bit"):
        ailment = Ailment("wrong", how=how, step=step, times=None)
        yield Scene("device", f"wrong numbers, {how}", ("sentinel.cost=1000000",), ailment=ailment)
    never = ("sentinel.enabled=never",)
    yield Scene("device", "not a number", never, ailment=Ailment("wrong", how="nan", step=step, times=None))
    yield Scene("device", "transient error", chaos=f"transient@{step}:backward")


def _data(draw: random.Random) -> Iterator[Scene]:
    sample = f"sample={draw.randrange(64)}"
    for shows_as in ("error", "hang", "crash"):
        yield Scene("data", f"label, shows as {shows_as}", ("bad=label", f"shows_as={shows_as}", sample))
    yield Scene("data", "label, on the CPU", ("bad=label", sample), device="cpu")
    for bad in ("nan", "huge", "events"):
        yield Scene("data", bad, (f"bad={bad}", sample), device=draw.choice(["cpu", "pretend:0"]))
    yield Scene("data", "events, in a loader process", ("bad=events", "workers=2", sample))
    yield Scene("data", "kills its reader", ("bad=kills", "workers=2", sample))


def _others(draw: random.Random) -> Iterator[Scene]:
    at = f"at={draw.randint(3, 12)}"
    yield Scene("code", "raises", ("code=raises", at))
    yield Scene("code", "crashes", ("code=crashes", at))
    yield Scene("code", "logarithm of zero", ("code=log", at), device=draw.choice(["cpu", "pretend:0"]))
    yield Scene("code", "raises for every sample", ("bad=bug",))
    yield Scene("precision", "fp16 overflows", ("half=true", at))
    yield Scene("memory", "out of memory", chaos=f"oom@{draw.randint(3, 12)}")
    yield Scene("outside", "kill -9", chaos=f"sigkill@{draw.randint(3, 12)}")


def scenes(count: int, seed: int = 5) -> list[Scene]:
    draw = random.Random(seed)
    found: list[Scene] = []
    while len(found) < count:
        found += [*_device(draw), *_data(draw), *_others(draw)]
    return found[:count]


def verdict(folder: Path, summary: dict[str, Any]) -> str:
    """Who the run blamed: by its verdicts, or by the error that ended it."""
    told = [event.data["blame"] for event in events(folder, "verdict")]
    if told:
        return str(told[-1])
    error = next((event.data.get("error") for event in events(folder, "end")), None) or {}
    blame = error.get("blame") or {}
    if blame.get("blame"):
        return str(blame["blame"])
    return "code" if summary.get("state") == "FAILED" else "nobody"


def play(scene: Scene, scratch: Path, number: int) -> dict[str, Any]:
    folder = scratch / f"{number:03d}"
    folder.mkdir(parents=True)
    env = {**os.environ, STATE: str(folder / "state"), **scene.env}
    if scene.ailment is not None:
        env[ailments.VARIABLE] = str(ailments.write(folder / "pretend.json", [scene.ailment]))
    if scene.chaos:
        FaultPlan.parse(scene.chaos).write(folder / "plan.json")
        env[CHAOS] = str(folder / "plan.json")
    words = [str(JOB), "--device", scene.device, *scene.words, *COMMON, f"run.folder={folder / 'runs'}", "--json", "-q"]
    done = subprocess.run(command("train", *words), env=env, capture_output=True, text=True, timeout=300.0, check=False)
    try:
        summary = json.loads(done.stdout)
    except ValueError:
        return {"culprit": scene.culprit, "name": scene.name, "blamed": "nobody", "error": done.stderr[-500:]}
    run = Path(summary["folder"])
    said = [event.data["sentence"] for event in events(run, "verdict")]
    return {
        "culprit": scene.culprit,
        "name": scene.name,
        "blamed": verdict(run, summary),
        "state": summary["state"],
        "faults": summary["receipt"]["faults"],
        "said": said[-1] if said else (summary.get("error") or {}).get("message"),
    }


def measure(scratch: Path, quick: bool) -> dict[str, Any]:
    """Every scene in a process of its own, two at a time."""
    listed = scenes(26 if quick else 104)
    rows: list[dict[str, Any]] = []

    def one(number: int) -> dict[str, Any]:
        row = play(listed[number], scratch, number)
        sign = "✓" if row["blamed"] == row["culprit"] else "✗"
        say(f"  {sign} {number + 1:3} {row['culprit']:<10} {row['name']:<28} → {row['blamed']}")
        return row

    with ThreadPoolExecutor(max_workers=2) as pool:
        rows = list(pool.map(one, range(len(listed))))
    table: dict[str, Counter[str]] = {}
    for row in rows:
        table.setdefault(row["culprit"], Counter())[row["blamed"]] += 1
    right = sum(row["blamed"] == row["culprit"] for row in rows)
    return {
        "runs": len(rows),
        "right": right,
        "unknown": sum(row["blamed"] == "unknown" for row in rows),
        "wrong": sum(row["blamed"] not in ("unknown", row["culprit"]) for row in rows),
        "confusion": {culprit: dict(counted) for culprit, counted in sorted(table.items())},
        "not_right": [row for row in rows if row["blamed"] != row["culprit"]],
        "scenes": {name: _share(rows, name) for name in sorted({row["name"] for row in rows})},
    }


def _share(rows: list[dict[str, Any]], name: str) -> str:
    mine = [row for row in rows if row["name"] == name]
    return f"{sum(row['blamed'] == row['culprit'] for row in mine)} of {len(mine)}"


def bounds(measured: dict[str, Any]) -> list[Bound]:
    share = 100.0 * measured["right"] / measured["runs"]
    return [
        Bound("percent of blame that is right", round(share, 1), LEAST_RIGHT, share >= LEAST_RIGHT),
        at_most("runs in which the wrong one was blamed", measured["wrong"], 2),
        exactly("runs that blamed nobody at all", _nobody(measured), 0),
    ]


def _nobody(measured: dict[str, Any]) -> int:
    return sum(row.get("nobody", 0) for row in measured["confusion"].values())
