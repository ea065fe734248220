"""What a script started: found, counted, and ended with it. Only that, and all of it.

    started = ScriptProcesses()         # from here on orphans of our children become ours (Linux)
    started.members()                   # pid -> what the kernel says, of everything the script started
    started.daemon(script, command)     # the script went into the background by itself: who it is now
    started.end(script)                 # SIGTERM, then SIGKILL to whatever is left; returns who cannot be killed

A process that loses its parent goes to the nearest one that asked for orphans: with PR_SET_CHILD_SUBREAPER that is us,
so even a child that has detached itself stays in our family. Processes of our own (probes, readers of logs) are in
the family too: they are told by `ours`. Elsewhere than on Linux the script's process group has to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.base import processes
from holdfast.base.process_tree import Member, family
from holdfast.supervisor.scripts.script_start import Script

_PR_SET_CHILD_SUBREAPER = 36


LEAVING = 1.0
"""Seconds a child that goes into the background has to take a session of its own after its parent has ended."""


class ScriptProcesses:
    """The family of the script that runs now."""

    def __init__(self, ours: Callable[[], set[int]] = set) -> None:
        self.ours = ours
        self._before = set() if _childless() else set(family(os.getpid()))
        """Children there were before the script: nobody's business."""
        self.adopts = _become_subreaper()
        self._seen: set[int] = set()
        """Zombies at the last look."""
        self.reaped: dict[int, int] = {}
        """Exit codes of orphans that ended."""

    def members(self) -> dict[int, Member]:
        """Everything the script started that still runs, and the script itself."""
        everybody = family(os.getpid())
        left_out = self._before | self.ours()
        for pid in sorted(everybody):  # what a process of ours started is ours as well
            if everybody[pid].parent in left_out and everybody[pid].parent != os.getpid():
                left_out.add(pid)
        return {pid: member for pid, member in everybody.items() if pid not in left_out and member.state not in "ZX"}

    def cpu_seconds(self, members: Mapping[int, Member]) -> float:
        """CPU time of all of them; it falls when one ends."""
        ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        return sum(member.cpu_ticks for member in members.values()) / ticks

    def reap_old(self, script: Script) -> None:
        """Take the exit codes of orphans that were zombies at the last look already, while the script goes on.

        A process that a thread of ours started and waits for is a zombie for a moment only: it is never taken here.
        """
        zombies = self._zombies(script)
        self._reap(zombies & self._seen)
        self._seen = zombies

    def reap(self, script: Script) -> None:
        """Take the exit codes of orphans, so that none stays as a zombie."""
        self._reap(self._zombies(script))

    def _zombies(self, script: Script) -> set[int]:
        if not self.adopts or sys.platform == "win32":
            return set()
        me, ours = os.getpid(), {script.pid, *self.ours()}
        everybody = family(me).items()
        return {pid for pid, each in everybody if each.parent == me and each.state == "Z" and pid not in ours}

    def _reap(self, pids: set[int]) -> None:
        if sys.platform != "win32":
            for pid in pids:
                with contextlib.suppress(ChildProcessError):
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        self.reaped[done] = os.waitstatus_to_exitcode(status)

    def daemon(self, script: Script, command: bytes) -> int | None:
        """The process a script became when it sent itself into the background: the same command, its own session."""
        deadline = time.monotonic() + LEAVING
        while True:
            alike = {pid: each for pid, each in self.members().items() if pid != script.pid}
            alike = {pid: each for pid, each in alike.items() if _command_of(pid) == command}
            found = [pid for pid, member in sorted(alike.items()) if member.session != script.pid]
            if found or not alike or time.monotonic() > deadline:
                return found[-1] if found else None
            time.sleep(0.02)

    def end(self, script: Script, *, term: float = 2.0, kill: float = 10.0) -> list[int]:
        """End whatever is left; returns those that cannot be killed."""
        if not self.adopts:
            processes.send_group(script.pid, processes.KILL)
            return []
        sent: set[tuple[int, int]] = set()

        def look(number: int) -> list[int]:
            left = list(self.members())  # others may come while some go
            for pid in left:
                if (pid, number) not in sent:
                    sent.add((pid, number))
                    processes.send(pid, number)
            script.poll()
            self.reap(script)
            return left

        return processes.end_in_turn(look, term=term, kill=kill)


def _become_subreaper() -> bool:
    if not processes.LINUX or not Path("/proc/self/stat").exists():
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return False


def command_of(pid: int) -> bytes:
    return _command_of(pid)


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _childless() -> bool:
    """Have we no children at all? The kernel keeps a list, which spares looking at every process of the machine."""
    try:
        return not any(Path(f"/proc/self/task/{task}/children").read_bytes() for task in os.listdir("/proc/self/task"))
    except OSError:
        return False
