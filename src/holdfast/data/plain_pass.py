"""`iter(loader)`: a pass over a Loader that is not the loop of session.batches.

    passes = Passes(values)                # values(number, start): an iterator over batch `start` and the following
    it = passes.begin(number)
    passes.state_dict()                    # how many were begun, and how far the one under way has come
    passes.load_state_dict(state)          # the iterator there is, or the next one, goes on there

The iterator of a protected Loader belongs to the state: `next(it)` in the body of a loop gives the same batches after a
restart. A Loader that is not protected can be read from beginning to end, as in an evaluation. One that is drawn from
over several bodies would begin anew after a restart: `strays` finds it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.base.errors import UserError

Values = Callable[[int, int], Iterator[Any]]

_going: weakref.WeakSet[Pass] = weakref.WeakSet()
"""Passes over Loaders that are not protected, begun and not ended."""


class Pass:
    """One iterator."""

    def __init__(self, passes: Passes, number: int) -> None:
        self.number = number
        self.given = 0
        self.over = False
        self.drawn = False
        """Since somebody asked last."""
        self._passes = passes
        self._values: Iterator[Any] | None = None

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        if self.over:
            raise StopIteration
        if self._values is None:
            self._values = self._passes.values(self.number, self.given)
        try:
            value = next(self._values)
        except BaseException:
            self.over = True
            self._values = None
            raise
        self.given += 1
        self.drawn = True
        self._passes.drawn += 1
        if not self._passes.protected:
            _going.add(self)
        return value

    def go_on_at(self, number: int, given: int) -> None:
        self.number, self.given, self.over, self._values = number, given, False, None


class Passes:
    """Those of one Loader."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.protected = False
        self.drawn = 0
        """Batches that were given, since somebody set it to 0."""
        self._begun = 0
        self._current: weakref.ref[Pass] | None = None
        self._going_on: tuple[int, int] | None = None

    def begin(self, number: int) -> Pass:
        """An iterator. That of a protected Loader has another order each time."""
        made = Pass(self, number)
        if not self.protected:
            return made
        made.number = self._begun
        self._begun += 1
        if self._going_on is not None:
            made.go_on_at(*self._going_on)
            self._begun, self._going_on = made.number + 1, None
        self._current = weakref.ref(made)
        return made

    @property
    def current(self) -> Pass | None:
        """The iterator that is under way: some of it was given, and somebody has it still."""
        found = self._current() if self._current is not None else None
        return found if found is not None and found.given and not found.over else None

    def state_dict(self) -> dict[str, Any] | None:
        current = self.current
        going = self._going_on if current is None else (current.number, current.given)
        if not self._begun and going is None:
            return None
        return {"begun": self._begun, "going": None if going is None else list(going)}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        state = state or {}
        self._begun = int(state.get("begun", 0))
        going = state.get("going")
        self._going_on = (int(going[0]), int(going[1])) if going else None
        live = self._current() if self._current is not None else None
        if live is not None and self._going_on is not None:
            live.go_on_at(*self._going_on)
            self._going_on = None
        elif live is not None and live.given and not live.over:  # it was begun after what is restored
            live.go_on_at(max(0, self._begun - 1), 0)

    def begin_again(self) -> None:
        """Before a restored script has come to its place, it does what it did in its first life."""
        self._begun, self._going_on, self._current = 0, None, None


def check_no_strays() -> None:
    """A body is over. Was a Loader drawn from in it whose place nobody keeps?"""
    found = [each for each in list(_going) if each.drawn and not each.over] if _going else []
    for each in found:
        each.drawn = False
    if found:
        raise UserError(
            "the loop draws from a Loader that is not protected",
            cause="after a fault it would begin anew, and give other batches",
            hints=["add it to the call: `session.protect(model=…, data=data, more=loader)`"],
        )
