"""The entry point of the container image: process 1, which starts `holdfast` and stands in for an init.

    python -m holdfast.cli.container train my_script.py

Process 1 has two duties that no other program has. The kernel drops a signal that it has no handler for, so it hands
SIGTERM, SIGINT, SIGHUP and the rest on to `holdfast`. Orphans become its children: it reaps them, so that none stays a
zombie. It ends with the exit code of `holdfast`, after the processes that tell of the run have had `GRACE` seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from holdfast.base import interpreter
from holdfast.base.human import size

GRACE = 10.0
"""Seconds that notifications and trackers get after the end. When process 1 ends, the kernel kills the rest."""
ENOUGH = 256 << 20
"""Less shared memory than this is Docker's default, and too little for the snapshots of most models."""


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if sys.platform == "win32":
        return subprocess.run(interpreter.module("holdfast", *words), check=False).returncode
    _say_shared_memory()
    handed = [number for number in signal.valid_signals() if number not in _KEPT]
    # Blocked until the child is there to get them. The child unblocks them when it is in its own group.
    signal.pthread_sigmask(signal.SIG_BLOCK, handed)

    def begin() -> None:
        """A group of its own, in the foreground of a terminal: Ctrl-C reaches the child once, and not by us as well."""
        os.setpgid(0, 0)
        if os.isatty(0):
            os.tcsetpgrp(0, os.getpid())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handed)

    child = subprocess.Popen(interpreter.module("holdfast", *words), preexec_fn=begin)
    for number in handed:
        signal.signal(number, lambda which, _: _hand_on(child.pid, which))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed)
    status = _reap(child.pid)
    _wait_for_the_rest()
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


_KEPT = {
    getattr(signal, name)
    for name in ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP")
    if hasattr(signal, name)
}
"""Signals that nobody can handle, that are about this process itself, or that say that a child has ended."""


def _hand_on(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has ended, and its status is read next
        pass


def _reap(pid: int) -> int:
    """The status of the child; every other process that ends until then is reaped as well."""
    while True:
        gone, status = os.wait()
        if gone == pid:
            return status


def _wait_for_the_rest() -> None:
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        try:
            gone, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not gone:
            time.sleep(0.05)


def _say_shared_memory() -> None:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return
    total = room.f_blocks * room.f_frsize
    if total < ENOUGH:
        words = f"! /dev/shm has {size(total)}: snapshots that do not fit go to the run folder; --shm-size=8g is faster"
        print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
