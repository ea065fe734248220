"""Where a silent script is: Python stacks by the hook's own signal, native ones by py-spy where it is installed."""

from __future__ import annotations

import contextlib
import linecache
import re
import signal
import time
from pathlib import Path

from holdfast.base import processes
from holdfast.record.evidence.stacks import by_py_spy
from holdfast.supervisor.waits import Finding, Grade

WAIT = 1.0


def ask_for_stacks(pid: int, path: Path) -> dict[str, str]:
    """`python` and `native`, as far as they can be had. The signal is sent only to a process that expects it."""
    info = processes.inspect(pid)
    answers = info is None or info.state not in "TtD"
    found: dict[str, str] = {}
    number = _signal_for_stacks(pid)
    if answers and number and processes.send(pid, number):
        deadline = time.monotonic() + WAIT
        text = ""
        while time.monotonic() < deadline and not text:
            time.sleep(0.02)
            with contextlib.suppress(OSError):
                text = path.read_text(errors="replace")
        if text:
            found["python"] = text
    text_of = by_py_spy(pid, "--native" if answers else "--nonblocking")
    if text_of:
        found["native" if answers else "python"] = text_of
    return found


WAITS = (
    (r"\bsleep\(", "sleep", "it sleeps"),
    (r"\b(input|getpass|readline)\(|/getpass\.py\"", "prompt", "it waits for its input"),
    (r"/(socket|ssl|http/client|asyncio/\w+|selectors|connection|urllib3/\w+|requests/\w+)\.py\"", "socket",
     "it waits for a socket"),
    (r"\.(recv|recv_into|accept|connect|sendall|send)\(", "socket", "it waits for a socket"),
    (r"/subprocess\.py\"|\bwaitpid\(|/multiprocessing/popen_\w+\.py\"", "child", "it waits for a child"),
    (r"\b(flock|lockf)\(", "lock", "it waits for the lock of a file"),
)  # fmt: skip
"""What the innermost line of a Python stack holds where a process waits for something outside."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in ', re.M)


def wait_in(text: str) -> Finding | None:
    """What the thread that runs the script waits for, by its stack as faulthandler writes it; None if nobody can tell.

    faulthandler shows the main thread last. The innermost frame is the first one of a thread.
    """
    blocks = re.split(r"^(?:Current thread|Thread) .*$", text, flags=re.M)
    frame = _FRAME.search(blocks[-1]) if len(blocks) > 1 else None
    if frame is None:
        return None
    place = f'{frame["file"]}" {linecache.getline(frame["file"], int(frame["line"]))}'
    for pattern, kind, words in WAITS:
        if re.search(pattern, place):
            return Finding(Grade.WAITS, kind, words)
    return None


def _signal_for_stacks(pid: int) -> int:
    """The signal on which the hook writes stacks; 0 if this process does not expect it and would be ended by it."""
    if hasattr(signal, "SIGRTMAX"):
        number = int(signal.SIGRTMAX) - 2
        return number if _catches(pid, number) else 0
    return int(getattr(signal, "SIGINFO", 0))  # macOS: whoever does not expect it ignores it


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal: without one it would be ended by it."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        return False
    return False
