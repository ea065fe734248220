"""Where a function is, what its loops draw from, and what its expressions have read: seen in functions that run."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.integrations.exact import frames

pytestmark = pytest.mark.skipif(bool(frames.can_read()), reason=frames.can_read() or "can be read")


def seen_from(frame: types.FrameType | None) -> tuple[frames.Place, list[list[Any]]]:
    found = frames.stack(frame)
    return frames.place(found[-2:]), [frames.iterators(each) for each in found[-2:]]


def test_loops_are_found_the_outermost_first() -> None:
    rows, letters = iter([[1, 2], [3]]), iter("ab")

    def inner() -> tuple[frames.Place, list[list[Any]]]:
        for _ in letters:
            try:
                with memoryview(b""):
                    return seen_from(sys._getframe())
            finally:
                pass
        raise AssertionError

    for _ in rows:
        _, (outer_loops, inner_loops) = inner()
        break
    assert outer_loops == [rows] and inner_loops == [letters]


def test_a_place_is_the_same_in_each_pass_and_another_at_each_call() -> None:
    found = []
    for _ in range(3):
        found.append(seen_from(sys._getframe())[0])
        found.append(seen_from(sys._getframe())[0])
    assert found[0] == found[2] == found[4]
    assert found[0] != found[1] == found[3]


def test_a_loop_goes_on_with_another_iterator() -> None:
    drawn = []
    for each in range(3):
        drawn.append(each)
        if each == 0:
            frames.set_iterator(sys._getframe(), 0, iter([7, 8]))
    assert drawn == [0, 7, 8]


def test_a_waiting_generator_shows_its_loops() -> None:
    source = iter([1, 2, 3])

    def gives() -> Iterator[int]:
        for each in source:
            yield each * 1

    waiting = gives()
    next(waiting)
    assert frames.iterators(waiting.gi_frame) == [source]
    frames.set_iterator(waiting.gi_frame, 0, iter([9]))
    assert list(waiting) == [9]


def test_a_generator_that_hands_over_shows_what_it_draws_from() -> None:
    source = iter([1, 2, 3])

    def gives() -> Iterator[int]:
        yield from source

    waiting = gives()
    next(waiting)
    assert frames.iterators(waiting.gi_frame) == [source]


def test_a_value_that_a_sum_has_read_is_found_and_set() -> None:
    def look(frame: types.FrameType) -> int:
        ((place, value),) = [row for row in frames.waiting(frame) if isinstance(row[1], float)]
        assert value == 1.5
        frames.set_waiting(frame, place, 4.0)
        return 1

    total = 1.5
    total += look(sys._getframe())
    assert total == 5.0


def test_variables_of_a_function_that_runs_are_set() -> None:
    count, seen = 1, []

    def keeps() -> int:
        return count

    frames.set_locals(sys._getframe(), {"count": 5, "seen": seen})
    assert count == 5 and keeps() == 5
