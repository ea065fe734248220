"""Machines that fail again and again: what part of the time is spent in new steps, and whether anything is lost.

    python benchmarks/machines_soak.py --out benchmarks/results        # 8 machines x 2 ranks, 10 minutes; needs root
    python benchmarks/machines_soak.py --machines 2 --seconds 60       # does this file work?

Machines are network namespaces of this kernel (tests/distributed/machines.py). Every 20 seconds there is a fault, by
turns: a rank is killed, a cable is cut for 5 seconds, `holdfast launch` of a machine is killed and started again at
once, a rank is halted. All of them hit every machine but the first in turn; ranks are killed on the first one too. At
the end the first machine is asked to stop.

A step is new if no step before it had its number. The time in new steps is that of the run without pauses: of the time
between two new steps that is longer than three times the median, what is more than the median is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import ROOT, machine, versions

sys.path.insert(0, str(ROOT))

import itertools

from tests.distributed.machines import Machines, missing

from holdfast.distributed.job import Job
from holdfast.distributed.rank_watch import Boards
from holdfast.run.folder import list_runs

JOB = ROOT / "benchmarks" / "jobs" / "machines_soak.py"
FAULTS = ("kill a rank", "cut a cable", "kill an agent", "halt a rank")
CUT = 5.0
START = 300.0
STOP = 120.0
STANDS = 90.0
"""Seconds without a step after which the run does not go on by itself."""


class Soak:
    """One launch on all machines, and what is done to it."""

    def __init__(self, machines: Machines, folder: Path, args: argparse.Namespace) -> None:
        self.machines = machines
        self.folder = folder
        self.args = args
        self.seen = folder / "seen"
        self.seen.mkdir()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.done: list[tuple[float, str, int]] = []
        self.code: int | None = None
        self.stands: dict[str, Any] = {}
        for number in range(args.machines):
            self.start(number)

    def start(self, number: int) -> None:
        home = self.folder / f"machine-{number}"
        home.mkdir(exist_ok=True)
        words = ["launch", "--nproc", str(self.args.nproc), "--nodes", str(self.args.machines)]
        words += ["--node-rank", str(number), "--master", self.machines.address(0)]
        words += ["--min-ranks", str(self.args.nproc), str(JOB), f"seen={self.seen}", f"pause={self.args.pause}"]
        words += [f"run.folder={home}", "run.threads=1", f"watchdog.floor={self.args.floor}", "-q", "--json"]
        with open(home / "output.txt", "ab") as output:
            self.processes[number] = self.machines.popen(
                number,
                [sys.executable, "-m", "holdfast", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOLDFAST_STATE": str(home / "state")},
                cwd=home,
            )

    def times(self) -> list[tuple[int, float]]:
        path = self.seen / "times.txt"
        if not path.exists():
            return []
        rows = [line.split() for line in path.read_text().splitlines()]
        return [(int(row[0]), float(row[1])) for row in rows if len(row) == 2]

    def ranks(self, number: int) -> list[int]:
        """Processes that are ranks on this machine now."""
        process = self.processes[number]
        for path in Path("/proc", str(process.pid), "root", "dev", "shm").glob("holdfast-job-*/owner.json"):
            boards = Boards(Job(path.parent))
            try:
                if json.loads(path.read_text())["pid"] == process.pid:
                    return [each.pid for each in boards.look()]
            except (OSError, ValueError):
                continue
            finally:
                boards.close()
        return []

    def hurt(self, kind: str, number: int, chance: random.Random) -> None:
        self.done.append((time.monotonic(), kind, number))
        print(f"{time.monotonic() - self.began:5.0f} s  {kind} on machine {number}", flush=True)
        if kind == "cut a cable":
            self.machines.cut(number)
            time.sleep(CUT)
            self.machines.mend(number)
        elif kind == "kill an agent":
            self.processes[number].kill()
            self.processes[number].wait()
            self.start(number)
        else:
            pids = self.ranks(number)
            if pids:
                number = signal.SIGKILL if kind == "kill a rank" else signal.SIGSTOP
                os.kill(chance.choice(pids), number)

    def go(self) -> None:
        deadline = time.monotonic() + START
        while len(self.times()) < 5:
            if time.monotonic() > deadline or self.processes[0].poll() is not None:
                raise RuntimeError("the run did not begin")
            time.sleep(0.2)
        self.began, chance = time.monotonic(), random.Random(self.args.seed)
        for turn in range(int(self.args.seconds // self.args.every)):
            time.sleep(max(0.0, self.began + (turn + 0.5) * self.args.every - time.monotonic()))
            if time.monotonic() - self.times()[-1][1] > STANDS:
                self.ended, self.stands = time.monotonic(), self.looks()
                return
            kind = FAULTS[turn % len(FAULTS)]
            others = range(0 if kind == "kill a rank" else 1, self.args.machines)
            self.hurt(kind, chance.choice(list(others)), chance)
        time.sleep(max(0.0, self.began + self.args.seconds - time.monotonic()))
        self.ended = time.monotonic()
        self.processes[0].terminate()
        try:
            self.code = self.processes[0].wait(STOP)
        except subprocess.TimeoutExpired:  # what was measured until now counts all the same
            self.stands = self.looks()

    def looks(self) -> dict[str, Any]:
        """What the machines were at when the run did not end: the last events, and the stacks where py-spy is there."""
        (run,) = list_runs(self.folder / "machine-0")
        found: dict[str, Any] = {"events": [[each.kind, each.data] for each in run.events()][-30:]}
        spy = Path(sys.executable).with_name("py-spy")
        for number, process in self.processes.items():
            for path in Path("/proc", str(process.pid), "root", "dev", "shm").glob("holdfast-job-*"):
                notes = sorted(path.glob("*-[0-9]*")) if (path / "roster.json").exists() else []
                found[f"machine {number}, {path.name}"] = [
                    (path / "roster.json").read_text() if notes else "",
                    *(f"{each.name} {time.time() - each.stat().st_mtime:.0f} s ago" for each in notes),
                ]
            for pid in [process.pid, *self.ranks(number)]:
                told = []
                with contextlib.suppress(OSError):
                    state = Path("/proc", str(pid), "status").read_text().partition("State:")[2].split()[0]
                    told.append(f"state {state}")
                if spy.exists():
                    words = [spy, "dump", "--pid", str(pid)]
                    told += subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
                found[f"machine {number}, process {pid}"] = told
        return found

    def result(self) -> dict[str, Any]:
        new, newest = [], 0
        for step, at in self.times():
            if step > newest:
                newest = step
                new.append((step, at))
        within = [(step, at) for step, at in new if self.began <= at <= self.ended]
        pauses = [two[1] - one[1] for one, two in itertools.pairwise(within)]
        usual = statistics.median(pauses)
        pauses.append(self.ended - within[-1][1])
        lost = sum(each - usual for each in pauses if each > 3.0 * usual)
        (run,) = list_runs(self.folder / "machine-0")
        receipt = run.receipt() or {}
        return {
            "share_in_new_steps": 1.0 - lost / (self.ended - self.began),
            "seconds": self.ended - self.began,
            "faults": dict(Counter(kind for _, kind, _ in self.done)),
            "longest_pauses_s": sorted((round(each, 2) for each in pauses), reverse=True)[:20],
            "step_s": usual,
            "new_steps": len(within),
            "exit_code": self.code,
            **({"stands": self.stands} if self.stands else {}),
            "receipt": {key: receipt.get(key) for key in ("steps", "steps_lost", "steps_repeated", "faults")},
            "samples": self.samples(int(receipt.get("steps") or 0)),
            "notes": Counter(str(e.data.get("text")).split(":")[0] for e in run.events() if e.kind == "note"),
        }

    def samples(self, steps: int) -> dict[str, int]:
        """Of a step that was done again the last time counts."""
        last: dict[int, int] = {}
        parts: dict[tuple[int, int], list[str]] = {}
        for path in self.seen.glob("part-*.txt"):
            number = int(path.stem.split("-")[1])
            for line in path.read_text().splitlines():
                _, step, *given = line.split()
                last[int(step)] = max(last.get(int(step), 0), number)
                parts.setdefault((int(step), number), []).extend(given)
        used = Counter(each for step, number in last.items() if step <= steps for each in parts[step, number])
        steps_seen = sum(step <= steps for step in last)
        return {"used": len(used), "twice": sum(n > 1 for n in used.values()), "steps": steps_seen}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--machines", type=int, default=8)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two faults")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds of a step")
    parser.add_argument("--floor", default="5s", help="the setting watchdog.floor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if missing():
        print(missing())
        return 2
    with tempfile.TemporaryDirectory(prefix="holdfast-machines-soak-") as kept:
        folder = Path(kept)
        with Machines(args.machines, share=[folder]) as machines:
            soak = Soak(machines, folder, args)
            try:
                soak.go()
                measured = soak.result()
            except BaseException:
                for number in soak.processes:
                    print(number, (folder / f"machine-{number}" / "output.txt").read_text()[-3000:])
                raise
    words = [word for word in sys.argv[1:] if word not in ("--out", str(args.out))]
    command = "python benchmarks/machines_soak.py " + " ".join(words)
    found = {"part": "machines_soak", "date": time.strftime("%Y-%m-%d"), "command": command.strip()}
    found |= {"machine": machine(), "versions": versions(), "measured": measured}
    text = json.dumps(found, indent=1)
    print(text)
    if args.out is not None:
        (args.out / "machines-soak-cpu.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
