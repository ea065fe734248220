"""How far a DataLoader is, and the way back there.

    note(iterator, loader, state_of)           # as an iterator begins: the random generators, which draw its order
    again(loader, Place(given, begun, own))    # a new iterator that has handed out so many batches

The order of an epoch is drawn from generators when its iterator begins. To go on, that moment is repeated, and the
batches that were used are passed over: without loader processes the sampler is asked for them and nothing is read;
with loader processes, and for a stream, they are read and dropped, because each process draws random numbers in order.
Processes that live over epochs are given the random numbers that they had when this epoch began.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from holdfast.data.own_generators import OwnGenerators
from holdfast.integrations.exact.process_generators import make_room, watch_processes
from holdfast.state.rng import NUMPY, PYTHON, TORCH, capture_rng, restore_rng

_CPU = torch.device("cpu")
_WORDS = {PYTHON: torch.uint32, NUMPY: torch.uint32, TORCH: torch.uint8}


@dataclass(frozen=True)
class Place:
    """Where an iterator is."""

    given: int
    """Batches that it has handed out in this epoch."""
    begun: str
    """The generators when this epoch began."""
    own: dict[str, Any]
    """The loader's own generators then."""
    made: str = ""
    """Where its processes have served an earlier epoch: the generators when they were started,"""
    processes: tuple[str, ...] = ()
    """those of each process when this epoch began,"""
    made_own: dict[str, Any] = field(default_factory=dict)
    """and the loader's own when they were started: the seed that a process can ask for is drawn from these."""


def note(iterator: Any, loader: Any, state_of: Callable[[Any], str]) -> None:
    """An epoch of an iterator begins. `state_of` tells whether a dataset has changed."""
    tensors, words = capture_rng(_CPU)
    iterator._holdfast_loader = loader
    iterator._holdfast_begun = {name: tensor.clone() for name, tensor in tensors.items()}, words
    iterator._holdfast_own = OwnGenerators(loader).state_dict()
    iterator._holdfast_passes = getattr(iterator, "_holdfast_passes", 0) + 1
    if iterator._holdfast_passes == 1:
        iterator._holdfast_made = iterator._holdfast_begun
        iterator._holdfast_made_own = copy.deepcopy(iterator._holdfast_own)
        iterator._holdfast_room = make_room(loader, state_of)
        if iterator._holdfast_room is not None:
            iterator._holdfast_state = lambda: _told(state_of, loader)
            iterator._holdfast_forked = iterator._holdfast_state()
        watch_processes(_generators, _set_generators)


def _told(state_of: Callable[[Any], str], loader: Any) -> str | None:
    """None where the dataset reaches more than can be looked at."""
    try:
        return state_of((loader.dataset, loader.collate_fn))
    except Exception:  # of whatever the script's objects do when they are looked at
        return None


def processes(iterator: Any) -> tuple[str, tuple[str, ...]] | None:
    """`made` and `processes` of its place; None where the processes that serve it cannot be put back there."""
    if iterator._holdfast_passes == 1:
        return "", ()
    room = iterator._holdfast_room
    if room is None or iterator._holdfast_forked is None or iterator._holdfast_state() != iterator._holdfast_forked:
        return None  # new processes would have the dataset as it is now, and these have it as it was
    known = iterator.__dict__.get("_holdfast_processes")
    if known is None or known[0] != iterator._holdfast_passes:
        states = room.states(iterator._holdfast_passes)
        told = None if states is None else (_packed(iterator._holdfast_made), tuple(states))
        known = iterator._holdfast_processes = iterator._holdfast_passes, told
    return known[1]  # type: ignore[no-any-return]


def begun_json(iterator: Any) -> str:
    """The generators when this epoch began. Asked at each commit and written once."""
    known = iterator.__dict__.get("_holdfast_text")
    if known is None or known[0] is not iterator._holdfast_begun:
        known = iterator._holdfast_text = iterator._holdfast_begun, _packed(iterator._holdfast_begun)
    return str(known[1])


def _generators() -> str:
    return _packed(capture_rng(_CPU))


def _packed(begun: tuple[dict[str, torch.Tensor], Any]) -> str:
    tensors, words = begun
    packed = {name: base64.b64encode(tensor.numpy().tobytes()).decode() for name, tensor in tensors.items()}
    return json.dumps([packed, words])


def _set_generators(text: str) -> None:
    packed, words = json.loads(text)
    tensors = {
        name: torch.frombuffer(bytearray(base64.b64decode(text)), dtype=_WORDS[name]) for name, text in packed.items()
    }
    restore_rng(tensors, words, _CPU)


def again(loader: Any, place: Place) -> Any:
    """An iterator of this loader that stands there."""
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator = None  # the processes that persist end with it
    if place.made:
        _start_processes(loader, place)
    _set_generators(place.begun)
    own_generators = OwnGenerators(loader)
    now = copy.deepcopy(own_generators.state_dict())
    own_generators.load_state_dict(place.own)
    iterator = iter(loader)
    here = getattr(loader, "num_workers", 0) == 0
    by_index = not isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset)
    for _ in itertools.islice(iterator._sampler_iter if here and by_index else iterator, place.given):
        pass
    iterator._num_yielded = place.given
    if place.given:  # else they are still to draw from
        own_generators.load_state_dict(now)
    return iterator


def _start_processes(loader: Any, place: Place) -> None:
    """The processes as they were started in the first epoch. They read nothing before the epoch that is to go on."""
    _set_generators(place.made)
    OwnGenerators(loader).load_state_dict(place.made_own)
    name = "batch_sampler" if loader._auto_collation else "sampler"
    sampler = vars(loader)[name]
    vars(loader)[name] = ()
    try:
        iterator = iter(loader)
    finally:
        vars(loader)[name] = sampler
    iterator._index_sampler = sampler
    if not iterator._holdfast_room.order(list(place.processes)):
        raise RuntimeError("a process of a DataLoader does not begin")
