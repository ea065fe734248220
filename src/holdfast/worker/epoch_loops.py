"""The loops over epochs of a script: which one this is, where it begins, and whether the run is past it.

    loops = EpochLoops()
    loop = loops.begin(context, landing, total, name)       # None: the run is past it, the loop has nothing to do
    for epoch in range(context.position.epoch - loop.first, loop.total): ...

A script may have several: pre-training and fine-tuning, one for each fold. Each counts its own epochs from 0; the run
counts them all together. They are told apart by their names, or by their order: a script that goes on calls
`session.epochs` as often as before, and those that are over do nothing.
"""

from __future__ import annotations

import dis
import inspect
import sys
import types

from holdfast.base.errors import UserError
from holdfast.run.commit_points import CommitPoint
from holdfast.worker.position import Loop
from holdfast.worker.restore import Landing
from holdfast.worker.session_context import SessionContext


class EpochLoops:
    """Of one session."""

    def __init__(self) -> None:
        self.calls = 0
        self._unnamed = 0

    def begin(self, context: SessionContext, landing: Landing | None, total: int, name: str | None) -> Loop | None:
        """The loop that begins or goes on here. None if the run is past it."""
        number, self.calls = self.calls, self.calls + 1
        before = landing.loop if landing is not None else context.loop
        if landing is None and before is not None and before.caught and name in (None, before.key):
            return Loop(number, total, key=before.key, first=before.first, before=before.before)
        key = self._key(name)
        if landing is None or landing.loop is None:
            return self._next(context, before, number, total, key)
        saved = landing.loop
        if key == saved.key:
            past = saved.left and landing.at is not CommitPoint.END
            return None if past else Loop(number, total, key=key, first=saved.first, before=saved.before)
        if key in saved.before:
            return None
        if landing.at.in_loop and not self._is_over(context, saved):
            raise _another_way(saved, key)
        return self._next(context, saved, number, total, key)

    def _key(self, name: str | None) -> str:
        if name is not None:
            return name
        self._unnamed += 1
        return f"#{self._unnamed}"

    def _next(self, context: SessionContext, last: Loop | None, number: int, total: int, key: str) -> Loop:
        """A new one: it begins where the run is."""
        over = [*last.before, last.key] if last is not None else []
        if key in over:
            raise UserError(
                f"a second loop over session.epochs is named `{key}`",
                cause="after a fault nobody could tell them apart",
                hints=['give each loop a name of its own: `session.epochs(total, name=f"fold {fold}")`'],
            )
        return Loop(number, total, key=key, first=context.position.epoch, before=over)

    @staticmethod
    def _is_over(context: SessionContext, loop: Loop) -> bool:
        return context.position.epoch >= loop.first + loop.total


def check_reached(landing: Landing | None) -> None:
    """The script is at its end. Has it come to the loop that the run was in?"""
    if landing is not None and landing.at.in_loop and landing.loop is not None and landing.missed:
        raise _another_way(landing.loop, None)


def _another_way(saved: Loop, key: str | None) -> UserError:
    went = "came to its end" if key is None else f"begins the loop `{key}`"
    return UserError(
        f"the run is in the loop `{saved.key}` over session.epochs, but the script {went} without coming to it",
        cause="which loops a script has must not depend on what is not restored, like a local variable",
        hints=["keep what decides it in `session.state`", 'name the loops: `session.epochs(total, name="finetune")`'],
    )


def left_by_error() -> bool:
    """Called by a generator that is closed: does an error leave the loop around it?

    Then the script may catch it and try again. `break` and `return` take the iterator from the stack by an instruction.
    """
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:  # a progress bar in between
        frame = frame.f_back
    if frame is None or frame.f_lasti < 0:
        return False
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return instruction not in ("POP_TOP", "POP_ITER", "END_FOR", "DELETE_FAST", "DELETE_NAME", "STORE_FAST")
