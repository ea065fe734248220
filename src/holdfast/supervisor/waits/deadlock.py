"""Is a silent process deadlocked? Two looks are a proof, and a proof needs no patience.

    deadlock = Deadlock()
    deadlock.proven(pid)        # False at the first look; True at a later one that finds the very same waits
    deadlock.forget()           # it has said something

Every thread waits for a lock or another thread of its own process, none of them with a deadline, and none has moved
between the two looks. Nobody outside the process can end such a wait, and inside nobody runs. A signal could: a thread
that a signal wakes has moved, and a process that catches a timer's signal is left alone. Where a system does not show
the waits of threads, nothing is ever proven.
"""

from __future__ import annotations

from holdfast.supervisor.waits.calls import caught_signals
from holdfast.supervisor.waits.threads import Thread, main_thread, remaining, threads

_TIMERS = 1 << 13 | 1 << 25 | 1 << 26
"""SIGALRM, SIGVTALRM and SIGPROF in a mask: `signal.alarm` around a wait is a deadline."""


class Deadlock:
    """What the look before has found."""

    def __init__(self) -> None:
        self._before: tuple[int, dict[int, int]] | None = None

    def forget(self) -> None:
        self._before = None

    @property
    def suspected(self) -> bool:
        """One look has found nobody who could move: the next one decides."""
        return self._before is not None

    def proven(self, pid: int) -> bool:
        waits = _waits(pid)
        before, self._before = self._before, (pid, waits) if waits else None
        return bool(waits) and before == (pid, waits)


def _waits(pid: int) -> dict[int, int]:
    """The thread numbers, each with how often it has waited so far; none if one of them may move by itself."""
    main = main_thread(pid)
    if main is None or not _for_its_own(main):  # as a rule this one says it, and the others need not be asked
        return {}
    everyone = threads(pid)
    if not all(map(_for_its_own, everyone)) or caught_signals(pid) & _TIMERS:
        return {}
    return {each.tid: each.switches for each in everyone}


def _for_its_own(thread: Thread) -> bool:
    """Does it wait, without a deadline, for memory that only its own process can see?"""
    if thread.state != "S" or thread.call != "futex" or not thread.sure or not thread.args:
        return False
    return not thread.between_processes and remaining(thread) is None
