"""Processes that cannot be killed, seen from a command that runs in here: its SIGTERM and SIGKILL do nothing.

    python tests/real_faults/unkillable.py -- holdfast train job.py …       by hand
    Command(runs, "train", JOB, preexec_fn=unkillable.hold_fire)       in a test

A worker in a driver's endless wait takes no signal: `kill` answers that all is well, and the process stays.
A true one needs a broken driver. This is the same from the supervisor's side: a seccomp filter answers 0 to
every call that would send one of the two, and sends nothing. The filter is inherited by whatever the command
starts; signals of the kernel (the death of a parent) and of anybody outside, such as the test, still work.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import signal
import struct
import subprocess
import sys
from pathlib import Path

HELD = (signal.SIGTERM, signal.SIGKILL)

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_MODE_FILTER = 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
"""SECCOMP_RET_ALLOW and SECCOMP_RET_ERRNO; an errno of 0 is success."""
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K."""
_NUMBER, _ARCHITECTURE = 0, 4
"""Offsets in struct seccomp_data; the arguments follow from 16 on, 8 bytes each, the low half first."""
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS = {
    # kill, tkill, tgkill, pidfd_send_signal, and the argument that holds the signal
    "x86_64": ((62, 1), (200, 1), (234, 2), (424, 1)),
    "aarch64": ((129, 1), (130, 1), (131, 2), (424, 1)),
}


def hold_fire() -> None:
    """From here on neither this process nor a child of it can send SIGTERM or SIGKILL to anybody."""
    steps = _program()
    code = ctypes.create_string_buffer(b"".join(steps))
    program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))  # struct sock_fprog
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program))


def _program() -> list[bytes]:
    """Another architecture, another call or another signal: allowed. The rest is answered with success."""
    machine = platform.machine()
    if machine not in _CALLS:
        raise OSError(errno.ENOSYS, f"the numbers of the system calls of {machine} are not known here")
    steps = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, _AUDIT[machine], 1, 0), _step(_RETURN, _ALLOW)]
    for call, argument in _CALLS[machine]:
        steps += [
            _step(_LOAD, _NUMBER),
            _step(_EQUAL, call, 0, 3 + len(HELD)),  # not this call: on to the next
            _step(_LOAD, 16 + 8 * argument),
            *(_step(_EQUAL, number, len(HELD) - at, 0) for at, number in enumerate(HELD)),
            _step(_RETURN, _ALLOW),
            _step(_RETURN, _ERRNO),
        ]
    return [*steps, _step(_RETURN, _ALLOW)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)  # struct sock_filter


def _prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def missing() -> str | None:
    """Why it does not work here, or None: a process that shoots at itself, in here, must live on."""
    if not sys.platform.startswith("linux"):
        return "seccomp is Linux's own"
    shoot = f"import os; [os.kill(os.getpid(), number) for number in {[int(each) for each in HELD]}]; print('alive')"
    command = [sys.executable, str(Path(__file__)), "--", sys.executable, "-c", shoot]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    return None if done.stdout == "alive\n" else f"no seccomp filter here: {done.stderr.strip() or done.returncode}"


def main(argv: list[str]) -> int:
    if len(argv) < 2 or argv[0] != "--":
        print(__doc__, file=sys.stderr)
        return 2
    try:
        hold_fire()
    except (OSError, AttributeError) as error:
        print(error, file=sys.stderr)
        return 69
    os.execvp(argv[1], argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
