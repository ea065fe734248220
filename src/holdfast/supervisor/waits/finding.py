"""What a look at a silent process found: can it go on by itself?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Grade(IntEnum):
    """How sure it is that a silent process goes on by itself; of several, the highest counts."""

    STUCK = 0
    """Nothing that can be seen will ever wake it."""
    UNCLEAR = 1
    """It computes, or nobody can tell."""
    WAITS = 2
    """Its wait can end: by the clock, another machine, a file, somebody else's lock, a child that works, a person."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement, with words that follow "it"."""

    grade: Grade
    kind: str
    """sleep, timer, socket, listen, pipe, file, lock, child, prompt, signal, computes, device, stopped, debugger,
    others (waits for threads or processes that do not move), unknown, unseen"""
    words: str
    until: float | None = None
    """Seconds after which its wait ends by itself, where that is known."""

    @property
    def endless(self) -> bool:
        """It waits for a person, who may be asleep."""
        return self.grade is Grade.WAITS and self.kind in ("prompt", "debugger")


COMPUTES = Finding(Grade.UNCLEAR, "computes", "it computes")
UNKNOWN = Finding(Grade.UNCLEAR, "unknown", "what it does is unknown")
UNSEEN = Finding(Grade.UNCLEAR, "unseen", "what it does is unknown")
"""Where processes cannot be looked at, at all."""
STOPPED = Finding(Grade.STUCK, "stopped", "it is stopped by a signal")
CIRCLE = Finding(Grade.STUCK, "others", "it waits for a process that waits for it")
OTHERS = Finding(Grade.STUCK, "others", "it waits for threads of its own, and none of them moves")
