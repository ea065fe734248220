"""A loader of somebody else's: how a pass over it begins, how it says where it is, and the generators it draws from.

    source = Source(dataloader)
    it = source.open()               # a new pass
    source.position()                # what it says of its place; None for one that says nothing
    source.go_to(position)           # a pass that is opened now begins there
    source.begin_anew()              # a pass that is opened now begins as it would without a restart

Two kinds of loaders say their place. For one, a new pass begins at the beginning, unless a place was loaded before it
(StatefulDataLoader, streaming datasets of Hugging Face). The other goes on where it is (a stream of tokens). Which one
this is shows when a second pass begins, and is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast.data import generators
from holdfast.data.batch_print import print_of
from holdfast.data.loader_child import may_draw
from holdfast.data.own_generators import OwnGenerators
from holdfast.data.plain_counters import Counters
from holdfast.data.sample_order import collate_seeds

Now = tuple[dict[str, Any], dict[str, Any]]
"""The global generators, and those of the loader's own."""


def end_persistence(loader: Any) -> bool:
    """New loader processes in each pass; True if a DataLoader, or the one in `loader.loader`, would have kept them.

    Processes that live on draw on from where they are. New ones begin with a seed that is restored.
    """
    found = loader if isinstance(loader, DataLoader) else getattr(loader, "loader", None)
    if not isinstance(found, DataLoader) or not found.persistent_workers:
        return False
    vars(found)["persistent_workers"] = False
    return True


class Source:
    """Of one loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.cls = type(loader)
        self.on_progress: Callable[[int, int, str], None] | None = None
        self.on_note: Callable[[str], None] | None = None
        self.on_event: Callable[[str, dict[str, Any]], None] | None = None
        self._own = OwnGenerators(loader)
        self._found = self._own.found()
        self._teller = teller(loader)
        self.counters = Counters(loader)
        self._noted = False
        self._loaded = False
        """A position was loaded in this process."""
        self._first: Any = None
        """Its position as the first pass began."""
        self._after_one: int | None = None
        """The fingerprint of its position after the first batch of the first pass."""
        self._starts_over: bool | None = None
        self.ended = True
        """The last pass came to its end."""

    @property
    def kind(self) -> str:
        return self.cls.__name__

    @property
    def by_index(self) -> bool:
        """Are batches made here, from indices that a sampler gives? Then a batch can be passed over unread."""
        loader = self.loader
        if not isinstance(loader, DataLoader) or self._teller is not None:
            return False
        return loader.num_workers == 0 and not isinstance(loader.dataset, IterableDataset)

    @property
    def workers(self) -> int:
        return int(getattr(self.loader, "num_workers", 0) or 0)

    @property
    def tells_between(self) -> bool:
        """What it says counts between passes, too. A DataLoader begins each pass anew."""
        return self._teller is not None and not isinstance(self._teller, DataLoader)

    def open(self) -> Iterator[Any]:
        end_persistence(self.loader)
        self._found = self._own.found()  # a script may give it another sampler
        return iter(self.cls.__iter__(self.loader))

    # Where it is.

    def position(self) -> Any:
        return None if self._teller is None else self._teller.state_dict()

    def go_to(self, position: Any) -> None:
        if self._teller is not None and position is not None:
            self._loaded = True
            self._teller.load_state_dict(position)

    def begin_anew(self) -> None:
        """A pass begins that is not gone on with."""
        if not self.tells_between:
            return
        if self._after_one is None:
            self._first = self.position()
        elif self._loaded and (self.ended or self._starts_over):
            self.go_to(self._first)

    def left_early(self) -> None:
        """A pass was left before its end. Does the next one go on there? The first time, one is begun to see it."""
        self.ended = False
        if not self.tells_between or self._after_one is None or self._starts_over is not None:
            return
        here, now = self.position(), self.now()
        try:
            next(self.open(), None)
            self.note_first_batch()
        finally:
            self.go_to(here)
            self.set_to(now)

    def note_first_batch(self) -> None:
        """The first batch of a new pass was given."""
        if self.tells_between and self._starts_over is None:
            found = print_of(self.position())
            if self._after_one is None:
                self._after_one = found
            else:
                self._starts_over = found == self._after_one

    def state_dict(self) -> dict[str, Any]:
        if not self.tells_between:
            return {}
        known = {"first": self._first, "after_one": self._after_one, "over": self._starts_over, "ended": self.ended}
        return known if self._after_one is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first, self._after_one = state.get("first"), state.get("after_one")
        self._starts_over, self.ended = state.get("over"), bool(state.get("ended", True))

    def note(self, text: str) -> None:
        """Said once in a process."""
        if self.on_note is not None and not self._noted:
            self._noted = True
            self.on_note(text)

    # The generators.

    def now(self) -> Now:
        return {name: generators.capture(name) for name in generators.NAMES}, self.own()

    def own(self) -> dict[str, Any]:
        return {str(number): each.state_dict() for number, each in enumerate(self._found)}

    def set_to(self, now: Now) -> None:
        set_globals(now[0])
        self.set_own(now[1])

    def set_own(self, own: Mapping[str, Any]) -> None:
        for number, each in enumerate(self._found):
            if str(number) in own:
                each.load_state_dict(own[str(number)])


def set_globals(states: Mapping[str, Any]) -> None:
    for name, state in states.items():
        if not _same(state, generators.capture(name)):
            generators.restore(name, state)


def seeded_globals() -> dict[str, Any]:
    """New states of the global generators, by a number that is drawn from torch's. Nothing else is changed."""
    words = collate_seeds(int(torch.randint(1 << 62, ())), 0, 0)
    before = {name: generators.capture(name) for name in generators.NAMES}
    generators.seed(words, generators.NAMES)
    made = {name: generators.capture(name) for name in generators.NAMES}
    set_globals(before)
    return made


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return one is other or generators.same(one, other)


def packed(states: Mapping[str, Any]) -> dict[str, Any]:
    return {name: state if isinstance(state, torch.Tensor) else list(state) for name, state in states.items()}


def unpacked(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {name: state if isinstance(state, torch.Tensor) else tuple(state) for name, state in saved.items()}


def teller(loader: Any) -> Any | None:
    """Who says where a pass is: the stream that batches are made of in this process, or the loader itself."""
    dataset = getattr(loader, "dataset", None)
    streams = isinstance(loader, DataLoader) and isinstance(dataset, IterableDataset) and loader.num_workers == 0
    if streams and _is_stateful(dataset):
        return None if _forgets(dataset) else dataset
    if isinstance(loader, DataLoader) and loader.num_workers and may_draw(dataset):
        return None  # it says where it is, and not what its processes will draw next
    return loader if _is_stateful(loader) and not _forgets(dataset if dataset is not None else loader) else None


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _forgets(stream: Any) -> bool:
    """`datasets` of Hugging Face says so: what is in a shuffle buffer is lost when a position is loaded."""
    inner, depth = getattr(stream, "_ex_iterable", None), 0
    while inner is not None and depth < 32:
        if "BufferShuffled" in type(inner).__name__:
            return True
        inner, depth = getattr(inner, "ex_iterable", None), depth + 1
    return False
