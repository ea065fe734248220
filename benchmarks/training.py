"""The parts of bench.py that train: what protection costs, what faults leave in the weights, how long things take.

Each part is a function of a scratch folder and of whether this is a smoke test (`quick`); beside it stand the bounds
that its figures have to keep.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import JOBS, ROOT, Bound, at_most, command, cost, end_group, events, exactly, say, step, train, unharmed

from holdfast.base import processes
from holdfast.injection.chaos import VARIABLE, FaultPlan
from holdfast.testing import experiment

QUIET = ("-q",)


def overhead(scratch: Path, quick: bool) -> dict[str, Any]:
    """The cost of protecting every step of a 550K-parameter transformer at batch 8, beside other ways to train."""
    result = scratch / "overhead.json"
    sizes = ["size=tiny", "rounds=2", "steps=2"] if quick else ["size=550k", "rounds=8", "steps=2"]
    train([*sizes, f"result={result}"], scratch / "runs", job=JOBS / "overhead.py")
    report: dict[str, Any] = json.loads(result.read_text())
    return report


def overhead_bounds(report: dict[str, Any]) -> list[Bound]:
    return [cost(report)]


def faults(scratch: Path, quick: bool) -> dict[str, Any]:
    """1,000 random faults in one run: the weights of an undisturbed one, bit for bit."""
    epochs, count = (1, 30) if quick else (30, 1000)
    result = experiment.run(
        JOBS / "small.py",
        [f"epochs={epochs}", "run.threads=1", "retry.same_step=8"],
        lambda steps: FaultPlan.random(count, steps=steps, seed=11),
        runs=scratch,
        flags=QUIET,
        say=lambda text: say(f"  {text}"),
    )
    return {"receipt": result.receipt}


def faults_bounds(measured: dict[str, Any]) -> list[Bound]:
    return unharmed(measured["receipt"])


# Recovery ---------------------------------------------------------------------------------------------------


def recovery(scratch: Path, quick: bool) -> dict[str, Any]:
    """Death to next committed step, 81 kills of a transformer; and torchrun with a checkpoint at each epoch."""
    words, kills = (["epochs=1", "windows=160"], 3) if quick else (["epochs=3", "windows=960"], 81)
    result = experiment.run(
        ROOT / "examples" / "windows.py",
        [*words, "run.threads=2"],
        lambda steps: FaultPlan.random(kills, steps=steps, seed=2, kinds=["sigkill"]),
        runs=scratch / "runs",
        references=1,
        flags=QUIET,
        say=lambda text: say(f"  {text}"),
    )
    say("  the same with torchrun")
    return {"holdfast": result.receipt, "torchrun": _torchrun(scratch / "elastic", kills=1 if quick else 3)}


def recovery_bounds(measured: dict[str, Any]) -> list[Bound]:
    receipt = measured["holdfast"]
    seconds = receipt["recovery_s"]
    return [
        *unharmed(receipt),
        at_most("seconds from death to the next commit, p50", seconds["p50"], 0.5, quick=False),
        at_most("seconds from death to the next commit, max", seconds["max"], 0.5, quick=False),
    ]


def _torchrun(folder: Path, kills: int) -> dict[str, Any]:
    """Kill the worker of the same small job in the middle of an epoch; when is it where it was?"""
    folder.mkdir(parents=True)
    log = folder / "steps.log"
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--max-restarts", str(kills)]
    with (
        open(folder / "torchrun.log", "wb") as output,
        subprocess.Popen(
            [*words, str(JOBS / "elastic.py"), str(folder), "4"],
            stdout=output, stderr=output, start_new_session=True,
        ) as run,
    ):  # fmt: skip
        found = []
        try:
            for number in range(kills):
                pid, at, _ = _first(log, lambda row, n=number: row[1] >= 100 * n + 60)
                os.kill(pid, signal.SIGKILL)
                killed = time.time()
                after = _first(log, lambda row, pid=pid, killed=killed: row[0] != pid and row[2] > killed)
                caught = _first(log, lambda row, at=at, killed=killed: row[1] > at and row[2] > killed)
                found.append({"next_step_s": round(after[2] - killed, 2), "caught_up_s": round(caught[2] - killed, 2)})
        finally:
            end_group(run)
    return {"kills": found, "epoch_steps": 100}


def _first(
    log: Path, wanted: Callable[[tuple[int, int, float]], bool], patience: float = 120.0
) -> tuple[int, int, float]:
    """The first row (pid, step, time) of the log that is wanted, once it is there."""
    deadline = time.time() + patience
    while time.time() < deadline:
        for line in log.read_text().splitlines() if log.exists() else ():
            words = line.split()
            if len(words) == 3 and wanted(row := (int(words[0]), int(words[1]), float(words[2]))):
                return row
        time.sleep(0.02)
    raise TimeoutError(f"nothing of the kind in {log}")


# Hangs ------------------------------------------------------------------------------------------------------


def hangs(scratch: Path, quick: bool) -> dict[str, Any]:
    """From the moment a worker stops to the moment it is called hung, with the default settings."""
    plan = FaultPlan.parse("hang@30,sigstop@60" if quick else "hang@120,hang_c@240,hang_gil@360,sigstop@480")
    words = ["epochs=1", "run.threads=1", "watchdog.floor=2s"] if quick else ["epochs=6", "run.threads=1"]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "plan.json"
        plan.write(path)
        summary = train(words, scratch, **{VARIABLE: str(path)})
        claims = [path.with_suffix(".fired") / str(number) for number in range(len(plan.faults))]
        fired = [float(claim.read_text().split()[1]) for claim in claims]
    folder = Path(summary["folder"])
    found = []
    for fault, event, again, at in zip(
        plan.faults, events(folder, "fault"), events(folder, "recovered"), fired, strict=True
    ):
        kept = Path(event.data["folder"])
        evidence = json.loads((kept / "fault.json").read_text())["fault"]["evidence"]
        found.append(
            {
                "kind": fault.kind,
                "silence_s": evidence["silence_s"],
                "limit_s": evidence["limit_s"],
                "to_journal_s": round((event.seconds() or 0.0) - at, 2),
                "to_commit_s": round((again.seconds() or 0.0) - at, 2),
                "kept": sorted(entry.name for entry in kept.iterdir()),
            }
        )
    return {"receipt": summary["receipt"], "hangs": found}


def hangs_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        at_most(f"seconds of silence before {hang['kind']} is called a hang", hang["silence_s"], hang["limit_s"] + 1.0)
        for hang in measured["hangs"]
    ]


# Long runs --------------------------------------------------------------------------------------------------


def growth(scratch: Path, quick: bool) -> dict[str, Any]:
    """The supervisor over 100,000 steps: memory and descriptors at the beginning and at the end."""
    epochs, settled, pause = (3, 200, 0.2) if quick else (250, 5000, 2.0)
    words = [f"epochs={epochs}", "batch=4", "width=8", "run.threads=1", f"run.folder={scratch}"]
    marks: list[dict[str, float]] = []
    told = time.monotonic()
    with subprocess.Popen(
        command("train", str(JOBS / "small.py"), *words, "--json", "-q"),
        stdout=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        while run.poll() is None:
            with contextlib.suppress(OSError):  # it may end while we look
                marks += _mark(run.pid, step(scratch))
            if time.monotonic() - told > 60:
                told = time.monotonic()
                say(f"  step {step(scratch)}")
            time.sleep(pause)
        summary = json.loads(run.stdout.read()) if run.stdout else {}
    early = [mark for mark in marks if mark["step"] >= settled] or marks
    peak = max(mark["rss_mb"] for mark in marks)
    return {"receipt": summary["receipt"], "early": _middle(early[:5]), "end": _middle(marks[-5:]), "peak_mb": peak}


def _mark(pid: int, at: int) -> list[dict[str, float]]:
    info = processes.inspect(pid)
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return [{"step": at, "rss_mb": round(info.rss_bytes / 2**20, 2), "descriptors": descriptors}] if info and at else []


def _middle(marks: list[dict[str, float]]) -> dict[str, float]:
    """The median of a few marks: a file that is open for a moment is no growth."""
    return {key: statistics.median_low([mark[key] for mark in marks]) for key in marks[0]}


def growth_bounds(measured: dict[str, Any]) -> list[Bound]:
    early, end = measured["early"], measured["end"]
    grown = round(end["rss_mb"] - early["rss_mb"], 2)
    return [
        at_most("megabytes of the supervisor at its largest", measured["peak_mb"], 60.0),
        at_most("megabytes that the supervisor grew (one is the allocator's)", grown, 1.0, quick=False),
        at_most("descriptors of the supervisor at the end", end["descriptors"], early["descriptors"]),
    ]


def soak(scratch: Path, quick: bool) -> dict[str, Any]:
    """An uneven run that is healthy, half an hour long: no alarm."""
    minutes, words = (0.2, ["first=3", "evaluation=2"]) if quick else (30.0, [])
    summary = train([f"minutes={minutes}", *words], scratch, job=JOBS / "soak.py")
    return {"minutes": minutes, "receipt": summary["receipt"]}


def soak_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [exactly("alarms", sum(measured["receipt"]["faults"].values()), 0)]
