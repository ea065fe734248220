"""Who descends from a process, as the kernel tells: pid, parent, state and CPU time of each.

for pid, member in family(os.getpid()).items(): ...     # zombies included; none where there is no /proc
member = look(pid)                                      # one of them, or None if it is gone
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a family."""

    pid: int
    parent: int
    session: int
    state: str
    cpu_ticks: int
    started: int


def family(root: int) -> dict[int, Member]:
    """Every descendant of a process, without itself."""
    everybody: dict[int, Member] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                member = look(int(entry.name))
                if member is not None:
                    everybody[member.pid] = member
    children: dict[int, list[int]] = {}
    for member in everybody.values():
        children.setdefault(member.parent, []).append(member.pid)
    found: dict[int, Member] = {}
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = everybody[pid]
            waiting += children.get(pid, ())
    return found


def look(pid: int) -> Member | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
        words = text[text.rindex(")") + 2 :].split()
        return Member(pid, int(words[1]), int(words[3]), words[0], int(words[11]) + int(words[12]), int(words[19]))
    except (OSError, ValueError, IndexError):
        return None
