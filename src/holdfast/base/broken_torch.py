"""What is said where torch cannot be imported: by the process that tried, or about one that ended over it."""

from __future__ import annotations

import signal
import sys

from holdfast.base import processes
from holdfast.base.errors import UserError

_NO_ROOM = ("cannot allocate memory", "Cannot allocate memory", "failed to map segment", "MemoryError")


def broken_torch(cause: str) -> UserError:
    """What is said where a nursery answers that torch cannot be imported."""
    limit = processes.address_space_limit()
    if limit is not None and any(word in cause for word in _NO_ROOM):
        return _too_little_room(limit, cause)
    return UserError(
        "torch cannot be imported",
        cause=cause,
        hints=[
            "install it for your device: https://pytorch.org/get-started",
            f"python is {sys.executable}",
        ],
    )


def no_torch(code: int) -> UserError:
    """What is said where the process that imports torch ends over it each time, and cannot say why."""
    how = f"ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    limit = processes.address_space_limit()
    if limit is not None:
        return _too_little_room(limit, f"the process that imports torch was {how}" if code < 0 else f"torch {how}")
    return UserError(
        "torch cannot be imported",
        cause=f"the process that imports it is {how} each time, before torch is there",
        hints=[
            f"run `{sys.executable} -c 'import torch'` and read its error",
            "`holdfast env` shows what is installed",
        ],
    )


def _too_little_room(limit: int, what: str) -> UserError:
    return UserError(
        "torch does not fit into the address space that is allowed here",
        cause=f"the limit is {limit / 2**30:.1f} GiB (`ulimit -v {limit // 1024}`, RLIMIT_AS); {what}",
        hints=[
            "remove that limit of the shell, the user or the job (`ulimit -v unlimited`)",
            "to limit memory in use, use a cgroup: `systemd-run --user --scope -p MemoryMax=8G holdfast …`",
        ],
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
