"""The part `ranks` of bench.py: several processes train one model, and are killed and stopped at random.

Each number of ranks trains the same job twice with `holdfast launch`: undisturbed, and with SIGKILL and SIGSTOP for a
rank drawn anew each time, at a random moment after it has made progress (four ranks: SIGKILL alone, so that no time is
the watchdog's). Every step is committed, so that a fault repeats two steps at most. The weights must be the same bits,
and every rank that got no signal must keep its process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import JOBS, Bound, at_most, command, exactly, say, spread

from holdfast.distributed.job import Job
from holdfast.distributed.rank_watch import Boards
from holdfast.run.folder import list_runs

JOB = JOBS / "ranked.py"
PATIENCE = 1800.0


def ranks(scratch: Path, quick: bool) -> dict[str, Any]:
    """2 processes with 30 random kills and stops of ranks, 4 with 100 kills; the weights of undisturbed runs."""
    plans = {2: 2} if quick else {2: 30, 4: 100}
    return {f"{number} ranks": _measure(scratch / str(number), number, faults) for number, faults in plans.items()}


def ranks_bounds(measured: dict[str, Any]) -> list[Bound]:
    bounds = []
    for name, found in measured.items():
        bounds += [
            exactly(f"{name}: signals sent", sum(found["signals"].values()), found["faults_planned"]),
            exactly(f"{name}: weights equal to those of the undisturbed run", found["weights_equal"], True),
            exactly(f"{name}: steps lost", found["steps_lost"], 0),
            exactly(f"{name}: samples skipped and repeated", found["samples_skipped"] + found["samples_repeated"], 0),
            at_most(f"{name}: steps repeated for each fault", found["repeated_per_fault"], 2.0),
            exactly(f"{name}: processes of other ranks replaced", found["others_replaced"], 0),
        ]
    return bounds


def _measure(scratch: Path, number: int, faults: int) -> dict[str, Any]:
    words = [f"epochs={max(2, faults // 3)}"]
    undisturbed = _launch(scratch / "undisturbed", number, words, Chaos([]))
    say(f"  {number} ranks undisturbed: {undisturbed['seconds']:.0f} s")
    draw = random.Random(number)
    kinds = (signal.SIGKILL, signal.SIGSTOP) if number == 2 else (signal.SIGKILL,)
    signals = [draw.choice(kinds) for _ in range(faults)]
    chaos = Chaos(signals, seed=number)
    found = _launch(scratch / "disturbed", number, words, chaos)
    receipt = found["receipt"]
    return {
        "faults_planned": faults,
        "signals": dict(Counter(chaos.sent)),
        "faults_recorded": receipt["faults"],
        "steps": receipt["steps"],
        "weights_equal": receipt["weights_sha256"] == undisturbed["receipt"]["weights_sha256"],
        "steps_lost": receipt["steps_lost"],
        "steps_repeated": receipt["steps_repeated"],
        "repeated_per_fault": round(receipt["steps_repeated"] / max(1, faults), 2),
        "others_replaced": chaos.others_replaced,
        "samples_skipped": receipt["samples_skipped"],
        "samples_repeated": receipt["samples_repeated"],
        "seconds_from_the_last_beat_to_the_next_commit": spread(found["recovery_s"]) if found["recovery_s"] else None,
        "seconds_undisturbed": round(undisturbed["seconds"], 1),
        "seconds": round(found["seconds"], 1),
    }


class Chaos:
    """A signal for a random rank, each time all of them have made progress."""

    def __init__(self, signals: list[int], seed: int = 0) -> None:
        self.left = list(signals)
        self.sent: list[str] = []
        self.others_replaced = 0
        """Ranks that got no signal, and have another process after it."""
        self._random = random.Random(seed)
        self._step = 1
        self._others: set[int] = set()

    def look(self, boards: Boards, number: int) -> None:
        seen = boards.look()
        if len(seen) < number or min(each.beat.step for each in seen) <= self._step:
            return
        pids = {each.pid for each in seen}
        self.others_replaced += len(self._others - pids)
        self._others = set()
        if not self.left:
            return
        time.sleep(self._random.random() * 0.2)
        victim = self._random.choice(seen)
        self._step = max(each.beat.step for each in seen)
        try:
            os.kill(victim.pid, self.left[0])
        except ProcessLookupError:
            return
        self._others = pids - {victim.pid}
        self.sent.append(signal.Signals(self.left.pop(0)).name)
        if len(self.sent) % 5 == 0:
            say(f"  … {len(self.sent)} signals, step {self._step}")


def _launch(runs: Path, number: int, words: list[str], chaos: Chaos) -> dict[str, Any]:
    runs.mkdir(parents=True)
    settings = [f"run.folder={runs}", "run.threads=1", "watchdog.floor=2s", "snapshot.every=1"]
    began = time.monotonic()
    with subprocess.Popen(
        command("launch", "--nproc", str(number), str(JOB), *words, *settings, "--json", "-q"),
        stdout=subprocess.PIPE, text=True,
    ) as launch:  # fmt: skip
        boards = None
        while launch.poll() is None:
            if boards is None:
                boards = boards_of(launch.pid)
            else:
                chaos.look(boards, number)
            if time.monotonic() - began > PATIENCE:
                launch.kill()
                raise TimeoutError(f"{number} ranks were not done after {PATIENCE:.0f} s")
            time.sleep(0.02)
        printed = json.loads(launch.stdout.read() if launch.stdout else "{}")
    if printed.get("state") != "FINISHED":
        raise RuntimeError(f"the launch ended as {printed.get('state')}: {printed.get('error')}")
    (run,) = list_runs(runs)
    receipt = run.receipt() or {}
    recovered = [float(event.data["seconds"]) for event in run.events() if event.kind == "recovered"]
    return {"receipt": receipt, "recovery_s": recovered, "seconds": time.monotonic() - began}


def boards_of(pid: int) -> Boards | None:
    for path in Path("/dev/shm").glob("holdfast-job-*/owner.json"):
        try:
            if json.loads(path.read_text())["pid"] == pid:
                return Boards(Job(path.parent))
        except (OSError, ValueError):
            continue
    return None
