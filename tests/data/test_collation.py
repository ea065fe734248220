"""Samples that cannot be put together: the odd one is named, and only if the others fit without it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from holdfast.data import collation
from holdfast.data.collation import odd_ones

FOUR, THREE = torch.zeros(4), torch.zeros(3)


@pytest.mark.parametrize(
    ("items", "odd"),
    [
        ([FOUR, FOUR, THREE, FOUR], [(2, "has shape (3,) where 3 others have shape (4,)")]),
        ([(FOUR, 1), (FOUR, None), (FOUR, 2.5)], [(1, "in part 1 has NoneType where 2 others have a number")]),
        ([{"x": FOUR}, {"x": THREE}, {"x": FOUR}], [(1, "in entry 'x' has shape (3,) where 2 others have shape (4,)")]),
        ([{"x": FOUR, "y": 1}] * 2 + [{"x": FOUR}], [(2, "has the entries x where 2 others have the entries x, y")]),
        ([(FOUR, 1), (FOUR, 1), (FOUR,)], [(2, "has 1 parts where 2 others have 2 parts")]),
        ([np.zeros(4), np.zeros((4, 1)), np.zeros(4)], [(1, "has shape (4, 1) where 2 others have shape (4,)")]),
    ],
)
def test_the_odd_one_is_named(items: list[Any], odd: list[tuple[int, str]]) -> None:
    with pytest.raises((RuntimeError, TypeError, KeyError, ValueError)):
        default_collate(items)
    assert odd_ones(items, default_collate) == odd


@pytest.mark.parametrize(
    "items",
    [
        [torch.zeros(size) for size in (1, 2, 3, 4)],  # of different lengths by nature: a collate function is missing
        [FOUR, THREE],  # which one is odd?
        [object(), object(), object()],
        [FOUR],
        [],
    ],
)
def test_where_no_sample_is_odd_it_is_the_code(items: list[Any]) -> None:
    assert odd_ones(items, default_collate) == []


def no_nan(items: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(items)
    if torch.isnan(stacked).any():
        raise ValueError("not a number")
    return stacked


def test_a_sample_that_cannot_be_collated_alone_is_named() -> None:
    bad = FOUR * float("nan")
    assert odd_ones([FOUR, bad, FOUR, bad, FOUR], no_nan) == [
        (1, "cannot be collated, not even alone"),
        (3, "cannot be collated, not even alone"),
    ]


class Graph:
    def __init__(self, width: int) -> None:
        self.width = width


def join(items: list[Graph]) -> int:
    (width,) = {item.width for item in items}
    return width


def test_one_that_only_does_not_fit_is_found_by_leaving_each_out() -> None:
    assert odd_ones([Graph(3), Graph(3), Graph(5), Graph(3)], join) == [(2, "does not fit to the others")]


def test_it_does_not_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collation, "MOST_SECONDS", 0.2)
    calls = []

    def slow(items: list[Any]) -> Any:
        calls.append(len(items))
        time.sleep(0.05)
        raise ValueError("never")

    assert odd_ones([FOUR] * 60, slow) == []
    assert len(calls) <= 62  # each alone, and then the time was over
