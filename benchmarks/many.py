"""Runs of one experiment side by side, each on cores of its own: what benchmarks with several arms and seeds share.

    lanes = Lanes(cores_each=1)                       # as many as this machine has cores for
    jobs = [lambda lane, seed=seed: lane.train(["ecosystem", f"run.seed={seed}"], runs) for seed in range(5)]
    for row in lanes.all(jobs): ...                   # in the order of the jobs; the longest should come first
    write(path, "ecosystem-sizes", measured)          # with machine, versions and command

A lane is some cores that no other lane has, so that runs do not wait for each other's threads. What a run took is the
processor time of its process with all that it started, which a busy machine changes less than the clock.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
from common import STATE, command, say

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""97.5 % of Student's t, by the number of values."""


@dataclass(frozen=True)
class Lane:
    """Some cores, for one run at a time."""

    cores: tuple[int, ...]
    patience: float

    def train(self, words: Sequence[str], runs: Path, **variables: str) -> dict[str, Any]:
        """`holdfast train` to its end: its summary as JSON, with `cpu_s`, `wall_s` and `peak_mb`. It must finish."""
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="holdfast-many-", ignore_cleanup_errors=True) as place:
            said, log = Path(place) / "out", Path(place) / "err"
            env = {**os.environ, STATE: f"{place}/state", "OMP_NUM_THREADS": str(len(self.cores)), **variables}
            began = time.monotonic()
            with said.open("w") as out, log.open("w") as err:
                run = subprocess.Popen(
                    command("train", *words, f"run.folder={runs}", "--json", "-q"),
                    stdout=out, stderr=err, env=env, start_new_session=True,
                    preexec_fn=lambda: os.sched_setaffinity(0, self.cores),
                )  # fmt: skip
                used = _waited(run, self.patience)
            took = time.monotonic() - began
            try:
                summary: dict[str, Any] = json.loads(said.read_text())
            except ValueError:
                raise RuntimeError(f"{' '.join(words)} printed no JSON: {log.read_text()[-800:]}") from None
        if summary.get("state") != "FINISHED":
            raise RuntimeError(f"{' '.join(words)} ended as {summary.get('state')}: {summary.get('error')}")
        spent = {"cpu_s": round(used.ru_utime + used.ru_stime, 1), "peak_mb": round(used.ru_maxrss / 1000)}
        return {**summary, **spent, "wall_s": round(took, 1)}


def _waited(run: subprocess.Popen[Any], patience: float) -> resource.struct_rusage:
    """What the process and all that it waited for have used; `ru_maxrss` is that of the largest of them."""
    until = time.monotonic() + patience
    while True:
        pid, status, used = os.wait4(run.pid, os.WNOHANG)
        if pid:
            run.returncode = os.waitstatus_to_exitcode(status)
            return used
        if time.monotonic() > until:
            common.end_group(run)
            raise TimeoutError(f"a run was not over after {patience:.0f} s")
        time.sleep(0.1)


class Lanes:
    """The cores of this machine in equal groups."""

    def __init__(self, cores_each: int = 1, *, most: int = 0, patience: float = 1500.0) -> None:
        cores = sorted(os.sched_getaffinity(0))
        count = max(1, len(cores) // cores_each)
        self.lanes = [
            Lane(tuple(cores[number * cores_each : (number + 1) * cores_each]) or tuple(cores), patience)
            for number in range(min(count, most) if most else count)
        ]

    def all(self, jobs: Sequence[Callable[[Lane], Any]]) -> list[Any]:
        """What each job gives; one that raises gives {"failed": why}, and the others go on."""
        free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in self.lanes:
            free.put(lane)

        def one(job: Callable[[Lane], Any]) -> Any:
            lane = free.get()
            try:
                return job(lane)
            except Exception as error:
                say(f"  failed: {error}")
                return {"failed": str(error)[:1500]}
            finally:
                free.put(lane)

        with ThreadPoolExecutor(len(self.lanes)) as pool:
            return list(pool.map(one, jobs))


def over_seeds(values: Sequence[float]) -> list[float]:
    """The mean over seeds and its interval of 95 %, by Student's t: seeds are few."""
    mean = sum(values) / len(values)
    if len(values) not in STUDENT:
        return [round(mean, 4)]
    spread = (sum((each - mean) ** 2 for each in values) / (len(values) - 1)) ** 0.5
    half = STUDENT[len(values)] * spread / len(values) ** 0.5
    return [round(mean, 4), round(mean - half, 4), round(mean + half, 4)]


def write(path: Path, part: str, measured: dict[str, Any], *, seconds: float) -> None:
    """Whole or not at all, with where and how it was measured. Paths are left out of the command but for their ends."""
    words = [f"…/{Path(word).name}" if Path(word).is_absolute() else word for word in sys.argv[1:]]
    record = {
        "part": part,
        "date": time.strftime("%Y-%m-%d"),
        "command": "python " + " ".join([f"benchmarks/{Path(sys.argv[0]).name}", *words]),
        "machine": common.machine() | {"model": model(), "gpu": common.gpu()},
        "versions": common.versions(),
        "seconds": round(seconds, 1),
        "measured": measured,
    }
    common.write(path, record)
    say(f"  {path.name} is written")


def model() -> str | None:
    """What the processor calls itself, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
