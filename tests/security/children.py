"""A piece of Python in a process of its own, with a limit on its memory and an end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.driving import environment

_REPORT = """
import atexit, resource, sys
def peak():
    try:  # ru_maxrss starts with the size of the process that forked this one
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (10 if sys.platform == "linux" else 20)
atexit.register(lambda: print("peak_mb", peak()))
"""


def peak_of(code: str, cwd: Path, *, timeout: float = 120.0, **env: str) -> tuple[str, int]:
    """What it printed, and its largest size in megabytes. A process that hangs or fails is a failed test."""
    done = subprocess.run(
        [sys.executable, "-c", _REPORT + code],
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *said, last = done.stdout.splitlines()
    return "\n".join(said), int(last.removeprefix("peak_mb "))
