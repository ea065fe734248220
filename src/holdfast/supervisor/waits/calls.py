"""What a system call with its arguments waits for: descriptors, children, signals. No process is judged here."""

from __future__ import annotations

import re
import struct

from holdfast.supervisor.waits.descriptors import Ends
from holdfast.supervisor.waits.finding import UNKNOWN, Finding, Grade
from holdfast.supervisor.waits.syscalls import COPIES, READS, WRITES
from holdfast.supervisor.waits.threads import Thread, memory

MEMORY = frozenset({"futex", "futex_waitv", "semop", "semtimedop", "msgrcv", "mq_timedreceive"})
"""Threads and processes that wait for each other."""
SIGNALS = frozenset({"pause", "rt_sigsuspend", "rt_sigtimedwait"})
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/dxg", "/dev/accel")
MOST = 1024
_PID, _PIDFD = 1, 3
_NONE = (1 << 64) - 1


def descriptors(thread: Thread, ends: Ends) -> list[tuple[int, bool]] | None:
    """(descriptor, is it written to?) of what it waits for; None where the call is about something else."""
    call, args = thread.call or "", thread.args
    if call in READS or call in ("accept", "accept4"):
        return [(args[0], False)]
    if call in WRITES or call == "connect":
        return [(args[0], True)]
    if call in COPIES:
        into, source = (args[2], args[0]) if call in ("splice", "copy_file_range") else (args[0], args[1])
        return [(into, True), (source, False)]
    if call in ("poll", "ppoll"):
        return _polled(thread)
    if call in ("select", "pselect6"):
        return _selected(thread)
    if call.startswith("epoll_"):
        return ends.watched(thread.pid, args[0])
    return None


def _polled(thread: Thread) -> list[tuple[int, bool]]:
    data = memory(thread.pid, thread.args[0], 8 * min(thread.args[1], MOST))
    found = []
    for at in range(0, len(data) - 7, 8):
        fd, events, _ = struct.unpack_from("ihh", data, at)
        if fd >= 0:
            found.append((fd, bool(events & 4) and not events & 1))
    return found


def _selected(thread: Thread) -> list[tuple[int, bool]]:
    size = min(thread.args[0], MOST)
    found = []
    for pointer, writing in ((thread.args[1], False), (thread.args[2], True)):
        data = memory(thread.pid, pointer, (size + 63) // 64 * 8)
        found += [(fd, writing) for fd in range(min(size, 8 * len(data))) if data[fd // 8] >> fd % 8 & 1]
    return found


def child(thread: Thread, ends: Ends) -> int | None:
    """The one child it waits for; None for any of them."""
    if not thread.args:
        return None
    if thread.call == "wait4":
        number = thread.args[0] & 0xFFFFFFFF
        return number if 0 < number < 1 << 31 else None
    kind, number = thread.args[0], thread.args[1]
    if kind == _PID:
        return number
    return ends.process_of(thread.pid, number) if kind == _PIDFD else None


def signal_wait(thread: Thread, left: float | None) -> Finding:
    """Somebody may send a signal, unless the process would not even notice it."""
    if left is not None:
        return Finding(Grade.WAITS, "timer", "it waits with a deadline", left)
    if thread.call == "pause" and not caught_signals(thread.pid):
        return Finding(Grade.STUCK, "signal", "it waits for a signal and has all of them blocked")
    return Finding(Grade.WAITS, "signal", "it waits for a signal")


def caught_signals(pid: int) -> int:
    """The signals it has a handler for and does not block."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return _NONE
    masks = {name: int(value, 16) for name, value in re.findall(r"^(SigBlk|SigCgt):\s*([0-9a-f]+)", text, re.M)}
    return masks.get("SigCgt", _NONE) & ~masks.get("SigBlk", 0)


def by_name(thread: Thread, ends: Ends) -> Finding:
    """Calls that wait for neither descriptors nor others."""
    if thread.call == "ioctl":
        name = ends.name(thread.pid, thread.args[0])
        if name.startswith(DEVICES):
            return Finding(Grade.STUCK, "device", f"it waits for the driver of {name}")
        return UNKNOWN
    if thread.call in ("open", "openat", "fsync", "fdatasync"):
        return Finding(Grade.WAITS, "file", "it waits for a file")
    return UNKNOWN
