"""A launch goes on with fewer ranks while one cannot be replaced, and with all of them once it can; spare ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.cli.run_facts import Look
from holdfast.cli.runs import page
from tests.distributed.launched import Launched, alone

pytestmark = [
    pytest.mark.skipif(processes.portable() or not Path("/dev/shm").is_dir(), reason="needs fork and /dev/shm"),
    pytest.mark.timeout(600),
]


@pytest.mark.all
@pytest.mark.parametrize(
    ("seats", "more"),
    [
        ([2], {}),
        pytest.param([0], {"snapshot": "3"}, marks=pytest.mark.long),
        pytest.param([0, 2], {"ddp": True}, marks=pytest.mark.long),
        pytest.param([1, 3], {"snapshot": "1"}, marks=pytest.mark.long),
    ],
    ids=["4-3-4", "the first rank", "4-2-4 wrapped", "4-2-4"],
)
def test_fewer_ranks_while_some_are_away(tmp_path: Path, seats: list[int], more: dict[str, str]) -> None:
    with Launched(tmp_path, 4, "--min-ranks", "2", wait="8 16 24", **more) as launch:
        launch.until(lambda: launch.waits_for(8, 4))
        stayed = {each.rank: each.pid for each in launch.ranks() if each.rank not in seats}
        launch.take_away(*seats)
        launch.go(8)
        launch.until(lambda: launch.waits_for(16, 4 - len(seats)))
        fewer = launch.roster()
        assert fewer is not None and fewer.seats == tuple(seat for seat in range(4) if seat not in seats)
        launch.give_back(*seats)
        launch.until(lambda: launch.is_invited(4))
        launch.go(16)
        launch.until(lambda: launch.waits_for(24, 4))
        again = launch.roster()
        assert again is not None and {seat: again.pids[seat] for seat in stayed} == stayed, "the others stayed"
        launch.go(24)
        ended = launch.finish()
    receipt = ended["receipt"]
    assert ended["state"] == "FINISHED" and receipt["steps"] == 30
    assert receipt["steps_lost"] == receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    assert launch.samples() == {epoch: Counter(range(60)) for epoch in range(6)}
    for name, values in alone(tmp_path / "alone", ddp=False).items():
        assert (launch.weights()[name.removeprefix("module.")] - values).abs().max() < 1e-6, name
    shown = "\n".join(page(Look(launch.run)))
    for seat in seats:
        assert f"rank {seat} is away (" in shown and f"rank {seat} is back: " in shown, "holdfast show"


@pytest.mark.long
def test_a_spare_takes_the_place_of_a_lost_rank(tmp_path: Path) -> None:
    """Twice, the second time that of the first rank: another rank keeps the run folder from there on."""
    with Launched(tmp_path, 2, "--spares", "1", wait="8 16 24") as launch:
        for step, seat, seats in ((8, 1, (0, 2)), (16, 0, (1, 2))):
            launch.until(lambda step=step: launch.waits_for(step, 2) and launch.are_ready(3))
            launch.kill(seat)
            launch.go(step)
            launch.until(lambda step=step: launch.waits_for(step + 8, 2))
            after = launch.roster()
            assert after is not None and after.seats == seats
        launch.go(24)
        receipt = launch.finish()["receipt"]
    assert receipt["steps"] == 30 and receipt["steps_lost"] == 0 and receipt["faults"] == {"killed": 2}
    assert launch.samples() == {epoch: Counter(range(60)) for epoch in range(6)}
    for name, values in alone(tmp_path / "alone").items():
        assert (launch.weights()[name] - values).abs().max() < 1e-6, name
    reasons = {event.data["reason"] for event in launch.run.events() if event.kind == "fault"}
    assert reasons == {"a spare process takes its place, the others stay"}


def test_a_rank_that_stays_in_a_group_that_is_gone_is_replaced(tmp_path: Path) -> None:
    """Its connections are ended, and it waits on inside of the exchange all the same."""
    with Launched(tmp_path, 3, wait="8", caught="1:8", **{"watchdog.floor": "2s"}) as launch:
        launch.until(lambda: launch.waits_for(8, 3))
        before = {each.rank: each.pid for each in launch.ranks()}
        launch.go(8)
        launch.until(lambda: any(each.rank == 1 and each.beat.phase.label == "peers" for each in launch.ranks()))
        launch.kill(0)
        launch.until(lambda: (now := launch.roster()) is not None and {*now.pids.values()}.isdisjoint([before[1]]))
        now = launch.roster()
        assert now is not None and before[2] in now.pids.values()
        receipt = launch.finish()["receipt"]
    assert receipt["steps"] == 30 and receipt["steps_lost"] == 0
    assert receipt["faults"] == {"killed": 1}, "it is no fault of its device"
    assert any(each.startswith("rank 1 is replaced: it waits for ") for each in launch.notes())
    assert launch.samples() == {epoch: Counter(range(60)) for epoch in range(6)}


@pytest.mark.all
def test_a_spare_goes_on_where_the_only_rank_was(tmp_path: Path) -> None:
    """Nobody else has its state in memory, and nothing is on disk yet."""
    with Launched(tmp_path, 1, "--spares", "1", wait="8", snapshot="1") as launch:
        launch.until(lambda: launch.waits_for(8, 1) and launch.are_ready(2))
        launch.kill(0)
        launch.go(8)
        receipt = launch.finish()["receipt"]
    assert receipt["steps"] == 30 and receipt["steps_lost"] == 0 and receipt["steps_repeated"] <= 2
    assert launch.samples() == {epoch: Counter(range(60)) for epoch in range(6)}


@pytest.mark.long
@pytest.mark.parametrize("seat", [0, 1])
def test_too_few_ranks_end_the_run_with_its_state_saved(tmp_path: Path, seat: int) -> None:
    """The rank that is left waited for ever; and saved nothing where the lost one kept the run folder."""
    with Launched(tmp_path, 2, wait="8") as launch:
        launch.until(lambda: launch.waits_for(8, 2))
        launch.take_away(seat)
        launch.go(8)
        printed = launch.end()
    assert launch.process.returncode == 4 and printed["state"] == "GAVE_UP"
    assert "too few to go on" in printed["error"]["message"]
    assert f"says that the device of rank {seat} is away" in printed["error"]["cause"]
    assert list((launch.run.path / "checkpoints").glob("[0-9]*"))
    assert launch.run.receipt()
