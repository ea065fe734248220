"""What a silent process waits for, followed to its end: through its threads, its children, and whom it is connected to.

    waits = Waits()
    finding = waits.look(pid, members)       # every few seconds while it is silent; members: its family
    finding.grade, finding.words             # Grade.WAITS, "it waits for a socket (192.0.2.7:443)"
    waits.forget()                           # it has said something

The main thread decides. If it waits for a thread of its own (a lock, a join, a queue), those are asked, and helpers
that only tick (a progress bar's monitor, a server that listens) do not count. If it waits for a process of its own
family (a child, a pipe), that one is judged in the same way; who waits in a circle is stuck.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from holdfast.base.process_tree import Member
from holdfast.supervisor.waits import calls
from holdfast.supervisor.waits.descriptors import Across, Ends
from holdfast.supervisor.waits.finding import CIRCLE, COMPUTES, OTHERS, STOPPED, UNKNOWN, Finding, Grade
from holdfast.supervisor.waits.threads import Thread, remaining, threads

RHYTHM = 15.0
"""Seconds: a helper thread that wakes up more often only keeps time, and the main thread does not wait for it."""
INTERPRETER = 0.006
"""Seconds: whoever waits for Python's interpreter lock looks for it every 5 ms. That is no deadline."""
CPU_SHARE = 0.2
"""Of one core, from which on a process computes."""
TICKS = float(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100.0


class Waits:
    """What is remembered of a silent family between two looks."""

    def __init__(self) -> None:
        self._switches: dict[int, int] = {}
        self._longest: dict[int, float] = {}
        self._ticks: dict[int, tuple[float, int]] = {}
        self._ready: set[int] = set()

    def forget(self) -> None:
        self._switches.clear()
        self._longest.clear()
        self._ticks.clear()
        self._ready.clear()

    def look(self, pid: int, members: Mapping[int, Member]) -> Finding:
        """What this process waits for. `members` are those it may wait for: everything the script started."""
        look = _Look(self, members)
        try:
            return look.process(pid, frozenset())
        finally:
            self._switches.update(look.switches)
            self._ready = look.ready
            now = time.monotonic()
            self._ticks = {each.pid: (now, each.cpu_ticks) for each in members.values()}

    def moved(self, thread: Thread) -> bool:
        """Has it waited for something else in between?"""
        before = self._switches.get(thread.tid)
        return before is not None and before != thread.switches

    def ready(self, thread: Thread) -> bool:
        """Would it compute if the machine let it? Seen twice: whoever only wakes up now and then is seen by chance."""
        return thread.state == "R" and thread.tid in self._ready

    def longest(self, thread: Thread, left: float) -> float:
        """The longest time a thread was seen to give itself in its waits."""
        self._longest[thread.tid] = max(left, self._longest.get(thread.tid, 0.0))
        return self._longest[thread.tid]

    def computes(self, member: Member | None) -> bool:
        if member is None or member.pid not in self._ticks:
            return False
        then, ticks = self._ticks[member.pid]
        return (member.cpu_ticks - ticks) / TICKS / max(0.01, time.monotonic() - then) >= CPU_SHARE


class _Look:
    """One moment of a family."""

    def __init__(self, memory: Waits, members: Mapping[int, Member]) -> None:
        self.memory = memory
        self.members = members
        self.ends = Ends(members)
        self.switches: dict[int, int] = {}
        self.ready: set[int] = set()

    def process(self, pid: int, seen: frozenset[int]) -> Finding:
        if pid in seen:
            return CIRCLE
        seen = seen | {pid}
        everyone = threads(pid)
        if not everyone:
            return UNKNOWN
        self.switches.update({each.tid: each.switches for each in everyone})
        self.ready |= {each.tid for each in everyone if each.state == "R"}
        main = everyone[0]
        if main.state in "Tt":
            debugger = Finding(Grade.WAITS, "debugger", "it is held by a debugger")
            return STOPPED if main.state == "T" else debugger
        found = self.thread(main, seen)
        if found is None:
            found = self._others(main, everyone[1:], seen)
        if found.grade is not Grade.STUCK:
            return found
        if self.memory.computes(self.members.get(pid)) or any(self.memory.ready(each) for each in everyone):
            return COMPUTES
        if self.memory.moved(main) and main.call != "futex":
            return Finding(Grade.UNCLEAR, "unknown", "it waits again and again")
        return found

    def _others(self, main: Thread, rest: Iterable[Thread], seen: frozenset[int]) -> Finding:
        """The main thread waits for somebody of its own: who moves?"""
        found, shared = [OTHERS], main.between_processes
        for thread in rest:
            each = self.thread(thread, seen)
            if each is None:
                shared = shared or thread.between_processes
            elif (weighed := self._of_a_helper(thread, each)) is not None:
                found.append(weighed)
        if shared:
            found += [self.process(pid, seen) for pid in self.members if pid not in seen]
        return max(found, key=lambda each: each.grade)

    def _of_a_helper(self, thread: Thread, found: Finding) -> Finding | None:
        """What a wait of another thread means for the main one; None if nothing."""
        if found.kind in ("signal", "listen"):
            return None
        if found.kind == "timer" and self.memory.longest(thread, found.until or 0.0) < RHYTHM:
            return None
        idle = found.kind == "socket" and not self.memory.moved(thread)  # a connection that is only kept open
        if found.grade is Grade.WAITS and (idle or found.kind in ("timer", "sleep", "prompt")):
            return Finding(Grade.UNCLEAR, found.kind, f"a thread of it: {found.words}")
        return found

    # -- one thread ----------------------------------------------------------------------------------------

    def thread(self, thread: Thread, seen: frozenset[int]) -> Finding | None:
        """What it waits for; None where that is a thread or process of its own, whichever."""
        call = thread.call
        if thread.state == "R":
            return COMPUTES if thread.is_main or self.memory.ready(thread) else None
        if call is None:
            file = Finding(Grade.WAITS, "file", "it waits for a disk or a network file system")
            return file if thread.state == "D" else UNKNOWN
        left = remaining(thread)
        if call in ("nanosleep", "clock_nanosleep"):
            return Finding(Grade.WAITS, "sleep", "it sleeps", left)
        if call in calls.MEMORY:
            return self._memory(thread, left)
        if call in calls.SIGNALS:
            return calls.signal_wait(thread, left)
        if call in ("wait4", "waitid"):
            return self._children(thread, seen)
        if call in ("flock", "fcntl"):
            return self._lock(thread, seen)
        if not thread.sure:
            return UNKNOWN
        waits_for = calls.descriptors(thread, self.ends)
        if waits_for is None:
            return calls.by_name(thread, self.ends)
        found = [self._descriptor(thread.pid, fd, writing, seen) for fd, writing in waits_for]
        known = [each for each in found if each is not None]
        if left is not None and not known:
            return Finding(Grade.WAITS, "timer", "it waits with a deadline", left)
        return max(known, key=lambda each: each.grade) if known else None

    def _memory(self, thread: Thread, left: float | None) -> Finding | None:
        """A futex or a semaphore."""
        if not thread.sure:
            return UNKNOWN
        if left is None or self.memory.longest(thread, left) <= INTERPRETER:
            return None
        return Finding(Grade.WAITS, "timer", "it waits with a deadline", left)

    def _children(self, thread: Thread, seen: frozenset[int]) -> Finding | None:
        wanted = calls.child(thread, self.ends)
        children = {pid for pid, each in self.members.items() if each.parent == thread.pid}
        if wanted is not None:
            children = {wanted} & self.members.keys()
        if not children:
            return Finding(Grade.UNCLEAR, "child", "it waits for a child")
        found = self._best(children, seen)
        return Finding(found.grade, "child", f"it waits for a child; {found.words}", found.until)

    def _lock(self, thread: Thread, seen: frozenset[int]) -> Finding | None:
        holder = self.ends.holder_of_lock(thread.pid)
        if holder is None or holder not in self.members:
            return Finding(Grade.WAITS, "lock", "it waits for the lock of a file")
        if holder == thread.pid:
            return None
        found = self._best({holder}, seen)
        return Finding(found.grade, "lock", f"it waits for the lock of a file; {found.words}", found.until)

    # -- descriptors ---------------------------------------------------------------------------------------

    def _descriptor(self, pid: int, fd: int, writing: bool, seen: frozenset[int]) -> Finding | None:
        name = self.ends.name(pid, fd)
        if self.ends.is_terminal(pid, fd):
            return Finding(Grade.WAITS, "prompt", "it waits for input at the terminal")
        if name.startswith(("pipe:", "socket:")):
            return self._across(pid, self.ends.across(pid, fd, writing=writing), name, seen, fd)
        if name.startswith("anon_inode:"):
            return self._anonymous(pid, fd, name, seen)
        if name.startswith(calls.DEVICES):
            return Finding(Grade.STUCK, "device", f"it waits for the driver of {name}")
        if self.ends.is_fifo(pid, fd):
            return Finding(Grade.WAITS, "pipe", f"it waits for the other end of {name}")
        return Finding(Grade.WAITS, "file", f"it waits for {name or 'a file'}")

    def _across(self, pid: int, other: Across, name: str, seen: frozenset[int], fd: int) -> Finding | None:
        kind = "pipe" if name.startswith("pipe:") else "listen" if other.listens else "socket"
        inside = other.pids & self.members.keys()
        if other.outside or other.pids - inside:
            kind = "prompt" if fd == 0 else kind
            words = "its input" if fd == 0 else other.words
            return Finding(Grade.WAITS, kind, f"it waits for {words}")
        if not inside - {pid}:
            return None
        found = self._best(inside - {pid}, seen)
        return Finding(found.grade, "child", f"it waits for a process of its own; {found.words}", found.until)

    def _anonymous(self, pid: int, fd: int, name: str, seen: frozenset[int]) -> Finding | None:
        if "timerfd" in name:
            return Finding(Grade.WAITS, "sleep", "it waits for a timer")
        if "inotify" in name or "fanotify" in name:
            return Finding(Grade.WAITS, "file", "it waits for a file to change")
        if "signalfd" in name:
            return Finding(Grade.WAITS, "signal", "it waits for a signal")
        if "pidfd" in name:
            child = self.ends.process_of(pid, fd)
            return self._best({child}, seen) if child in self.members and child is not None else UNKNOWN
        if "eventpoll" in name:
            found = [self._descriptor(pid, each, writes, seen) for each, writes in self.ends.watched(pid, fd)]
            known = [each for each in found if each is not None]
            return max(known, key=lambda each: each.grade) if known else None
        return None if "eventfd" in name else UNKNOWN

    def _best(self, pids: Iterable[int], seen: frozenset[int]) -> Finding:
        return max((self.process(pid, seen) for pid in pids), key=lambda each: each.grade)
