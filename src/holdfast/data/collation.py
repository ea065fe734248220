"""Samples that cannot be put together: which of them is the odd one out?

    odd = odd_ones(items, collate)        # [(2, "has shape (3,) where 7 others have (4,)")], or nothing

Three suspicions are followed, each proven by collating the rest: samples that look unlike most others, samples that
cannot even be collated alone, and the one sample without which the others fit. If none holds, it is not the samples.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

MOST_LEFT_OUT = 64
"""Samples up to which each is left out in turn."""
MOST_SECONDS = 2.0
"""Whoever waits for the batch must not take this for a hang."""
_MOST_PARTS = 64
"""Entries of a sample that are looked at, in one layer."""
_MOST_LAYERS = 8

Collate = Callable[[list[Any]], Any]
Suspects = dict[int, str]
"""Positions in the batch, and what is odd about each."""


def odd_ones(items: Sequence[Any], collate: Collate) -> list[tuple[int, str]]:
    """The samples, by position, that keep the others from being collated, and why."""
    deadline = time.monotonic() + MOST_SECONDS
    for suspects in _suspicions(items, collate):
        if time.monotonic() > deadline:
            break
        rest = [item for place, item in enumerate(items) if place not in suspects]
        if suspects and len(suspects) < len(rest) and _fits(rest, collate):
            return sorted(suspects.items())
    return []


def _suspicions(items: Sequence[Any], collate: Collate) -> Iterator[Suspects]:
    """A generator: the later ones cost more, and are rarely needed."""
    yield _unlike_most(items)
    yield {
        place: "cannot be collated, not even alone"
        for place, item in enumerate(items)
        if len(items) > 1 and not _fits([item], collate)
    }
    if len(items) <= MOST_LEFT_OUT:
        for place in range(len(items)):
            yield {place: "does not fit to the others"}


def _fits(items: list[Any], collate: Collate) -> bool:
    try:
        collate(items)
    except Exception:  # a collate function of the user's may raise anything
        return False
    return True


def _unlike_most(items: Sequence[Any]) -> Suspects:
    looks = [look(item) for item in items]
    counted = Counter(looks).most_common(1)
    if not counted or counted[0][1] == len(items):
        return {}
    usual, count = counted[0]
    return {place: _difference(own, usual, count) for place, own in enumerate(looks) if own != usual}


def look(item: Any, layer: int = 0) -> Hashable:
    """What matters when samples are put together: kinds, shapes, keys, lengths. Not the values."""
    if isinstance(item, (torch.Tensor, np.ndarray)):
        return ("shape", tuple(item.shape))
    if isinstance(item, (bool, int, float, np.number)):
        return ("kind", "a number")
    if isinstance(item, (str, bytes)) or item is None or layer >= _MOST_LAYERS:
        return ("kind", type(item).__name__)
    if isinstance(item, Mapping):
        pairs = sorted(((str(key), value) for key, value in item.items()), key=lambda pair: pair[0])
        return ("entries", tuple((key, look(value, layer + 1)) for key, value in pairs[:_MOST_PARTS]))
    if isinstance(item, (tuple, list)):
        return ("parts", len(item), tuple(look(part, layer + 1) for part in item[:_MOST_PARTS]))
    return ("kind", type(item).__name__)


def _difference(own: Any, usual: Any, count: int) -> str:
    """The first thing in which two looks differ, in words."""
    where = "it"
    while own[0] == usual[0] and own[0] in ("parts", "entries"):
        if own[0] == "parts" and own[1] != usual[1]:
            break
        mine, theirs = own[-1], usual[-1]
        if own[0] == "entries":
            if [key for key, _ in mine] != [key for key, _ in theirs]:
                break
            place = next(n for n, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
            where, own, usual = f"entry {mine[place][0]!r}", mine[place][1], theirs[place][1]
        else:
            place = next(n for n, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
            where, own, usual = f"part {place}", mine[place], theirs[place]
    prefix = "" if where == "it" else f"in {where} "
    return f"{prefix}has {_words(own)} where {count} others have {_words(usual)}"


def _words(about: Any) -> str:
    if about[0] == "shape":
        return f"shape {about[1]}"
    if about[0] == "parts":
        return f"{about[1]} parts"
    if about[0] == "entries":
        return f"the entries {', '.join(key for key, _ in about[1])}"
    return str(about[1])
