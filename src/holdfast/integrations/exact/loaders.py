"""How far a DataLoader is, and the way back there.

    note(iterator, loader)                     # as an iterator begins: the random generators, which draw its order
    again(loader, given, begun, own)           # a new iterator that has handed out so many batches

The order of an epoch is drawn from generators when its iterator begins. To go on, that moment is repeated, and the
batches that were used are passed over: without loader processes the sampler is asked for them and nothing is read;
with loader processes, and for a stream, they are read and dropped, because each process draws random numbers in order.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
from typing import Any

import torch

from holdfast.data.own_generators import OwnGenerators
from holdfast.state.rng import NUMPY, PYTHON, TORCH, capture_rng, restore_rng

_CPU = torch.device("cpu")
_WORDS = {PYTHON: torch.uint32, NUMPY: torch.uint32, TORCH: torch.uint8}


def is_loader_iterator(value: Any) -> bool:
    return isinstance(value, torch.utils.data.dataloader._BaseDataLoaderIter)


def note(iterator: Any, loader: Any) -> None:
    """An iterator begins."""
    tensors, words = capture_rng(_CPU)
    iterator._holdfast_loader = loader
    iterator._holdfast_begun = {name: tensor.clone() for name, tensor in tensors.items()}, words
    iterator._holdfast_own = OwnGenerators(loader).state_dict()
    iterator._holdfast_passes = getattr(iterator, "_holdfast_passes", 0) + 1


def begun_json(iterator: Any) -> str:
    """The generators when this epoch began. Asked at each commit and written once."""
    known = iterator.__dict__.get("_holdfast_text")
    if known is None or known[0] is not iterator._holdfast_begun:
        known = iterator._holdfast_text = iterator._holdfast_begun, _packed(iterator._holdfast_begun)
    return str(known[1])


def has_worked_before(iterator: Any) -> bool:
    """Whether its processes have served an earlier epoch (`persistent_workers=True`).

    Their random numbers go on from there, and nobody but they know how far they are.
    """
    return int(iterator._holdfast_passes) > 1


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


def again(loader: Any, given: int, begun: str, own: dict[str, Any]) -> Any:
    """An iterator of this loader that has handed out `given` batches of the epoch that began so."""
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator = None  # the processes that persist end with it
    _set_generators(begun)
    own_generators = OwnGenerators(loader)
    now = copy.deepcopy(own_generators.state_dict())
    own_generators.load_state_dict(own)
    iterator = iter(loader)
    here = getattr(loader, "num_workers", 0) == 0
    by_index = not isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset)
    for _ in itertools.islice(iterator._sampler_iter if here and by_index else iterator, given):
        pass
    iterator._num_yielded = given
    if given:  # else they are still to draw from
        own_generators.load_state_dict(now)
    return iterator
