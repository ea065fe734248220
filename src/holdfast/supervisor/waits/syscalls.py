"""The system calls a process can wait in, by their numbers on this machine.

    call = NAMES.get(230)              # "clock_nanosleep" on x86-64; None for one that nobody waits in for long

Numbers differ between processors; on one that is not listed no call is known, and other signs have to do.
"""

from __future__ import annotations

import platform

_X86 = {
    0: "read", 1: "write", 2: "open", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select",
    34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
    47: "recvmsg", 61: "wait4", 65: "semop", 70: "msgrcv", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
    16: "ioctl", 40: "sendfile", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 202: "futex", 220: "semtimedop",
    230: "clock_nanosleep", 232: "epoll_wait", 243: "mq_timedreceive", 247: "waitid", 257: "openat", 270: "pselect6",
    271: "ppoll", 275: "splice", 281: "epoll_pwait", 288: "accept4", 295: "preadv", 296: "pwritev", 299: "recvmmsg",
    307: "sendmmsg", 326: "copy_file_range", 426: "io_uring_enter", 441: "epoll_pwait2", 449: "futex_waitv",
}  # fmt: skip
_ARM = {
    63: "read", 64: "write", 67: "pread64", 68: "pwrite64", 65: "readv", 66: "writev", 101: "nanosleep", 203: "connect",
    202: "accept", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 260: "wait4", 193: "semop",
    188: "msgrcv", 25: "fcntl", 32: "flock", 82: "fsync", 83: "fdatasync", 29: "ioctl", 71: "sendfile",
    137: "rt_sigtimedwait", 133: "rt_sigsuspend", 98: "futex", 192: "semtimedop", 115: "clock_nanosleep",
    183: "mq_timedreceive", 95: "waitid", 56: "openat", 72: "pselect6", 73: "ppoll", 76: "splice", 22: "epoll_pwait",
    242: "accept4", 69: "preadv", 70: "pwritev", 243: "recvmmsg", 269: "sendmmsg", 285: "copy_file_range",
    426: "io_uring_enter", 441: "epoll_pwait2", 449: "futex_waitv",
}  # fmt: skip

NAMES: dict[int, str] = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}.get(
    platform.machine().lower(), {}
)

READS = frozenset({"read", "readv", "pread64", "preadv", "recvfrom", "recvmsg", "recvmmsg"})
WRITES = frozenset({"write", "writev", "pwrite64", "pwritev", "sendto", "sendmsg", "sendmmsg"})
COPIES = frozenset({"sendfile", "splice", "copy_file_range"})

CHANNELS = (
    ("hrtimer_nanosleep", "clock_nanosleep"),
    ("do_nanosleep", "clock_nanosleep"),
    ("futex", "futex"),
    ("ep_poll", "epoll_wait"),
    ("do_epoll", "epoll_wait"),
    ("poll_schedule", "poll"),
    ("do_sys_poll", "poll"),
    ("do_poll", "poll"),
    ("do_select", "select"),
    ("core_sys_select", "select"),
    ("do_wait", "wait4"),
    ("kernel_wait", "wait4"),
    ("flock", "flock"),
    ("locks_lock", "flock"),
    ("fcntl_setlk", "flock"),
    ("do_sigtimedwait", "rt_sigtimedwait"),
    ("sigsuspend", "rt_sigsuspend"),
    ("do_signal_stop", "pause"),
    ("inet_csk_accept", "accept"),
)
"""What the kernel's own name of a wait (wchan) begins with or holds, where the call itself is not told."""


def by_channel(channel: str) -> str | None:
    """The call behind a name such as `futex_wait_queue`."""
    return next((call for part, call in CHANNELS if part in channel), None)
