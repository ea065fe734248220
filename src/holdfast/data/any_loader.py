"""Somebody else's loader in the loop of a session: a torch DataLoader, a StatefulDataLoader, any iterable of batches.

    data = AnyLoader(dataloader)                    # what session.protect makes of it
    for batch in data.batches(data.epoch, data.cursor, ready): ...
    data.advance(batch)                             # this batch counts from here on

It is as the script made it: the same batches in the same order as without holdfast, with the same random numbers. It
draws from the global generators when it likes, so those are restored before it is read again and not after. How it
comes back to its place is in any_pass.py. What holdfast.Loader does beyond that it has not: samples that cannot be read
are not left out, and several ranks do not share it. (What ranks make of a DistributedSampler: distributed_sampler.py.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from holdfast.base.errors import UserError
from holdfast.data.any_pass import Track
from holdfast.data.any_source import Source
from holdfast.data.batch import batch_size
from holdfast.data.loader import Batch, Loader
from holdfast.data.shares import Shares

Ready = Callable[[], None]


def is_loader(value: Any) -> bool:
    """Whether session.protect should see a loader in this: it gives batches, and can come back to its place somehow."""
    if isinstance(value, (DataLoader, IterableDataset)):
        return True
    if isinstance(value, (Loader, torch.nn.Module, Optimizer, Mapping, type)):
        return False
    stateful = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    return stateful and callable(getattr(type(value), "__iter__", None))


class AnyLoader:
    """What a session needs of a loader, for one that knows nothing of sessions."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.source = Source(loader)
        self.epoch = 0
        self.cursor = 0
        self.skipped = self.repeated = 0
        self.quarantined: list[dict[str, Any]] = []
        self.device: torch.device | None = None
        self.on_wait: Callable[[], None] | None = None
        self.passes = Passes(self.source)
        self._counted: dict[str, Any] = {}
        """What the loader has counted by itself, between two epochs."""
        self._track = Track(self.source)
        _hook(loader, self)

    @property
    def dataset(self) -> Any:
        return getattr(self.loader, "dataset", self.loader)

    @property
    def num_workers(self) -> int:
        return self.source.workers

    @property
    def on_event(self) -> Callable[[str, dict[str, Any]], None] | None:
        return self.source.on_event

    @on_event.setter
    def on_event(self, call: Callable[[str, dict[str, Any]], None] | None) -> None:
        self.source.on_event = call

    def length(self) -> int:
        """Batches in an epoch; 0 if nobody knows."""
        try:
            return len(self.loader)
        except (TypeError, NotImplementedError):
            return 0

    def at_end(self) -> bool:
        """Whether the last batch of the epoch was the one before. Where nobody knows the length, the next is read."""
        total = self.length()
        return self.cursor >= total if total else self._track.is_last()

    def be_patient(self, *, floor_s: float, first_wait_s: float) -> None:
        """A DataLoader has a timeout of its own."""

    def share_with(self, rank: int, ranks: int, shares: Shares | None = None, leave_out: Any = None) -> None:
        if ranks > 1:
            raise UserError(
                f"several processes train together, and a {self.source.kind} cannot be shared between them",
                cause="each of them would train on all of every batch",
                hints=[
                    "use holdfast.Loader: of each batch, every process reads its part",
                    "or a torch DataLoader with a DistributedSampler, as below torchrun",
                ],
            )

    # Reading.

    def batches(self, epoch: int, start: int, ready: Ready | None = None) -> Iterator[Batch]:
        """Batch `start` and the following ones. `ready` is called before the first of them is read."""
        if self._track.given != start or self._track.over:  # one was looked at and not trained on, or is over
            self._track = Track(self.source, self._track.state(start)) if start else Track(self.source)
        while True:
            try:
                value = self._track.next(ready)
            except StopIteration:
                return
            ready = None
            size = batch_size(value)
            yield Batch(self._track.given - 1, value, np.arange(size if size is not None else 1), epoch)

    def close(self) -> None:
        """Loader processes end with the iterator that they belong to."""
        self._track = Track(self.source)

    # What has been trained on.

    def advance(self, batch: Batch) -> None:
        self.cursor += 1

    def finish_epoch(self, *, left: bool = False) -> None:
        if left:
            self.source.left_early()
        else:
            self.source.ended = True
        self._counted = self.source.counters.changed()
        self.epoch += 1
        self.cursor = 0
        self._track = Track(self.source)

    def leave_out(self, samples: Any, why: str, *, epoch: int, batch: int, fatal: bool = False) -> None:
        """Nobody knows which samples a batch holds."""

    def may_leave_out(self, samples: Any) -> bool:
        return False

    def state_dict(self) -> dict[str, Any]:
        state = {"epoch": self.epoch, "cursor": self.cursor, "pass": self._track.state(self.cursor)}
        state["counted"] = self._counted
        state["own"] = {} if self.cursor else self.source.own()
        if (plain := self.passes.state_dict()) is not None:
            state["plain"] = plain
        if self.source.tells_between:
            idle = not self._track.live and not self.passes.live
            state["source"] = self.source.state_dict()
            state["between"] = self.source.position() if idle and not self.cursor else None
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        epoch, cursor = int(state["epoch"]), int(state["cursor"])
        self.passes.load_state_dict(state.get("plain"))
        same = (epoch, cursor) == (self.epoch, self.cursor)
        self.epoch, self.cursor = epoch, cursor
        if self._track.opening or (same and self._track.live):  # it is there, or on its way
            return
        self._track = Track(self.source, state["pass"] if cursor else None)
        self._counted = dict(state.get("counted") or {})
        if not cursor and not self.passes.live:
            self.source.counters.set_to(self._counted)
            self.source.set_own(state.get("own") or {})
        if self.source.tells_between:
            self.source.load_state_dict(state.get("source") or {})
            self.source.go_to(state.get("between"))


