"""What a worker said and where it was: its last words, and its stacks while it is silent.

words = last_words(run.path / "output.log", offset)
stacks = ask_for_stacks(pid, path, native=True)     # before it is killed: {"python": ..., "native": ...}
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.base import processes
from holdfast.base.files import open_regular

LAST_LINES = 200
_TAIL = 64 << 10
_STACK_WAIT = 1.0
_NATIVE_WAIT = 10.0


def last_words(path: Path, offset: int) -> str:
    """The end of what a worker printed, from where it began."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(offset, size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LAST_LINES:])


def ask_for_stacks(pid: int, path: Path, *, native: bool) -> dict[str, str]:
    """Python stacks by signal, native ones by py-spy where it is installed.

    A process that is stopped or sits in the kernel takes no signal and cannot be paused: there py-spy reads the
    Python stack out of its memory.
    """
    info = processes.inspect(pid)
    answers = info is None or info.state not in "TtD"
    found = _by_signal(pid, path) if answers else {}
    if native:
        name, flag = ("native", "--native") if answers else ("python", "--nonblocking")
        text = by_py_spy(pid, flag)
        if text:
            found[name] = text
    return found


def _by_signal(pid: int, path: Path) -> dict[str, str]:
    """What faulthandler in the worker writes when it is asked."""
    number = getattr(signal, "SIGUSR2", None)
    before = path.stat().st_size if path.exists() else 0
    if number is None or not processes.send(pid, number):
        return {}
    deadline = time.monotonic() + _STACK_WAIT
    while time.monotonic() < deadline and (not path.exists() or path.stat().st_size == before):
        time.sleep(0.02)
    time.sleep(0.02)
    with contextlib.suppress(OSError):
        return {"python": path.read_bytes()[before:].decode(errors="replace")}
    return {}


def by_py_spy(pid: int, flag: str) -> str | None:
    """`--native` pauses the process and `--nonblocking` does not; py-spy refuses the two together."""
    spy = py_spy()
    if spy is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        dump = subprocess.run(
            [spy, "dump", flag, "--pid", str(pid)], capture_output=True, text=True, timeout=_NATIVE_WAIT, check=False
        )
        if dump.returncode == 0 and dump.stdout:
            return dump.stdout
    return None


def py_spy() -> str | None:
    """Where py-spy is, if it is installed: beside this Python first."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")
