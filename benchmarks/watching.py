"""The part `watching` of bench.py: what being watched costs a run, and how fast `holdfast status` answers.

A run trains with as many threads as the machine has CPUs, on steps wide enough to keep them busy. Beside it are its own
sensors and `holdfast watch` in a terminal of 120x40. Both are stopped (SIGSTOP) and let go (SIGCONT) in turns, so that
the two speeds come from one run and from the same minute; the steps of each stretch are counted from the times at which
the job says they were committed, without the first two seconds: a watcher that was stopped has to catch up. What the
watchers compute while nobody stops them is measured before: where all CPUs are busy it is about what they can take.
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import JOBS, Bound, at_most, command, say, spread

STRETCH, SETTLE = 5.0, 1.5
"""Seconds of one speed, and those at its beginning that are not counted. Sensors that are silent for 15 s are ended."""
FEWEST = 5
"""Steps in a stretch that make a speed; where others had the machine, a pair may have fewer, and does not count."""
STATUS_LIMIT, SLOWER_LIMIT = 0.3, 0.5


def watching(scratch: Path, quick: bool) -> dict[str, Any]:
    """The same run watched and not watched, in turns; and the time `holdfast status` takes."""
    pairs, alone = (1, 4.0) if quick else (32, 30.0)
    runs, times = scratch / "runs", scratch / "times.txt"
    runs.mkdir()
    words = ["batch=256", "width=3000", "epochs=100000", f"times={times}", f"run.folder={runs}", "-q"]
    trainer = subprocess.Popen(command("train", str(JOBS / "small.py"), *words), start_new_session=True)
    try:
        _wait_for_steps(times, trainer)
        with _watch(runs) as watcher:
            time.sleep(8.0)  # it starts, and so do the sensors
            watchers = [watcher, *_sensors(trainer.pid)]
            say(f"  {pairs} pairs of {STRETCH:.0f} s, {len(watchers)} processes that watch")
            before = {pid: _cpu_seconds(pid) for pid in watchers}
            began = time.monotonic()
            time.sleep(alone)
            used = sum(_cpu_seconds(pid) - before[pid] for pid in watchers) / (time.monotonic() - began)
            stretches = _take_turns(watchers, pairs)
        status = [_status(runs) for _ in range(3 if quick else 20)]
    finally:
        os.killpg(trainer.pid, signal.SIGTERM)
        trainer.wait(60)
    speeds = _speeds(times, stretches)
    ratios = [100 * (1 - watched / alone) for watched, alone in speeds]
    return {
        "slower_percent": {"median": round(statistics.median(ratios), 3), "n": len(ratios), **_error(ratios)},
        "cpu_percent_of_one_core": round(100 * used, 3),
        "cpu_percent_of_the_machine": round(100 * used / (os.cpu_count() or 1), 3),
        "steps_per_second": round(statistics.median(alone for _, alone in speeds), 1),
        "status_s": spread(status),
    }


def watching_bounds(measured: dict[str, Any]) -> list[Bound]:
    slower = measured["slower_percent"]["median"]
    return [
        at_most("percent that a run is slower while it is watched", slower, SLOWER_LIMIT, quick=False),
        at_most("seconds that `holdfast status` takes", measured["status_s"]["p50"], STATUS_LIMIT, quick=False),
    ]


def _error(ratios: list[float]) -> dict[str, float]:
    """How far the median may be off: 1.25 times the deviation of a mean, which ignores tails that a median does not."""
    if len(ratios) < 3:
        return {}
    return {"standard_error": round(1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5, 3)}


# Who trains and who watches -----------------------------------------------------------------------------------


def _wait_for_steps(times: Path, trainer: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not times.exists() or times.stat().st_size < 4000:
        if time.monotonic() > deadline or trainer.poll() is not None:
            raise RuntimeError("the run that is to be watched does not train")
        time.sleep(0.2)


@contextmanager
def _watch(runs: Path) -> Iterator[int]:
    """`holdfast watch` in a terminal of its own, whose output is read and forgotten."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color"}
    words = command("watch", "--folder", str(runs))
    watcher = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    threading.Thread(target=_drain, args=(ours,), daemon=True).start()
    try:
        yield watcher.pid
        if watcher.poll() is not None:
            raise RuntimeError(f"holdfast watch ended with {watcher.returncode}")
    finally:
        watcher.kill()
        watcher.wait()
        os.close(ours)


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 65536):
            pass
    except OSError:
        return


def _sensors(trainer: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            words = (entry.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == trainer and b"holdfast.monitor.devices" in words:
            found.append(int(entry.parent.name))
    return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _take_turns(watchers: list[int], pairs: int) -> list[tuple[bool, float, float]]:
    """(watched, from, to) of each stretch, in the order on, off, off, on, …: a slow drift is the same for both."""
    found = []
    for number in range(pairs):
        for watched in (True, False) if number % 2 == 0 else (False, True):
            for pid in watchers:
                os.kill(pid, signal.SIGCONT if watched else signal.SIGSTOP)
            time.sleep(SETTLE)
            began = time.time()
            time.sleep(STRETCH - SETTLE)
            found.append((watched, began, time.time()))
    for pid in watchers:
        os.kill(pid, signal.SIGCONT)
    return found


def _speeds(times: Path, stretches: list[tuple[bool, float, float]]) -> list[tuple[float, float]]:
    """Steps a second, watched and alone, of each pair."""
    lines = (line.split() for line in times.read_text().splitlines())
    commits = [float(line[2]) for line in lines if len(line) == 3 and line[0] == "data"]
    speeds: list[tuple[bool, float]] = []
    for watched, began, ended in stretches:
        inside = [when for when in commits if began <= when <= ended]
        span = inside[-1] - inside[0] if len(inside) >= FEWEST else 0.0
        speeds.append((watched, (len(inside) - 1) / span if span else 0.0))
    both = [dict([one, other]) for one, other in zip(speeds[::2], speeds[1::2], strict=True)]
    found = [(pair[True], pair[False]) for pair in both if pair[True] and pair[False]]
    if len(found) < len(both) / 2:
        raise RuntimeError(f"only {len(found)} of {len(both)} pairs have {FEWEST} steps on both sides")
    return found


def _status(runs: Path) -> float:
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "holdfast", "status", "--folder", str(runs)], check=True, stdout=subprocess.DEVNULL
    )
    return time.monotonic() - began
