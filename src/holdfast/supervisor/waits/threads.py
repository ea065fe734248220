"""The threads of a process, each with the system call it waits in, as the kernel tells.

    for thread in threads(pid): thread.state, thread.call, thread.args
    left = remaining(thread)             # seconds until its wait ends by itself; None if it never does
    memory(pid, address, size)           # what a pointer among the arguments points to

Calls and memory may be looked at by whoever may trace the process: its ancestors, with the usual settings. Where that
is not allowed `call` comes from the kernel's name of the wait, without arguments, and `sure` is False.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
from dataclasses import dataclass

from holdfast.supervisor.waits.syscalls import NAMES, by_channel

_ABSOLUTE = 1
_REALTIME = 256
_WAIT, _WAIT_BITSET, _LOCK_PI, _WAIT_REQUEUE, _LOCK_PI2 = 0, 9, 6, 11, 13


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread at one moment."""

    pid: int
    tid: int
    state: str
    switches: int
    """How often it has waited so far: as long as that stays, it is one and the same wait."""
    call: str | None = None
    args: tuple[int, ...] = ()
    sure: bool = True

    @property
    def is_main(self) -> bool:
        return self.pid == self.tid

    @property
    def between_processes(self) -> bool:
        """A futex in memory that several processes share."""
        return self.call == "futex_waitv" or (self.call == "futex" and bool(self.args) and not self.args[1] & 128)


def main_thread(pid: int) -> Thread | None:
    """The one that has the number of the process; None where there is no /proc or the process is gone."""
    return _thread(pid, pid)


def threads(pid: int) -> list[Thread]:
    """All of them, the main one first; none where there is no /proc or the process is gone."""
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
    found = [each for each in (_thread(pid, tid) for tid in numbers) if each is not None]
    return sorted(found, key=lambda each: not each.is_main)


def _thread(pid: int, tid: int) -> Thread | None:
    place = f"/proc/{pid}/task/{tid}"
    try:
        stat = _text(f"{place}/stat")
        state = stat[stat.rindex(")") + 2]
        switches = _switches(_text(f"{place}/status"))
    except (OSError, ValueError, IndexError):
        return None
    call, args, sure = _call(place)
    return Thread(pid, tid, state, switches, call, args, sure)


def _call(place: str) -> tuple[str | None, tuple[int, ...], bool]:
    with contextlib.suppress(OSError, ValueError):
        words = _text(f"{place}/syscall").split()
        if words and words[0].lstrip("-").isdigit():
            return NAMES.get(int(words[0])), tuple(int(word, 16) for word in words[1:7]), bool(NAMES)
        return None, (), True
    with contextlib.suppress(OSError):
        return by_channel(_text(f"{place}/wchan")), (), False
    return None, (), False


def _switches(status: str) -> int:
    for line in status.splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return 0


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def memory(pid: int, address: int, size: int) -> bytes:
    """Bytes of another process; fewer, or none, if they cannot be read."""
    if sys.platform == "win32" or address <= 0 or size <= 0:
        return b""
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)


# -- until when --------------------------------------------------------------------------------------------------


def remaining(thread: Thread) -> float | None:
    """Seconds after which its wait ends by itself at the latest; 0.0 where it does at an unknown time, None: never."""
    call, args = thread.call, thread.args
    if call in ("nanosleep", "clock_nanosleep"):
        return _sleep(thread)
    if not args:
        return None
    if call == "futex":
        return _futex(thread) if args[3] else None
    if call == "poll":
        return _milliseconds(args[2])
    if call in ("epoll_wait", "epoll_pwait"):
        return _milliseconds(args[3])
    pointer = {"ppoll": 2, "pselect6": 4, "select": 4, "epoll_pwait2": 3, "rt_sigtimedwait": 2, "semtimedop": 3}
    if call not in pointer or args[pointer[call]] == 0:
        return None
    seconds = _time(thread.pid, args[pointer[call]], 1e-6 if call == "select" else 1e-9)
    return seconds or 0.0


def _sleep(thread: Thread) -> float:
    if not thread.args:
        return 0.0
    if thread.call == "nanosleep":
        return _time(thread.pid, thread.args[0]) or 0.0
    seconds = _time(thread.pid, thread.args[2])
    if seconds is None:
        return 0.0
    return _left(seconds, thread.args[0]) if thread.args[1] & _ABSOLUTE else seconds


def _futex(thread: Thread) -> float:
    seconds = _time(thread.pid, thread.args[3])
    operation = thread.args[1]
    if sys.platform == "win32" or seconds is None:
        return 0.0
    if operation & 0x7F in (_WAIT_BITSET, _WAIT_REQUEUE, _LOCK_PI2):
        return _left(seconds, time.CLOCK_REALTIME if operation & _REALTIME else time.CLOCK_MONOTONIC)
    return _left(seconds, time.CLOCK_REALTIME) if operation & 0x7F == _LOCK_PI else seconds


def _left(until: float, clock: int) -> float:
    if sys.platform == "win32":
        return 0.0
    with contextlib.suppress(OSError, OverflowError):
        return max(0.0, until - time.clock_gettime(clock))
    return 0.0


def _milliseconds(value: int) -> float | None:
    signed = value & 0xFFFFFFFF
    return None if signed >= 1 << 31 else signed / 1000


def _time(pid: int, address: int, part: float = 1e-9) -> float | None:
    data = memory(pid, address, 16)
    if len(data) < 16:
        return None
    whole, fraction = struct.unpack("qq", data)
    return float(whole + fraction * part)
