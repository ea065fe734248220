"""Numbers on their way to the supervisor: kept with the state until they are written, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.base.board import Board
from holdfast.worker.unreported import MOST_BYTES, Unheard, kept_in


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create()
    yield board
    board.close()


def record(step: int) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "values": {"loss": step / 2}}


def ended(step: int) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "loss": 0.5}


def test_what_the_supervisor_has_written_is_dropped(board: Board) -> None:
    unheard = Unheard(board)
    for step in (1, 2, 3):
        unheard.add(record(step))
    assert unheard.records() == [record(1), record(2), record(3)]
    board.hear()
    board.hear()
    assert unheard.records() == [record(3)]
    board.hear()
    assert unheard.records() == []
    unheard.add(record(4))
    assert unheard.records() == [record(4)]


def test_a_supervisor_that_never_listens_costs_the_oldest(board: Board) -> None:
    unheard = Unheard(board)
    for step in range(1000):
        unheard.add(record(step))
    kept = unheard.records()
    assert kept[-1] == record(999)
    assert 10 < len(kept) < 1000
    assert len(str(kept)) < 2 * MOST_BYTES
    board.hear()
    assert unheard.records() == kept, "it has written the first one, which was given up already"


@pytest.mark.parametrize(
    "session",
    [
        {},
        {"unheard": None},
        {"unheard": {"step": 1}},
        {"unheard": ["x", 3, {"step": 1}, {"step": 1, "epoch": 0, "values": [1]}]},
        {"unheard": [{**record(1), "kind": "failed"}, {**ended(1), "again": True}]},
        {"unheard": [{**record(1), "step": None}, {**record(1), "epoch": "0"}, {**record(1), "step": True}]},
        {"unheard": [{**ended(1), "epoch": None}, {**ended(1), "step": -1}, {**ended(1), "loss": "low"}]},
    ],
)
def test_what_is_no_record_is_passed_over(session: dict[str, Any]) -> None:
    assert kept_in(session) == ([], [])


def test_a_record_comes_back(board: Board) -> None:
    unheard = Unheard(board)
    unheard.add(record(7))
    unheard.add(ended(7))
    assert kept_in({"unheard": unheard.records()}) == ([record(7)], [ended(7)])
