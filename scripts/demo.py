#!/usr/bin/env python3
"""What `make demo` shows: a doubtful machine, a plan, a training that is hit three times, and a model that is fast.

    python scripts/demo.py            # about 80 seconds on two quiet cores; needs no network and no terminal
    python scripts/demo.py --short    # what it does by itself on a busy machine
    python scripts/demo.py --whole    # all of it, however busy the machine is

Each step is a command that you can type yourself. The runs are kept in runs/, as always, the data in build/demo/.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
JOB = "eeg-challenge1"
DATA, CACHE = Path("build/demo/data"), Path("build/demo/cache")
MADE = CACHE / "challenge1-100hz" / "windows.json"
"""Written last: where it is, the data of an earlier demo are used."""
PEOPLE = 32
"""The fewest that leave 8 held-out subjects: an interval of the score needs 5."""
PATIENCE = 20.0
"""Seconds for the monitor to end."""
BUSY = 0.8
"""Below this share of a core that is given to us, the demo shortens itself."""
LATE = 1.5
"""So many times the seconds that a step was to take, and the demo shortens what is left of it."""
SAMPLE = 0.5
"""CPU seconds that are spent to find that share."""


class Step(NamedTuple):
    """A part of the demo: what it shows, about how long it takes on two quiet cores, and its command."""

    words: str
    seconds: int
    command: tuple[str, ...]


def data_commands() -> tuple[tuple[str, ...], ...]:
    """What makes the data: recordings of people who do not exist, and the windows that are cut from them."""
    sizes = ("--subjects", str(PEOPLE), "--runs", "1", "--trials", "20", "--rest", "10")
    return (
        ("eeg", "simulate", str(DATA), *sizes, "--workers", "1", "--no-progress"),
        ("eeg", "prepare", str(DATA), str(CACHE), "--kind", JOB[4:], "--as-served", "--workers", "1", "--no-progress"),
    )


def steps(short: bool) -> tuple[Step, ...]:
    """The whole demo, or the one for a busy machine: fewer steps of training, no hang to wait for."""
    job = (f"data={CACHE}", f"epochs={2 if short else 6}", "batch=32", "tune=false")
    faults = "sigkill@5,oom_in_step@12" if short else "sigkill@15,hang@28,oom_in_step@45"
    hit = "a kill -9 and full memory" if short else "a kill -9, a hang and full memory"
    engines = "onnxruntime fp32,onnxruntime int8-static"
    return (
        Step("Can this machine be trusted? Small trainings, compared with the CPU.", 12, ("doctor",)),
        Step(
            "How long will it take, and where? A few real steps, measured.",
            10,
            ("plan", JOB, *job, "--measure", "6s"),
        ),
        Step(
            f"Train it twice: once in peace, once hit by {hit}.",
            18 if short else 30,
            ("chaos", JOB, *job, "--at-once", "--faults", faults),
        ),
        Step(
            "Make the trained model faster; an engine that loses score is refused.",
            20,
            ("optimize", "latest", "--engines", engines, "--threads", "1", "--seconds", "0.3", "--no-profile"),
        ),
        Step("Keep it: one file about the run, with its curves and its faults.", 2, ("report", "latest")),
    )


def main() -> int:
    began = time.monotonic()
    share = cpu_share()
    whole = "--whole" in sys.argv[1:]
    short = not whole and (share < BUSY or "--short" in sys.argv[1:])
    plan = steps(short)
    if share < BUSY and short:
        say(f"This machine is busy: a process gets {100 * share:.0f} % of a core. The demo shortens itself.")
    say(f"{len(plan)} steps, about {sum(step.seconds for step in plan)} seconds on two quiet cores. Ctrl-C ends it.")
    with monitor() as address, making_data() as data:
        for number, step in enumerate(plan, 1):
            step = steps(short)[number - 1]
            say(f"\n── step {number} of {len(plan)} · {clock(began)} so far · this one about {step.seconds} s")
            say(f"   {step.words}")
            say(f"$ holdfast {shlex.join(step.command)}")
            started = time.monotonic()
            code = subprocess.call(holdfast(*step.command))
            if code:
                say(f"\nerror: `holdfast {shlex.join(step.command)}` ended with {code}; its message is above")
                return code
            if number == 1 and not data.finish():
                return 1
            took = time.monotonic() - started
            if not short and not whole and number < 3 and took > LATE * step.seconds:
                short = True
                say(f"\nThis took {took:.0f} s instead of {step.seconds}: the machine is busy. The rest is shortened.")
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


class Data:
    """The data of the demo, made in the background while the doctor looks at the machine."""

    def __init__(self, output: IO[str]) -> None:
        self.output = output
        self.process: subprocess.Popen[str] | None = None
        if not MADE.exists():
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--data"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True
            )
            say(f"In the background, one core makes data to train on: simulated EEG of {PEOPLE} people.")
            for command in data_commands():
                say(f"$ holdfast {shlex.join(command)}")

    def finish(self) -> bool:
        """Wait for it; what it said is shown where it failed."""
        if self.process is None:
            say(f"\n✓ The data of an earlier demo are still in {CACHE}.")
            return True
        if self.process.poll() is None:
            say("\nThe doctor is done; the data are not yet. Waiting for them.")
        if self.process.wait() == 0:
            say(f"\n✓ The data are in {CACHE}: simulated EEG of {PEOPLE} people.")
            return True
        self.output.seek(0)
        say(f"\n{self.output.read()}\nerror: no data to train on; the message is above")
        return False


@contextmanager
def making_data() -> Iterator[Data]:
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        data = Data(output)
        try:
            yield data
        finally:
            if data.process is not None and data.process.poll() is None:
                data.process.terminate()
                data.process.wait(PATIENCE)


def make_data() -> int:
    """`demo.py --data`: the commands one after the other."""
    return next((code for code in (subprocess.call(holdfast(*words)) for words in data_commands()) if code), 0)


@contextmanager
def monitor() -> Iterator[str]:
    """The page of `holdfast watch`, for as long as the demo lasts; its address has the token in it.

    Where port 7878 is taken, the monitor takes the next one that is free.
    """
    command = holdfast("watch", "--web", "--no-browser")
    page = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert page.stdout is not None
        line = next((line for line in page.stdout if "http" in line), "")
        yield line.split()[-1] if line else "did not start: `holdfast watch --web` says why"
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
    with suppress(KeyboardInterrupt):
        sys.exit(make_data() if "--data" in sys.argv[1:] else main())
    sys.exit(130)
