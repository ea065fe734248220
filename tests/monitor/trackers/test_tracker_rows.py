"""The journal as rows: every number once, corrections and undone steps marked, the same numbers on every reading."""

from __future__ import annotations

import math
from typing import Any

from holdfast.monitor.trackers.rows import Row, Rows

TIME = "2026-11-15T09:12:04.000Z"


def log(step: int, **values: Any) -> dict[str, Any]:
    return {"time": TIME, "event": "log", "step": step, "epoch": 0, "values": values}


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"time": TIME, "event": kind, **data}


def rows_of(*records: dict[str, Any]) -> list[Row]:
    rows = Rows()
    return [row for record in records for row in rows.read(record)]


def values_of(rows: list[Row]) -> list[tuple[int, dict[str, float]]]:
    return [(row.step, row.values) for row in rows if row.values]


def test_a_number_that_comes_again_is_one_number() -> None:
    """A restored worker computes the step again, and the journal has it twice."""
    rows = rows_of(log(1, loss=0.5), log(2, loss=0.4), log(2, loss=0.4), log(3, loss=0.3))
    assert values_of(rows) == [(1, {"loss": 0.5}), (2, {"loss": 0.4}), (3, {"loss": 0.3})]
    assert [row.number for row in rows] == [1, 2, 3, 4]


def test_metrics_of_one_step_may_come_apart() -> None:
    rows = rows_of(log(1, loss=0.5), log(1, valid=0.6))
    assert values_of(rows) == [(1, {"loss": 0.5}), (1, {"valid": 0.6})]
    assert not any(row.corrects for row in rows)


def test_what_was_undone_is_named_and_its_new_values_are_corrections() -> None:
    records = [log(step, loss=float(step), lr=0.1) for step in (1, 2, 3)]
    records += [event("undone", from_step=3, to_step=1), log(2, loss=2.5, lr=0.1), log(3, loss=3.5, lr=0.1)]
    rows = Rows()
    found = [row for record in records for row in rows.read(record)]
    undone = next(row for row in found if row.undone)
    assert undone.undone == (2, 3) and undone.back_to == 1 and undone.alert
    assert "steps 2 to 3 were computed wrongly" in undone.words
    assert rows.undone == [(2, 3)]
    again = found[found.index(undone) + 1 :]
    assert [(row.values, row.repeated, row.corrects) for row in again] == [
        ({"loss": 2.5}, {"lr": 0.1}, True),
        ({"loss": 3.5}, {"lr": 0.1}, True),
    ]


def test_what_is_not_finite_is_a_number_too() -> None:
    rows = rows_of(log(1, loss=math.nan), log(1, loss=math.nan), log(2, loss=math.inf))
    assert math.isnan(rows[0].values["loss"])
    assert not rows[1].values and not rows[1].corrects


def test_events_are_words() -> None:
    fault = event("fault", code="F005", sentence="cuda:0 stopped answering\x1b[2J", reason="new worker", step=9)
    records = [
        event("start", device="cuda:0", step=0),
        fault,
        event("recovered", step=9, seconds=17.0),
        event("moved", step=9, before="cuda:0", after="cpu", device="cpu"),
        event("start", device="cpu", step=8),
        event("end", state="FINISHED", step=20),
    ]
    rows = rows_of(*records)
    assert [(row.step, row.alert) for row in rows] == [(9, True), (9, False), (9, False), (8, False), (20, False)]
    assert [row.words for row in rows][1:] == [
        "training again after 17 s",
        "moved from cuda:0 to cpu",
        "resumed at step 8 on cpu",
        "ended: FINISHED",
    ]
    assert rows[0].words.startswith("F005 cuda:0 stopped answering") and "\x1b" not in rows[0].words


def test_hostile_lines_make_no_rows() -> None:
    hostile: list[dict[str, Any]] = [
        {"event": "log"},
        {"event": "log", "step": "x", "values": {"a": 1}},
        {"event": "log", "step": -3, "values": {"a": 1}},
        {"event": "log", "step": 1, "values": {"a": "x", "b": [1], "": 2, "c": True, "d": None, "x" * 500: 1}},
        {"event": ["log"]},
        {"event": "undone", "from_step": 1, "to_step": 5},
        {"event": "undone", "from_step": {}, "to_step": None},
        {"event": "loggers", "names": 3},
    ]
    assert rows_of(*hostile) == []


def test_a_flood_of_metric_names_is_bounded() -> None:
    rows = rows_of(*(log(1, **{f"m{at}_{each}": 1.0 for each in range(100)}) for at in range(50)))
    assert sum(len(row.values) for row in rows) == 2000


def test_the_same_journal_gives_the_same_rows() -> None:
    records = [log(1, a=1.0), event("fault", code="F002", sentence="x", step=2), log(1, a=2.0, b=1.0), log(2, a=1.0)]
    assert rows_of(*records) == rows_of(*records)
