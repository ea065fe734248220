"""`enumerate` around an iterator that begins in the middle: it counts on from there, as without a restart.

    catch_up(7)      # called by a generator that makes its first element: the enumerate around it says 7, 8, 9, …

A loop `for i, batch in enumerate(batches)` asks `i` when to update, to log, to change something. A process that goes on
at batch 7 makes a new enumerate, which would say 0. The number of an enumerate cannot be set from Python, so it is
written in its memory, and read back in the official way; where that does not work, the caller is told. Before the
first time it is tried on an enumerate of ours, which has to count as it should: another Python may keep it elsewhere.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any

_DEPTH = 4
"""`enumerate(zip(map(…)))`: so many iterators of Python's own around one another at most."""
_ONE_FOR_ONE = ("holdfast", "tqdm", "rich", "progressbar", "alive_progress", "fastprogress")
"""Their generators give one element for one. What a generator of the script's own counts nobody knows."""
_TOOLS = (itertools.islice, itertools.chain, itertools.starmap, itertools.zip_longest)
_PASSING_ON = (tuple, zip, map, filter, enumerate, *_TOOLS)


def catch_up(count: int) -> bool:
    """Every enumerate that draws from the generator that calls this says a number larger by `count`.

    False if one cannot be set. Progress bars in between are generators, too, and on the stack now.
    """
    if not count:
        return True
    found = _around(_generators_on_the_stack())
    return not found or (can_set() and all([_add(each, count) for each in found]))


@functools.cache
def can_set() -> bool:
    """Whether this build of Python keeps the number of an enumerate where `_add` writes it: seen on one of ours."""
    size = ctypes.sizeof(ctypes.c_ssize_t)
    if sys.implementation.name != "cpython" or enumerate.__basicsize__ < object.__basicsize__ + size:
        return False
    for start in (0, 5):
        tried = enumerate(iter("abcdef"), start)
        next(tried)
        try:
            if not _add(tried, 7) or next(tried) != (start + 8, "b") or list(tried)[-1] != (start + 12, "f"):
                return False
        except (AttributeError, TypeError, ValueError, IndexError):
            return False
    return True


def _generators_on_the_stack() -> list[object]:
    frames = {id(frame) for frame in _callers()}
    if not frames:
        return []
    return [each for each in gc.get_objects() if type(each) is types.GeneratorType and id(each.gi_frame) in frames]


def _callers() -> Iterator[types.FrameType]:
    """The generators of ours and of progress bars between here and the loop of the script."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR and _module(frame) in _ONE_FOR_ONE:
            yield frame
        frame = frame.f_back


def _module(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _around(level: list[object]) -> list[enumerate[Any]]:
    """The enumerates that draw from one of these, directly or through others of Python's own iterators."""
    found: dict[int, enumerate[Any]] = {}
    for _ in range(_DEPTH if level else 0):
        level = [each for each in gc.get_referrers(*level) if isinstance(each, _PASSING_ON) and id(each) not in found]
        found.update({id(each): each for each in level if type(each) is enumerate})
        if not level:
            break
    return list(found.values())


def _add(counting: enumerate[Any], count: int) -> bool:
    before = _number(counting)
    place = ctypes.c_ssize_t.from_address(id(counting) + object.__basicsize__)
    if before is None or place.value != before:  # not the build of Python that is known
        return False
    place.value = before + count
    return _number(counting) == before + count


def _number(counting: enumerate[Any]) -> int | None:
    told: Any = counting.__reduce__()
    number = told[1][1]
    return number if isinstance(number, int) else None
