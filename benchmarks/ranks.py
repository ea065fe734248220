"""The part `ranks` of bench.py: several processes train one model, and are killed and stopped at random.

Each number of ranks trains the same job twice with `holdfast launch`: undisturbed, and with SIGKILL and SIGSTOP for a
rank drawn anew each time, at a random moment after it has made progress (four ranks: SIGKILL alone, so that no time is
the watchdog's). Every step is committed, so that a fault repeats two steps at most. The weights must be the same bits,
every rank that got no signal must keep its process, and the samples that ranks note must be those of each epoch, once.

Two times are kept. From the death to the next commit is measured here: from SIGKILL until this program sees that all
ranks, with a new process for the killed one, have committed a step that not all had before; it looks every 10 ms. From
the last beat to the next commit is what the run itself records; it includes how long the killed process was silent.
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
from holdfast.distributed.rank_watch import Boards, Seen
from holdfast.run.folder import list_runs

JOB = JOBS / "ranked.py"
SAMPLES, EPOCH = 400, 10
"""Samples, and steps of an epoch, of that job."""
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
            exactly(f"{name}: samples of an epoch that ranks had not once", found["samples_not_once"], 0),
        ]
    if "4 ranks" in measured:
        seconds = measured["4 ranks"]["seconds_from_death_to_the_next_commit"]["p50"]
        bounds.append(at_most("4 ranks: seconds from death to the next commit, p50", seconds, 0.5))
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
        "samples_not_once": _not_once(scratch / "disturbed", receipt["steps"]),
        "seconds_from_death_to_the_next_commit": spread(chaos.seconds) if chaos.seconds else None,
        "seconds_from_the_last_beat_to_the_next_commit": spread(found["recovery_s"]) if found["recovery_s"] else None,
        "seconds_undisturbed": round(undisturbed["seconds"], 1),
        "seconds": round(found["seconds"], 1),
    }


def _not_once(folder: Path, steps: int) -> int:
    """Over all epochs, how many samples the ranks had not exactly once; of a step done again the last time counts."""
    rows = {
        (path.stem, step): samples
        for path in folder.glob("rank*.jsonl")
        for step, samples in map(json.loads, path.read_text().splitlines())
    }
    wrong = 0
    for first in range(0, steps, EPOCH):
        had = Counter(each for (_, step), samples in rows.items() if first < step <= first + EPOCH for each in samples)
        wrong += sum(had[sample] != 1 for sample in range(SAMPLES))
    return wrong


class Chaos:
    """A signal for a random rank, each time all of them have made progress."""

    def __init__(self, signals: list[int], seed: int = 0) -> None:
        self.left = list(signals)
        self.sent: list[str] = []
        self.others_replaced = 0
        """Ranks that got no signal, and have another process after it."""
        self.seconds: list[float] = []
        """From each death until all ranks have committed a step that not all had before."""
        self._random = random.Random(seed)
        self._step = 1
        self._killed: tuple[int, int, float] | None = None
        """The process, the step that all ranks had then, and when."""
        self._others: set[int] = set()

    def look(self, boards: Boards, number: int) -> None:
        seen = boards.look()
        self._time_recovery(seen, number)
        if len(seen) < number or min(each.beat.step for each in seen) <= self._step:
            return
        pids = {each.pid for each in seen}
        self.others_replaced += len(self._others - pids)
        self._others = set()
        if not self.left:
            return
        time.sleep(self._random.random() * 0.2)
        victim = self._random.choice(seen)
        steps = [each.beat.step for each in boards.look()]
        self._step = max(steps)
        try:
            os.kill(victim.pid, self.left[0])
        except ProcessLookupError:
            return
        if self.left[0] == signal.SIGKILL:
            self._killed = victim.pid, min(steps), time.monotonic()
        self._others = pids - {victim.pid}
        self.sent.append(signal.Signals(self.left.pop(0)).name)
        if len(self.sent) % 5 == 0:
            say(f"  … {len(self.sent)} signals, step {self._step}")

    def _time_recovery(self, seen: list[Seen], number: int) -> None:
        if self._killed is None or len(seen) < number:
            return
        pid, step, when = self._killed
        if all(each.pid != pid and each.beat.step > step for each in seen):
            self.seconds.append(time.monotonic() - when)
            self._killed = None


def _launch(runs: Path, number: int, words: list[str], chaos: Chaos) -> dict[str, Any]:
    runs.mkdir(parents=True)
    settings = [f"run.folder={runs}", "run.threads=1", "watchdog.floor=2s", "snapshot.every=1", f"seen={runs}"]
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
            time.sleep(0.01)
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
