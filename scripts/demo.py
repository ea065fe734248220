#!/usr/bin/env python3
"""What `make demo` shows: a doubtful machine, a plan, a training that is hit three times, and a model that is fast.

    python scripts/demo.py            # about 80 seconds on two quiet cores; needs no network and no terminal
    python scripts/demo.py --short    # what it does by itself on a busy machine

Each step is a command that you can type yourself. The runs are kept in runs/, as always.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
JOB = "eeg-challenge1"
PATIENCE = 20.0
"""Seconds for the monitor to end."""
BUSY = 0.8
"""Below this share of a core that is given to us, the demo shortens itself."""
SAMPLE = 0.5
"""CPU seconds that are spent to find that share."""


class Step(NamedTuple):
    """A part of the demo: what it shows, about how long it takes on two quiet cores, and its command."""

    words: str
    seconds: int
    command: tuple[str, ...]


def steps(short: bool) -> tuple[Step, ...]:
    """The whole demo, or the one for a busy machine: fewer steps of training, no hang to wait for, fewer engines."""
    words = (f"epochs={2 if short else 4}", "tune=false")
    faults = "sigkill@10,oom_in_step@20" if short else "sigkill@15,hang@28,oom_in_step@45"
    hit = "a kill -9 and full memory" if short else "a kill -9, a hang and full memory"
    engines = "eager fp32,onnxruntime fp32,onnxruntime int8-static"
    return (
        Step("Can this machine be trusted? Small trainings, compared with the CPU.", 10, ("doctor",)),
        Step(
            "How long will it take, and where? A few real steps, measured.",
            12,
            ("plan", JOB, *words, "--measure", "6s"),
        ),
        Step(
            f"Train it twice: once in peace, once hit by {hit}.",
            20 if short else 40,
            ("chaos", JOB, *words, "--references", "1", "--faults", faults),
        ),
        Step(
            "Make the trained model faster; an engine that loses score is refused.",
            12,
            ("optimize", "latest", "--engines", engines, "--seconds", "0.3", "--no-profile"),
        ),
        Step("Keep it: one file about the run, with its curves and its faults.", 2, ("report", "latest")),
    )


def main() -> int:
    began = time.monotonic()
    share = cpu_share()
    short = share < BUSY or "--short" in sys.argv[1:]
    plan = steps(short)
    if share < BUSY:
        say(f"This machine is busy: a process gets {100 * share:.0f} % of a core. The demo shortens itself.")
    say(f"{len(plan)} steps, about {sum(step.seconds for step in plan)} seconds on two quiet cores. Ctrl-C ends it.")
    with monitor() as address:
        for number, step in enumerate(plan, 1):
            say(f"\n── step {number} of {len(plan)} · {clock(began)} so far · this one about {step.seconds} s")
            say(f"   {step.words}")
            say(f"$ holdfast {shlex.join(step.command)}")
            code = subprocess.call(holdfast(*step.command))
            if code:
                say(f"\nerror: `holdfast {shlex.join(step.command)}` ended with {code}; its message is above")
                return code
        say(f"\n✓ That was the demo, in {clock(began)}. Three links to go on with:")
        say(f"  the report of the run   {newest_report().resolve().as_uri()}")
        say(f"  the monitor             {address}")
        say(f"  your own script         {(ROOT / 'docs' / 'start.md').as_uri()}")
        if sys.stdin.isatty() and sys.stdout.isatty():
            say("\nThe monitor stays until you press Enter.")
            sys.stdin.readline()
    return 0


def cpu_share() -> float:
    """How much of a core a busy process gets here, measured for about half a second."""
    began, used = time.perf_counter(), time.process_time()
    while time.process_time() - used < SAMPLE:
        pass
    return SAMPLE / (time.perf_counter() - began)


def clock(began: float) -> str:
    whole = int(time.monotonic() - began)
    return f"{whole // 60}:{whole % 60:02}"


def holdfast(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *words]


@contextmanager
def monitor() -> Iterator[str]:
    """The page of `holdfast watch`, for as long as the demo lasts; its address has the token in it."""
    command = holdfast("watch", "--web", "--no-browser")
    page = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert page.stdout is not None
        line = page.stdout.readline()
        yield line.split()[-1] if "http" in line else "did not start: `holdfast watch --web` says why"
    finally:
        page.terminate()
        page.communicate(timeout=PATIENCE)


def newest_report() -> Path:
    return max(Path("runs").glob("*/report.html"), key=lambda path: path.stat().st_mtime)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("HOLDFAST_RUN_THREADS", "1")  # such a small net is fastest so
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # what torch's exporter deprecates is no news for a visitor
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
