"""What a script prints again after a restart, held back.

    gate = Gate()
    gate.mark("0-7")                   # the state that is committed now: so much was printed before it
    gate.shut()                        # a new process, which repeats its set-up: nothing passes
    gate.reached("0-7")                # it stands where that commit was taken: lines printed since then are dropped
    gate.passes(1, data)               # what is to be shown of this

A line that is printed again stands for one that was printed before, whether or not its digits are the same: a step
that is repeated takes another time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MOST = 4 << 20
"""Bytes that were printed since the oldest mark, at most; of more than that, the older ones are forgotten."""
MARKS = 16
HELD = 64 << 10
"""Bytes of what a process printed on its way back that are kept, in case it fails there."""


@dataclass(slots=True)
class Stream:
    """One of the two streams."""

    shown: bytearray = field(default_factory=bytearray)
    """What was shown since `begin`."""
    begin: int = 0
    at: int = 0
    """Where in all that was shown the process is; less than the end while it repeats."""
    held: bytearray = field(default_factory=bytearray)
    line: bytearray = field(default_factory=bytearray)
    """The line that is being repeated and has no end yet."""
    different: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.begin + len(self.shown)

    def show(self, data: bytes) -> bytes:
        self.shown += data
        self.at = self.end
        if len(self.shown) > 2 * MOST:
            cut = len(self.shown) - MOST
            del self.shown[:cut]
            self.begin += cut
        return data

    def repeat(self, data: bytes) -> bytes:
        """Drop lines as long as there are lines that were shown from here on; the rest passes."""
        self.line += data
        while self.at < self.end:
            rest = self.shown[max(0, self.at - self.begin) :]
            stop = rest.find(b"\n")
            if stop < 0:  # the last line was cut by the end of the process before
                if len(self.line) < len(rest) and b"\n" not in self.line:
                    return b""
                passed = bytes(self.line[len(rest) :]) if b"\n" not in self.line[: len(rest)] else self._other_line()
                self.line.clear()
                self.at = self.end
                return self.show(passed)
            new = self.line.find(b"\n")
            if new < 0:
                return b""
            before, now = bytes(rest[: stop + 1]), bytes(self.line[: new + 1])
            if before != now and len(self.different) < 100:
                self.different.append((before, now))
            del self.line[: new + 1]
            self.at += stop + 1
        passed = bytes(self.line)
        self.line.clear()
        return self.show(passed)

    def _other_line(self) -> bytes:
        """The line that was cut is shorter now: it ends where the new one ends."""
        stop = self.line.find(b"\n")
        return bytes(self.line[stop:])


class Gate:
    """Of one run: its processes come and go, what was shown stays shown."""

    def __init__(self) -> None:
        self._streams = {1: Stream(), 2: Stream()}
        self._marks: dict[str, dict[int, int]] = {}
        self._pass: Callable[[Stream, bytes], bytes] = Stream.show

    def passes(self, target: int, data: bytes) -> bytes:
        return self._pass(self._streams[target], data)

    def mark(self, name: str) -> None:
        self._marks[name] = {target: each.at + len(each.line) for target, each in self._streams.items()}
        while len(self._marks) > MARKS:
            del self._marks[next(iter(self._marks))]

    def shut(self) -> None:
        for each in self._streams.values():
            each.line.clear()
            each.held.clear()
        self._pass = _hold

    def reached(self, name: str) -> None:
        known = self._marks.get(name, {})
        for target, each in self._streams.items():
            each.at = min(each.end, known.get(target, each.end))
            each.held.clear()
            each.different.clear()
        self._pass = Stream.repeat

    def repeat_all(self) -> None:
        """A process that begins from nothing and prints all of it again."""
        for each in self._streams.values():
            each.at = each.begin
            each.line.clear()
        self._pass = Stream.repeat if any(each.shown for each in self._streams.values()) else Stream.show

    def opened(self) -> dict[int, bytes]:
        """The process failed on its way back: what it printed there says why."""
        held = {target: bytes(each.held) for target, each in self._streams.items()} if self._pass is _hold else {}
        return {target: data for target, data in held.items() if data}

    @property
    def different(self) -> list[tuple[bytes, bytes]]:
        """Lines of stdout that were printed again with other characters: (before, now)."""
        return list(self._streams[1].different)


def _hold(stream: Stream, data: bytes) -> bytes:
    stream.held += data
    if len(stream.held) > 2 * HELD:
        del stream.held[:-HELD]
    return b""
