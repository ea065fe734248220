#!/usr/bin/env python3
"""What `make demo` shows: a doubtful machine, a plan, a training that is hit three times, and a model that is fast.

    python scripts/demo.py            # about five minutes on two cores; needs no network and no terminal

Each step is a command that you can type yourself. The runs are kept in runs/, as always.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

JOB = "eeg-challenge1"
FAULTS = "sigkill@40,hang@70,oom_in_step@100"
ENGINES = "eager,onnxruntime,openvino"
PATIENCE = 20.0
"""Seconds for the monitor to print its address."""

STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Can this machine be trusted? Small trainings in isolated processes, compared with the CPU.", ("doctor",)),
    ("Which way to train, and how long? Real steps of the job, measured.", ("plan", JOB)),
    (
        "Train it, three times: twice in peace, and once hit by a real kill -9, a hang, and memory that runs out.",
        ("chaos", JOB, "--faults", FAULTS),
    ),
    (
        "Make the trained model answer fast; what loses score is refused.",
        ("optimize", "latest", "--engines", ENGINES, "--seconds", "0.5", "--no-profile"),
    ),
    ("One file about the run, with its curves and its faults.", ("report", "latest")),
)


def main() -> int:
    began = time.monotonic()
    with monitor() as address:
        for number, (words, command) in enumerate(STEPS, 1):
            say(f"\n── {number} of {len(STEPS)} · {words}")
            say(f"$ holdfast {shlex.join(command)}")
            code = subprocess.call(holdfast(*command))
            if code:
                say(f"\nerror: `holdfast {shlex.join(command)}` ended with {code}; what it said is above")
                return code
            if command[0] == "plan":
                say(f"\n   the monitor, while this goes on: {address}")
        say(f"\n✓ That was the demo: {(time.monotonic() - began) / 60:.1f} minutes.")
        say(f"  report   {newest_report().resolve().as_uri()}")
        say(f"  monitor  {address}")
        say("  again    holdfast watch --web (the page), holdfast show latest, holdfast serve RUN/bundle")
        say("  next     docs/README.md: your own script, any script unchanged, your data")
        if sys.stdin.isatty() and sys.stdout.isatty():
            say("\nThe page stays until you press Enter.")
            sys.stdin.readline()
    return 0


def holdfast(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *words]


@contextmanager
def monitor() -> Iterator[str]:
    """The page of `holdfast watch`, for as long as the demo lasts; its address has the token in it."""
    command = holdfast("watch", "--web", "--no-browser")
    page = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert page.stdout is not None
        line = page.stdout.readline()
        yield line.split()[-1] if "http" in line else "did not start: `holdfast watch --web` says why"
    finally:
        page.terminate()
        page.wait(PATIENCE)


def newest_report() -> Path:
    return max(Path("runs").glob("*/report.html"), key=lambda path: path.stat().st_mtime)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
