"""A process that a supervisor has started, seen from outside: a worker, or a script of `holdfast run`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from holdfast.base import processes


@dataclass(kw_only=True)
class SupervisedProcess:
    """One generation, from its start to its end."""

    generation: int
    pid: int = 0
    pidfd: int | None = None
    exit_code: int | None = None
    """As in `subprocess`, negative for a signal; None while it runs, and where nobody knows it."""
    started: float = field(default_factory=time.monotonic)
    started_ns: int = field(default_factory=time.time_ns)

    def identify(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = processes.open_pidfd(pid)

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
