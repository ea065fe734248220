"""One pass over somebody else's loader, which a new process can take up where the old one was.

    track = Track(Source(dataloader))
    track.next(); track.next()              # two batches; StopIteration at the end
    state = track.state(used=2)             # the place, and what the next batch will be
    Track(source, state).next()             # the third batch, in another process too

There are two ways back. A loader that can say its position is told it. Any other is asked for its batches from the
beginning, with the random generators as they were then, and those that were used are passed over: without reading them
where a sampler gives indices. What comes next is held against the fingerprint of what came next before, so no way is
believed: if one gives another batch, the next is tried, and after the last the run stops with an error.

A pass draws from the generators of the script, as without holdfast. One that the script draws from by itself, in the
middle of its own work (`apart`), has states of its own for them: nobody could say what it draws in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.base.errors import UserError
from holdfast.data.any_source import Now, Source, packed, seeded_globals, set_globals, unpacked
from holdfast.data.batch_print import follow_up, print_of

_END = "end"
"""The print of a next batch that does not come."""
_RESPAWNS = 3
"""How often a pass is begun anew because a loader process died at one batch."""
_DIED = "DataLoader worker (pid"
"""The beginning of what torch says then."""


class Track:
    """A pass: as far as it has come, and all that is needed to come there again."""

    def __init__(self, source: Source, saved: Mapping[str, Any] | None = None, *, apart: bool = False) -> None:
        self.source = source
        self.given = int(saved["given"]) if saved else 0
        self.over = False
        self.opening = False
        self._saved = dict(saved) if saved else None
        self._begun: Now = (unpacked(saved["begun"]), saved["own_begun"]) if saved else source.now()
        self._counted: dict[str, Any] = dict(saved.get("counted") or {}) if saved else {}
        """What the loader had counted by itself as the pass began."""
        self._world: dict[str, Any] | None = self._begun[0] if apart else None
        """The global generators as this pass has them, if it has its own."""
        self._print = int(saved["print"]) if saved else 0
        """Of the indices that were given, where a sampler gives them."""
        self._it: Iterator[Any] | None = None
        self._ahead: tuple[Any, Exception | None, Now | None] | None = None
        """The next batch, or what came in its place, and the generators after it."""
        self._here: dict[str, Any] = {}
        """The place as it was before that batch was read."""
        self._indices: _Indices | None = None
        self._respawned = 0

    @property
    def live(self) -> bool:
        return self._it is not None

    def next(self, ready: Callable[[], None] | None = None) -> Any:
        """The next batch. `ready` is called once before the first one is read, with the loader at its place."""
        if self.over:
            raise StopIteration
        if self._it is None:
            self._open(ready)
        if self._ahead is None:
            value, error = self._read()
        else:
            (value, error, after), self._ahead = self._ahead, None
            if after is not None:
                self.source.set_to(after)
        if error is not None:
            self.over = isinstance(error, StopIteration)
            self._it = None if self.over else self._it
            raise error
        self.given += 1
        self._respawned = 0
        if self._indices is not None:
            self._print = follow_up(self._print, self._indices.print_of(self.given - 1))
        if self.given == 1:
            self.source.note_first_batch()
        return value

    def is_last(self) -> bool:
        """Whether no batch follows. It is read for that, and kept."""
        self._look_ahead()
        return self.over or (self._ahead is not None and isinstance(self._ahead[1], StopIteration))

    def state(self, used: int) -> dict[str, Any]:
        """The place after `used` batches: all that were given, or one less, where nobody will go on from it."""
        if self._saved is not None:  # not there yet
            return self._saved
        state: dict[str, Any] = {
            "given": used,
            "print": self._print,
            "begun": packed(self._begun[0]),
            "own_begun": self._begun[1],
            "counted": self._counted,
            "by_index": self._indices is not None,
        }
        if used != self.given or not used:
            return state
        self._look_ahead()
        return {**state, "next": self._next_print(), **({} if self.over else self._here)}

    def _look_ahead(self) -> None:
        if self._ahead is None and not self.over and self._it is not None:
            world = {} if self._world is None else {"world": packed(self._world)}
            before = self.source.now()
            self._here = {"position": self.source.position(), "own": before[1], **world}
            value, error = self._read()
            after = None
            if self._world is None:
                after = self.source.now()
                self.source.set_to(before)
            self._ahead = value, error, after

    def _next_print(self) -> int | str | None:
        """Of the batch ahead; None if the loader raises there."""
        if self._ahead is None:
            return _END
        value, error, _ = self._ahead
        return print_of(value) if error is None else _END if isinstance(error, StopIteration) else None

    def _read(self) -> tuple[Any, Exception | None]:
        assert self._it is not None
        try:
            with self._inside():
                return next(self._it), None
        except Exception as error:
            if not isinstance(error, RuntimeError) or _DIED not in str(error) or self._respawned >= _RESPAWNS:
                return None, error
            self._respawn(error)
        return self._read()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Where the pass has generators of its own, they are in their places for a while."""
        if self._world is None:
            yield
            return
        outside = self.source.now()[0]
        set_globals(self._world)
        try:
            yield
        finally:
            self._world = self.source.now()[0]
            set_globals(outside)

    # Beginning, and going on.

    def _open(self, ready: Callable[[], None] | None) -> None:
        self.opening = True
        try:
            if self._saved is None or not self.given:
                if ready is not None:
                    ready()
                self.source.begin_anew()
                self._counted = self.source.counters.changed()
                self._begun = self.source.now() if self._world is None else (seeded_globals(), self.source.own())
                self._begin()
            else:
                self._go_on(self._saved, ready)
            self._saved = None
        finally:
            self.opening = False

    def _begin(self) -> None:
        """The iterator of this pass, which begins as it did the first time."""
        if self._world is not None:
            self._world = self._begun[0]
        with self._inside():
            self._it = it = self.source.open()
        indices = getattr(it, "_sampler_iter", None) if self.source.by_index else None
        self._indices = None if indices is None else _Indices(indices)
        if self._indices is not None:
            it._sampler_iter = self._indices  # type: ignore[attr-defined]

    def _go_on(self, saved: Mapping[str, Any], ready: Callable[[], None] | None) -> None:
        here = self.source.now()[0]
        told = False

        def arrived() -> None:
            """The loader is at its place. What it drew on the way there does not count."""
            nonlocal here, told
            set_globals(here)
            if not told and ready is not None:
                ready()
                here = self.source.now()[0]
            told = True
            self.source.set_own(saved.get("own") or {})
            if "world" in saved:
                self._world = unpacked(saved["world"])

        if saved.get("position") is not None:
            self.source.go_to(saved["position"])
            self._begin()
            arrived()
            if self._as_before(saved):
                return
            self.source.note(f"data: {self.source.kind} does not come back to its place by what it says of it")
            self.source.ended = True  # so that a pass begins at the beginning
            self.source.begin_anew()
        if saved.get("by_index") and self._passed_over(saved, arrived, read=False):
            return
        if not self._passed_over(saved, arrived, read=True):
            raise self._another_one()

    def _passed_over(self, saved: Mapping[str, Any], arrived: Callable[[], None], *, read: bool) -> bool:
        """The pass is begun as it was, and what was given of it does not come again. False if it is another pass."""
        self.source.counters.set_to(self._counted)
        self.source.set_own(self._begun[1])
        if self._world is None:
            set_globals(self._begun[0])
        self._begin()
        with self._inside():
            right = self._read_over() if read else self._indices is not None and self._is_same_order(self._indices)
        arrived()
        return right and self._as_before(saved)

    def _is_same_order(self, indices: _Indices) -> bool:
        return indices.passed_over(self.given) == self._print

    def _read_over(self) -> bool:
        source, it = self.source, self._it
        assert it is not None
        if self.given:
            source.note(
                f"data: {self.given} batches are read again and passed over: {source.kind} cannot say its position"
            )
        for number in range(self.given):
            try:
                next(it)
            except StopIteration:
                return False
            if self._indices is not None:
                self._indices.print_of(number)
            if source.on_progress is not None:
                source.on_progress(number + 1, self.given, "passing over batches that were used")
        return True

    def _as_before(self, saved: Mapping[str, Any]) -> bool:
        """Is the next batch the one that the old process had in view?"""
        self._ahead, expected = None, saved.get("next")
        if expected is None:
            return True
        self._look_ahead()
        if self._next_print() == expected:
            return True
        self._ahead = None
        return False

    def _respawn(self, error: RuntimeError) -> None:
        """A process of the DataLoader died. A new pass begins, and what was given of it is passed over."""
        self._respawned += 1
        self._it, now, world = None, self.source.now(), self._world
        if self.source.on_event is not None:
            said = str(error).partition("\n")[0]
            self.source.on_event("loader_died", {"pid": None, "samples": [], "batch": self.given, "message": said})

        def arrived() -> None:
            self.source.set_to(now)
            self._world = world

        if not self._passed_over({}, arrived, read=True):
            raise self._another_one() from error

    def _another_one(self) -> UserError:
        return UserError(
            f"the {self.source.kind} gives other batches than before: there is no way back to batch {self.given}",
            cause="its order depends on something that is not restored: the time, a process id, a counter of its own",
            hints=[
                "seed it (`generator=`, `seed=`), or give it state_dict and load_state_dict",
                "`holdfast.Loader` goes on anywhere, if the dataset has __len__ and __getitem__",
            ],
        )


class _Indices:
    """What a sampler gives, with a fingerprint of each batch of it until that is used."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner
        self._count = 0
        self._prints: dict[int, int] = {}

    def __iter__(self) -> _Indices:
        return self

    def __next__(self) -> Any:
        found = next(self._inner)
        self._prints[self._count] = print_of(found)
        self._count += 1
        return found

    def print_of(self, number: int) -> int:
        return self._prints.pop(number, 0)

    def passed_over(self, count: int) -> int | None:
        """The fingerprint of so many, which are not read; None if there are not so many."""
        found = 0
        for number in range(count):
            try:
                next(self)
            except StopIteration:
                return None
            found = follow_up(found, self.print_of(number))
        return found
