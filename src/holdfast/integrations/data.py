"""A DataLoader that can go on in the middle of an epoch, with the batches it would have given.

    followed = follow(loader)                 # the same object, which now remembers where it is
    for batch in loader: ...
    followed.state_dict()                     # epoch, batches used, the generators at the beginning of the epoch
    followed.load_state_dict(state)           # the next `for` goes on after the last batch that was used

The order of an epoch is drawn when it begins, from generators whose state is kept: the global ones, and those the
loader has for itself (`generator=`, a generator of its sampler or dataset). To go on, that moment is repeated:
the generators are set back, the loader is asked again, and batches that were used are passed over. Without loader
processes the sampler is asked for them and nothing is read. With loader processes they are read and dropped: each
process draws its random numbers in order, and only so does the next batch meet the same ones. A loader with
`state_dict` and `load_state_dict` says its place itself, and nothing is passed over.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.data.own_generators import OwnGenerators
from holdfast.state.rng import capture_rng, restore_rng

_CPU = torch.device("cpu")


class Followed:
    """Where a loader is."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.passes = 0
        """Epochs that were begun."""
        self.used = 0
        """Batches of this one whose work is done. Whoever trains says so."""
        self.given = 0
        """Batches of this one that were handed out."""
        self.on_resumed: Callable[[], None] | None = None
        """Called where a restored run goes on: the generators as they were at its last commit."""
        self._begun: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None
        self._own = OwnGenerators(loader)
        self._own_begun: dict[str, Any] = {}
        """The loader's own generators when this epoch began."""
        self._own_now: dict[str, Any] | None = None
        """Those of a restored run, as they were at its last commit."""
        self._places: dict[int, Any] = {}
        """What a loader that can say its place said after each batch: a Trainer fetches ahead of what it has used."""
        self._place: Any = None
        """What such a loader said at the last commit of a restored run."""
        self.resuming = False

    def state_dict(self) -> dict[str, Any]:
        tensors, words = self._begun or ({}, {})
        place = {"passes": self.passes, "used": self.used, "tensors": dict(tensors), "words": words}
        own, said = self._own.state_dict(), self._places.get(self.used) if self.used else _said(self.loader)
        place |= {"place": said} if said is not None else {}
        return {**place, "own": {"begun": self._own_begun, "now": own}} if own else place

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes, self.used = int(state["passes"]), int(state["used"])
        self._begun = (dict(state["tensors"]), dict(state["words"])) if state["tensors"] else None
        own, self._place = state.get("own") or {}, state.get("place")
        self._own_begun, self._own_now = dict(own.get("begun", {})), own.get("now")
        self.resuming = True

    def finish(self) -> None:
        """The epoch is over: nothing of it is left to go on with."""
        self.used = 0
        self._begun = None

    def begin(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The batches of the next epoch, or the rest of the one that was begun."""
        resuming, self.resuming = self.resuming, False
        if resuming and self._place is not None:
            return self._at_its_place(make)
        if resuming and self.used and self._begun is not None:
            restore_rng(*self._begun, _CPU)
            self._own.load_state_dict(self._own_begun)
            self.given = self.used
            return self._hand_out(self._skip(make(), self.used))
        if resuming:
            self._set_back()
        self.passes += 1
        tensors, words = capture_rng(_CPU)
        self._begun = {name: tensor.clone() for name, tensor in tensors.items()}, words
        self._own_begun = self._own.state_dict()
        self.used = self.given = 0
        return self._hand_out(make())

    def _at_its_place(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """A loader that can say its place is told it: nothing has to be passed over."""
        self.loader.load_state_dict(self._place)
        self._place = None
        if not self.used:
            self.passes += 1
        self.given = self.used
        return self._hand_out(make())

    def _hand_out(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._set_back()
        for batch in batches:
            self.given += 1
            said = _said(self.loader)
            if said is not None:
                self._places = {at: each for at, each in self._places.items() if at >= self.used} | {self.given: said}
            yield batch

    def _set_back(self) -> None:
        resumed, self.on_resumed = self.on_resumed, None
        if resumed is not None:
            resumed()
        own, self._own_now = self._own_now, None
        if own is not None:
            self._own.load_state_dict(own)

    def _skip(self, batches: Iterator[Any], count: int) -> Iterator[Any]:
        """The same iterator after its first batches."""
        here = getattr(self.loader, "num_workers", None) == 0
        indices = getattr(batches, "_sampler_iter", None) if here and _by_index(self.loader) else None
        for _ in itertools.islice(batches if indices is None else indices, count):
            pass
        return batches


def _said(loader: Any) -> Any:
    """Where a loader says it is; None for one that cannot."""
    if not hasattr(loader, "load_state_dict") or not hasattr(loader, "state_dict"):
        return None
    try:
        return copy.deepcopy(loader.state_dict())
    except AttributeError:  # as that of accelerate around a loader that has none
        return None


def _by_index(loader: Any) -> bool:
    """Is a batch made from indices a sampler gives? A stream of samples is not."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, torch.utils.data.IterableDataset)


def follow(loader: Any) -> Followed:
    """Make a loader remember where it is. It stays the object it was, and gains nothing but that."""
    followed = Followed(loader)
    cls = type(loader)

    def __iter__(self: Any) -> Iterator[Any]:
        return followed.begin(lambda: iter(cls.__iter__(self)))

    ours = type(cls.__name__, (cls,), {"__iter__": __iter__, "__module__": cls.__module__})
    # By the descriptor itself: the loaders that Accelerator.prepare gives have a property of that name.
    object.__dict__["__class__"].__set__(loader, ours)
    return followed
