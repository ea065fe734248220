"""The bottleneck line: seconds by phase go in, one sentence and one setting come out."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.base.board import Board, Phase
from holdfast.monitor.bottleneck import judge
from holdfast.record.time_spent import Spending


def beat(device: str = "cpu", load: float | None = None, loaders: int = 0, **seconds: float) -> dict[str, Any]:
    spent = {label.replace("_", "-"): value for label, value in seconds.items()}
    readings = {"devices": [{"device": device, "load_pct": load}]}
    return {"device": device, "recent_s": spent, "phases_s": spent, "loaders": loaders, "readings": readings}


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (
            beat(data=62.0, forward=15.0, backward=16.0, loop=7.0),
            "bound by input: 62 % reading data, 31 % computing, 7.0 % your own code; "
            "most worth changing: Loader(num_workers=2), now 0",
        ),
        (
            beat(data=5.0, forward=30.0, backward=60.0, optimizer=5.0),
            "bound by the CPU: 95 % computing, 5.0 % reading data; most worth changing: run.threads=8, now 4",
        ),
        (
            beat("cuda:0", 94.0, data=2.0, forward=30.0, backward=68.0),
            "bound by cuda:0: 98 % computing; cuda:0 is 94 % busy; "
            "most worth changing: a lower precision (autocast to bfloat16), where it is not used yet",
        ),
        (  # the case of the user who saw 30 % and nobody said why: a simulation between the steps
            beat("cuda:0", 30.0, data=1.0, forward=10.0, backward=14.0, loop=75.0),
            "bound by the host: 75 % your own code, 24 % computing; cuda:0 is 30 % busy; "
            "most worth changing: your code between two steps (a simulation fits into the dataset)",
        ),
        (
            beat("cuda:0", 35.0, loaders=2, data=55.0, forward=20.0, backward=25.0),
            "bound by input: 55 % reading data, 45 % computing; cuda:0 is 35 % busy; "
            "most worth changing: Loader(num_workers=4), now 2",
        ),
        (  # the host is busy handing out small kernels
            beat("cuda:0", 20.0, data=2.0, forward=50.0, backward=45.0, optimizer=3.0),
            "bound by the host: 98 % computing; cuda:0 is 20 % busy; most worth changing: "
            "a larger batch, or torch.compile: the host is too slow to hand out the work",
        ),
        (
            beat(forward=40.0, backward=20.0, rest=40.0),
            "bound by a limit: 60 % computing, 40 % resting under a limit; the limits.* that was passed holds it back",
        ),
    ],
)
def test_one_sentence_and_the_one_setting_most_worth_changing(run: dict[str, Any], line: str) -> None:
    found = judge(run, threads=4, cpus=8)
    assert found is not None
    assert found.line == line
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_too_little_time_says_nothing() -> None:
    assert judge(beat(forward=1.0)) is None
    assert judge({}) is None


def test_a_script_whose_phases_nobody_sees_is_not_judged() -> None:
    assert judge(beat(loop=60.0)) is None
    assert judge(beat("cuda:0", 95.0, loop=60.0)) is None


def test_a_beat_from_elsewhere_may_hold_anything() -> None:
    assert judge({"recent_s": {"forward": "much", "backward": True, "data": -5.0, "x": 9e9}}) is None
    found = judge({**beat(data=9.0, forward=1.0), "loaders": "two", "readings": [3], "device": 7})
    assert found is not None and found.bound == "input"


def test_json_has_shares_in_percent() -> None:
    found = judge(beat(data=3.0, forward=1.0))
    assert found is not None
    data = found.to_json()
    assert (data["bound"], data["input_pct"], data["compute_pct"], data["device_load_pct"]) == (
        "input",
        75.0,
        25.0,
        None,
    )


def test_the_time_of_all_workers_is_added_up_and_the_last_minute_kept_apart() -> None:
    spending, now = Spending(), 0.0
    for generation in range(2):
        board, clock = Board.create(generation=generation), [10**9]
        board._clock = lambda clock=clock: clock[0]
        board.beat()
        board.enter(Phase.DATA)
        for _ in range(50):
            clock[0] += 10**9
            board.enter(Phase.FORWARD if generation else Phase.DATA)
            now += 1.0
            spending.note(board.read(), now)
        board.close()
    assert spending.total_s() == {"data": 51.0, "forward": 49.0}
    recent = spending.recent_s()
    assert recent["forward"] == 49.0
    assert recent["data"] == pytest.approx(11.0, abs=1.1)
