"""Compilation, shown as a phase of its own: it may take minutes, and it comes back at any step.

    watch = CompileWatch(board, enter)      # enter(phase) changes what the worker is doing
    watch.begin()                           # before a step: nothing, unless torch.compile appeared or was reset
    watch.check()                           # after it: raises what `enter` raised while something was compiled
    watch.end()

A batch of another shape, such as the last one of an epoch, makes torch.compile work again in the middle of a
run. Without this the watchdog would see a forward pass that hangs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from holdfast.base.board import Board, Phase


class CompileWatch:
    """Follows torch.compile as long as it is asked to. Importing torch._dynamo costs seconds, so it never does."""

    def __init__(self, board: Board, enter: Callable[[Phase], None]) -> None:
        self._board = board
        self._enter = enter
        self._before: Phase | None = None
        self._error: Exception | None = None
        self._begun, self._done = self._compilation_begins, self._compilation_ends

    def begin(self) -> None:
        self._error = None  # of a step that ended otherwise: it is no answer to this one, and holds on to its frames
        handler = _handler()
        if handler is not None and self._begun not in handler.start_callbacks:  # new, or after torch._dynamo.reset()
            handler.register_start_callback(self._begun)
            handler.register_end_callback(self._done)

    def end(self) -> None:
        handler = _handler()
        if handler is not None:
            with contextlib.suppress(ValueError):
                handler.remove_start_callback(self._begun)
                handler.remove_end_callback(self._done)

    def check(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _compilation_begins(self, *_: Any) -> None:  # torch 2.6 passes nothing, later ones say what is compiled
        if not self._board.closed:
            self._before = self._board.phase
            self._go(Phase.COMPILE)

    def _compilation_ends(self, *_: Any) -> None:
        before, self._before = self._before, None
        if before is not None:
            self._go(before)

    def _go(self, phase: Phase) -> None:
        try:
            self._enter(phase)
        except Exception as error:  # kept for `check`: torch's compiler would make an error of its own of it
            self._error = error


def _handler() -> Any:
    return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