class Passes:
    """`iter(loader)` by the script itself: the pass that is under way belongs to the state."""

    def __init__(self, source: Source) -> None:
        self.protected = False
        self.drawn = 0
        """Batches that were given, since somebody set it to 0."""
        self._source = source
        self._current: weakref.ref[Pass] | None = None
        self._going_on: Mapping[str, Any] | None = None

    def begin(self) -> Pass:
        made = Pass(self, Track(self._source, self._going_on, apart=True))
        self._going_on = None
        self._current = weakref.ref(made)
        return made

    @property
    def current(self) -> Pass | None:
        found = self._current() if self._current is not None else None
        return found if found is not None and found.track.given and not found.track.over else None

    @property
    def live(self) -> bool:
        return self.current is not None

    def state_dict(self) -> dict[str, Any] | None:
        current = self.current
        if current is not None:
            return current.track.state(current.track.given)
        return dict(self._going_on) if self._going_on is not None else None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        found = self._current() if self._current is not None else None
        going = state if state and state.get("given") else None
        self._going_on = going
        if found is None:
            return
        if going is not None and (found.track.live and found.track.given == int(going["given"])):
            self._going_on = None
        elif going is not None:
            found.track, self._going_on = Track(self._source, going, apart=True), None
        elif found.track.given and not found.track.over:  # it was begun after what is restored
            found.track = Track(self._source, apart=True)

    def begin_again(self) -> None:
        """Before a restored script has come to its place, it does what it did in its first life."""
        self._current, self._going_on = None, None


class Pass:
    """An iterator of the script's own."""

    def __init__(self, passes: Passes, track: Track) -> None:
        self.track = track
        self._passes = passes

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        value = self.track.next()
        self._passes.drawn += 1
        return value


def _hook(loader: Any, data: AnyLoader) -> None:
    """`iter(loader)` of the script is followed from here on. The loader stays the object it was."""
    cls = type(loader)

    def __iter__(self: Any) -> Iterator[Any]:
        return data.passes.begin()

    try:
        loader.__class__ = type(cls.__name__, (cls,), {"__iter__": __iter__, "__module__": cls.__module__})
    except TypeError:
        return  # a class that cannot be changed: what the script draws by itself is not followed
