"""The head of a loop without epochs and batches: where `while session.step_count < total:` asks.

    head = LoopHead()
    head.asked(place_of_caller())     # True: the body of the last step is over, and it is time to commit
    head.step_ends()                  # True: there is no such head, so the step is committed by itself
    head.stepped_by_hand()            # `optimizer.step()` of the script; False: it will be committed nowhere

A body does more than its step: it updates a scheduler, logs a number, draws from a generator. All that belongs to the
step, and after a restart the loop goes on at its head. So the commit is made there and not right after the step. The
head is the first place that asks, because a restored run lands where it asks first. Other places that ask, in the
middle of a body, commit nothing. A loop that asks only once (`for step in range(session.step_count, total):`) has no
head that could be seen again: each of its steps is committed by itself. The byte code says which of the two it is.
"""

from __future__ import annotations

import dis
import sys
import time
from functools import lru_cache
from types import CodeType

Place = tuple[tuple[CodeType, int], ...]
"""Where in the script: a line, and the line that called the function it is in. Lines and not instructions, because
Python compiles the condition of a `while` twice: once for the first time, and once for all others."""

STEPS = 100
SECONDS = 300.0
"""A body of more steps, or of more time, is taken for a loop that asks only once, as one inside of another loop does.
What is done until then is done again after a fault; it is not lost, and it is not another training."""


def place_of_caller(depth: int = 2) -> Place:
    """Of the caller of the caller, and of who called that."""
    frame = sys._getframe(depth)
    outer = frame.f_back
    here = ((frame.f_code, frame.f_lineno),)
    return here if outer is None else (*here, (outer.f_code, outer.f_lineno))


@lru_cache(maxsize=256)
def may_ask_again(place: Place) -> bool:
    """Whether a loop of the script comes back to this place: its condition, or a place in its body."""
    (code, line), *outer = place
    if outer and not _loops(code):  # a small function that only asks: where it is called counts
        return _in_loop(*outer[0], name=None)
    return _in_loop(code, line, name="step_count")


def _loops(code: CodeType) -> list[tuple[int, int]]:
    """From where to where each jump back goes."""
    return [
        (step.argval, step.offset)
        for step in dis.get_instructions(code)
        if "JUMP" in step.opname and isinstance(step.argval, int) and step.argval <= step.offset
    ]


def _in_loop(code: CodeType, line: int, *, name: str | None) -> bool:
    """Whether an instruction of this line that reads the attribute, or calls, is between a jump back and its target."""
    loops = _loops(code)
    lines = {at: number for start, stop, number in code.co_lines() for at in range(start, stop)}
    return any(
        first <= step.offset <= last
        for step in dis.get_instructions(code)
        if lines.get(step.offset) == line and (step.argval == name if name else "CALL" in step.opname)
        for first, last in loops
    )


class LoopHead:
    """Of one session."""

    def __init__(self) -> None:
        self._head: Place | None = None
        self._confirmed = False
        """The head was seen again after a step."""
        self._absent = False
        self._pending = False
        """A step was done whose body is not over."""
        self._steps = 0
        self._since = 0.0
        self._before: set[Place] = set()
        """Places that asked since the last commit, before the next step: one of them may be the head of a next loop."""
        self._asked: set[Place] = set()
        """All that asked since the head did."""
        self._inside: set[Place] = set()
        """Those that asked between two visits of the head: they are in its body, and a loop there is no next loop."""

    def asked(self, place: Place) -> bool:
        if self._head is None:
            self._head, self._absent = place, not may_ask_again(place)
        if self._absent:
            self._absent = not (self._confirmed and place == self._head)
            return False
        if place == self._head:
            self._inside |= self._asked
            self._asked.clear()
        else:
            self._asked.add(place)
        if not self._pending:
            self._before.add(place)
            return False
        if place != self._head and not self._begins_next_loop(place):
            return False
        if place != self._head:
            self._asked.clear()
            self._inside.clear()
        self._head, self._confirmed = place, True
        self._before = {place}
        self.committed()
        return True

    def _begins_next_loop(self, place: Place) -> bool:
        """It asked before the step and asks again after it, and never between two visits of the head."""
        return self._confirmed and place in self._before and place not in self._inside

    def stepped_by_hand(self) -> bool:
        """A step that is committed at the head alone, however long the body is. False: there is no head."""
        if self._head is not None and not self._pending:
            self._pending, self._since = True, time.monotonic()
        return self._head is not None and (self._confirmed or not self._absent)

    def step_ends(self) -> bool:
        if self._head is None or self._absent:
            return True
        if not self._pending:
            self._pending, self._since = True, time.monotonic()
        self._steps += 1
        if self._steps >= STEPS or time.monotonic() - self._since >= SECONDS:
            self.committed()
            self._absent = True
        return self._absent

    def committed(self) -> None:
        """All that was done is kept: nothing waits for the head."""
        self._pending, self._steps = False, 0
