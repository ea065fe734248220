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

A Trainer fetches batches before it uses them. The generators are kept as they were before each batch that was
fetched and not used, and set so before it is fetched again; after the last of these batches they are set to those of
the commit. The fingerprints of these batches are kept, too: a loader that comes back with another one ends the run
with an error. So a stream that says its place (`state_dict` of an IterableDataset) can be taken at its word.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.base.errors import UserError
from holdfast.data.any_source import end_persistence, teller
from holdfast.data.batch_print import print_of
from holdfast.data.own_generators import OwnGenerators
from holdfast.state.rng import capture_rng, restore_rng

_CPU = torch.device("cpu")
_END = object()
"""In place of a batch that does not come."""


NEW_PROCESSES = (
    "data: loader processes are new in each epoch, though persistent_workers=True: the random numbers of those that "
    "live on could not be restored"
)


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
        self.on_pass: Callable[[int], None] | None = None
        """Called with the number of a pass, counted from 0, before it begins or is gone on with."""
        self.on_note: Callable[[str], None] | None = None
        """Called where batches have to be read again, or loader processes do not live on."""
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
        self._fetched: dict[int, _Fetched] = {}
        """The batches that were handed out and are not used yet."""
        self._stream = _stream_of(loader)
        self._ahead: list[dict[str, Any]] = []
        """What a restored run knows of the batches that were fetched and not used at its last commit."""
        self._stream_at: Any = None
        """Where the stream of a restored run was before the first of these batches."""

    def state_dict(self) -> dict[str, Any]:
        tensors, words = self._begun or ({}, {})
        place = {"passes": self.passes, "used": self.used, "tensors": dict(tensors), "words": words}
        own, said = self._own.state_dict(), self._places.get(self.used) if self.used else _said(self.loader)
        place |= {"place": said} if said is not None else {}
        place |= self._fetched_ahead()
        return {**place, "own": {"begun": self._own_begun, "now": own}} if own else place

    def _fetched_ahead(self) -> dict[str, Any]:
        """What is known of the batches that were fetched and not used: the training draws numbers between them."""
        self._fetched = {at: each for at, each in self._fetched.items() if at > self.used}
        ahead = [each.state_dict() for _, each in sorted(self._fetched.items())]
        if self.used and ahead and self._stream is not None:
            return {"ahead": ahead, "stream": self._fetched[self.used + 1].stream}
        return {"ahead": ahead} if ahead else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ahead, self._stream_at = list(state.get("ahead") or []), state.get("stream")
        self.passes, self.used = int(state["passes"]), int(state["used"])
        self._begun = (dict(state["tensors"]), dict(state["words"])) if state["tensors"] else None
        own, self._place = state.get("own") or {}, state.get("place")
        self._own_begun, self._own_now = dict(own.get("begun", {})), own.get("now")
        self.resuming = True

    def finish(self) -> None:
        """The epoch is over: nothing of it is left to go on with."""
        self.used = 0
        self._begun = None
        self._fetched = {}

    def begin(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The batches of the next epoch, or the rest of the one that was begun."""
        resuming, self.resuming = self.resuming, False
        if end_persistence(self.loader) and self.on_note is not None:
            self.on_note(NEW_PROCESSES)
        if resuming and self._place is not None:
            return self._at_its_place(make)
        if resuming and self._stream_at is not None and self._stream is not None:
            self._pass_begins()
            self._stream.load_state_dict(self._stream_at)
            self.given = self.used
            return self._hand_out(make())
        if resuming and (self.used or self._ahead) and self._begun is not None:
            self._pass_begins()
            restore_rng(*self._begun, _CPU)
            self._own.load_state_dict(self._own_begun)
            self.given = self.used
            return self._hand_out(self._skip(make(), self.used))
        if resuming:
            self._set_back()
        self.passes += 1
        self._pass_begins()
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
        if not self._ahead:
            self._set_back()
        while True:
            again = self._ahead.pop(0) if self._ahead else None
            if again is not None:
                restore_rng(dict(again["tensors"]), dict(again["words"]), _CPU)
                self._own.load_state_dict(dict(again["own"]))
            fetched = self._before_a_batch()
            batch = next(batches, _END)
            if again is not None and (batch is _END or print_of(batch) != again["print"]):
                raise _another(self.loader, self.given + 1)
            if again is not None and not self._ahead:
                self._set_back()
            if batch is _END:
                return
            self.given += 1
            fetched.batch = batch
            self._fetched[self.given] = fetched
            said = _said(self.loader)
            if said is not None:
                self._places = {at: each for at, each in self._places.items() if at >= self.used} | {self.given: said}
            yield batch

    def _before_a_batch(self) -> _Fetched:
        tensors, words = capture_rng(_CPU)
        stream = self._stream.state_dict() if self._stream is not None else None
        kept = {name: tensor.clone() for name, tensor in tensors.items()}
        self._fetched = {at: each for at, each in self._fetched.items() if at > self.used}
        return _Fetched(kept, words, self._own.state_dict(), copy.deepcopy(stream))

    def _set_back(self) -> None:
        resumed, self.on_resumed = self.on_resumed, None
        if resumed is not None:
            resumed()
        own, self._own_now = self._own_now, None
        if own is not None:
            self._own.load_state_dict(own)

    def _pass_begins(self) -> None:
        self._fetched = {}
        if self.on_pass is not None:
            self.on_pass(self.passes - 1)

    def _skip(self, batches: Iterator[Any], count: int) -> Iterator[Any]:
        """The same iterator after its first batches."""
        here = getattr(self.loader, "num_workers", None) == 0
        indices = getattr(batches, "_sampler_iter", None) if here and _by_index(self.loader) else None
        if count and indices is None and self.on_note is not None:
            name = type(self.loader).__name__
            self.on_note(f"data: {count} batches are read again and passed over: {name} cannot say its position")
        for _ in itertools.islice(batches if indices is None else indices, count):
            pass
        return batches


@dataclass
class _Fetched:
    """A batch, and all generators and the place of the stream as they were before it was fetched."""

    tensors: dict[str, torch.Tensor]
    words: dict[str, Any]
    own: dict[str, Any]
    stream: Any
    batch: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": self.tensors, "words": self.words, "own": self.own, "print": print_of(self.batch)}


def _stream_of(loader: Any) -> Any:
    """The stream that this loader makes its batches of in this process, where it says its place; else None."""
    found = teller(loader) if isinstance(loader, DataLoader) else None
    return found if isinstance(found, torch.utils.data.IterableDataset) else None


def _another(loader: Any, number: int) -> UserError:
    return UserError(
        f"the {type(loader).__name__} gives other batches than before: there is no way back to batch {number}",
        cause="its order depends on something that is not restored: the time, a process id, a counter of its own",
        hints=["seed it (`generator=`, `seed=`), or give its dataset state_dict and load_state_dict"],
    )


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
