"""The way back to a device, and away from one, also for processes that are in no group; and what ranks go back to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import processes
from holdfast.base.board import Board
from holdfast.distributed import rank_devices, rank_undo
from holdfast.distributed.job import Job
from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.state.slot_memory import Memory
from tests.distributed.launched import Launched, check_result
from tests.distributed.test_rank_ladder import SOON, Ill, seats

pytestmark = [
    pytest.mark.skipif(processes.portable() or not Path("/dev/shm").is_dir(), reason="needs fork and /dev/shm"),
    pytest.mark.timeout(600),
]


def is_on(launch: Launched, seat: int, device: str) -> bool:
    """Whether the next process of this seat, or the one that is there, is to be on this device."""
    told = None if launch.job is None else rank_devices.told(launch.job, seat)
    return told is not None and told.device == device


def has_moved(launch: Ill, seat: int, before: int) -> Callable[[], bool]:
    return lambda: seats(launch).get(seat, before) != before


def train_as_0_and_1(launch: Launched, step: int) -> None:
    """Seat 2 is the spare from this step on. Those of three processes that are ready first have begun."""
    launch.until(lambda: launch.are_ready(3) and launch.waits_for(step, 2))
    now = launch.roster()
    assert now is not None
    if now.seats != (0, 1):
        launch.kill(2)
    launch.go(step)


def is_to_stop(launch: Launched) -> bool:
    assert launch.job is not None
    boards = [Board.open_path(path) for path in launch.job.boards().values()]
    found = all(board.stop_requested for board in boards)
    for board in boards:
        board.close(unlink=False)
    return found


@pytest.mark.long
def test_a_spare_on_the_cpu_makes_room_for_one_on_its_device(tmp_path: Path) -> None:
    """It is in no group: the others need not leave theirs for it, and did for ever."""
    ill = Ailment("wrong", step=8, times=None, device="pretend:1")
    job = {"sentinel.cost": 100, **SOON}
    with Ill(tmp_path, 2, ill, words=("--device", "pretend", "--spares", "1"), wait="4 8 20", **job) as launch:
        train_as_0_and_1(launch, 4)
        launch.until(lambda: launch.are_ready(3) and launch.waits_for(8, 2))
        launch.go(8)
        launch.until(lambda: launch.waits_for(20, 2))
        now = launch.roster()
        assert now is not None and now.seats == (0, 2)
        launch.until(lambda: is_on(launch, 1, "cpu") and 1 in seats(launch))
        spare = seats(launch)[1]
        ailments.write(launch.ailments, [])  # it is well from here on
        launch.until(lambda: launch.has_said("probe passed"))
        launch.until(has_moved(launch, 1, spare))
        launch.go(20)
        check_result(launch)


@pytest.mark.long
def test_a_device_recovers_while_the_ranks_build_their_group_anew(tmp_path: Path) -> None:
    """Another rank runs out of memory before the commit at which they would have left: nobody ended, and all waited."""
    ill = Ailment("error", step=8, times=None, device="pretend:2")
    words = ("--device", "pretend", "--shares", "equal")  # with others, DistributedDataParallel does not exchange
    with Ill(tmp_path, 3, ill, words=words, wait="14 20", ddp=True, full="1:14:1:backward", **SOON) as launch:
        launch.until(lambda: launch.waits_for(14, 3))
        ailments.write(launch.ailments, [])  # it is well from here on
        launch.until(lambda: launch.has_said("probe passed") and is_on(launch, 2, "pretend:2"))
        on_cpu = seats(launch)[2]
        launch.go(14)
        launch.until(has_moved(launch, 2, on_cpu))
        launch.until(lambda: launch.waits_for(20, 3))
        launch.go(20)
        check_result(launch)
    assert launch.has_said("rank 2 is back on pretend:2")
    assert "out_of_memory" in {fault["kind"] for fault in launch.of("fault")}, (
        "the group was built anew inside of a step"
    )


@pytest.mark.long
def test_the_others_do_not_leave_their_group_for_a_rank_that_is_away(tmp_path: Path) -> None:
    """Its device recovers while no process of it is there."""
    ill = Ailment("error", step=4, times=None, device="pretend:1")
    with Ill(tmp_path, 2, ill, words=("--device", "pretend", "--min-ranks", "1"), wait="8 16 24", **SOON) as launch:
        launch.until(lambda: launch.waits_for(8, 2))
        launch.take_away(1)
        launch.go(8)
        launch.until(lambda: launch.waits_for(16, 1))
        now = launch.roster()
        ailments.write(launch.ailments, [])
        launch.until(lambda: launch.has_said("probe passed") and is_on(launch, 1, "pretend:1"))
        launch.go(16)
        launch.until(lambda: launch.waits_for(24, 1))
        then = launch.roster()
        assert now is not None and then is not None and now.number == then.number
        launch.go(24)
        check_result(launch)


@pytest.mark.long
def test_a_card_beside_the_cpu_that_cannot_be_opened_is_left(tmp_path: Path) -> None:
    """The rank on the CPU waits for the card's times, and the launch waited for the card for ever."""
    (tmp_path / "away-0").touch()
    with Launched(tmp_path, 2, "--devices", "pretend:0,cpu") as launch:
        launch.until(lambda: is_on(launch, 0, "cpu"))
        launch.give_back(0)
        assert launch.finish()["receipt"]["steps"] == 30


@pytest.mark.long
def test_a_launch_whose_only_card_cannot_be_opened_is_given_up(tmp_path: Path) -> None:
    """With --min-ranks the rank stays away. A process on the CPU that may not train yet is no reason to wait."""
    (tmp_path / "away-0").touch()
    with Launched(tmp_path, 2, "--devices", "pretend:0,cpu", "--min-ranks", "1") as launch:
        printed = launch.end()
    assert printed["state"] == "GAVE_UP", printed


@pytest.mark.long
def test_what_the_device_of_another_rank_cannot_do_does_not_end_a_rank_on_the_cpu(tmp_path: Path) -> None:
    with Launched(tmp_path, 2, "--devices", "cpu,pretend:1", "--shares", "1:1", lacks="1:8") as launch:
        assert launch.finish()["receipt"]["steps"] == 30
    notes = launch.notes()
    assert any("rank 1 moved from pretend:1 to the CPU" in note for note in notes), notes


@pytest.mark.long
@pytest.mark.parametrize(
    "how", [{"snapshot": "2"}, {"turn": True, "snapshot.lose": "1h"}], ids=["fixed", "transactions"]
)
def test_ranks_on_devices_that_round_differently_commit_the_same_weights(tmp_path: Path, how: dict[str, Any]) -> None:
    """With a fixed cadence they were only evened out at the ends of epochs."""
    with Launched(tmp_path, 2, "--devices", "pretend:0,cpu", "--shares", "1:1", rounds=True, **how) as launch:
        assert launch.finish()["receipt"]["steps"] == 30
    began = [dict(line.split() for line in (launch.seen / f"weights-{rank}.txt").open()) for rank in range(2)]
    steps = range(30)
    alike = {step for step in steps if began[0][str(step)] == began[1][str(step)]}
    every = 1 if how.get("turn") else 2
    committed = {step for step in steps if step % 5 % every == 0}  # an epoch has five steps, and ends with a commit
    assert alike == committed


@pytest.mark.long
def test_a_spare_whose_device_is_wrong_from_its_first_step_takes_all_back_to_where_it_came_in(tmp_path: Path) -> None:
    """It has compared nothing yet. The wrong step stayed in the weights."""
    ill = Ailment("wrong", step=11, times=None, device="pretend:2")
    spare = ("--device", "pretend", "--spares", "1")
    with Ill(tmp_path, 2, ill, words=spare, snapshot="1", wait="4 11 20", **{"sentinel.cost": 100}) as launch:
        train_as_0_and_1(launch, 4)
        launch.until(lambda: launch.are_ready(3) and launch.waits_for(11, 2))
        launch.kill(1)
        launch.go(11)
        launch.until(lambda: launch.waits_for(20, 2))
        launch.go(20)
        check_result(launch)
    (undone,) = launch.of("undone")
    assert (undone["to_step"], undone["rank"]) == (10, 2)


@pytest.mark.long
def test_a_device_that_is_wrong_when_a_run_is_continued_takes_all_back_to_the_checkpoint(tmp_path: Path) -> None:
    """The new launch has compared nothing yet."""
    ill = Ailment("wrong", step=12, times=None, device="pretend:1")
    words, job = ("--device", "pretend", "--continue"), {"snapshot": "1", "wait": "11 20", "sentinel.cost": 100}
    with Ill(tmp_path, 2, words=words, **job) as launch:
        launch.until(lambda: launch.waits_for(11, 2))
        launch.process.terminate()
        launch.until(lambda: is_to_stop(launch))
        launch.go(11)
        assert launch.end()["state"] == "STOPPED"
    with Ill(tmp_path, 2, ill, words=words, **job) as launch:
        launch.until(lambda: launch.waits_for(20, 2))
        launch.go(20)
        check_result(launch)
    (undone,) = launch.of("undone")
    assert (undone["to_step"], undone["rank"]) == (11, 1)


def test_without_an_agreed_snapshot_all_go_back_to_where_the_launch_began(tmp_path: Path) -> None:
    """What the ranks commit afterwards stays."""
    job = Job(tmp_path)
    memory = Memory(RunFolder(tmp_path), Settings.load({}), portable=True, say=lambda *_, **__: None)
    memory.folder = job.slots(1)
    arena = memory.grow(64)
    rank_undo.begin(job, 40)
    rank_undo.begin(job, 44)
    for sequence, slot in enumerate(arena.slots[:2], 7):
        slot.begin(sequence)
        slot.commit(sequence=sequence, step=40 + sequence, generation=3, size=8)
    made = rank_undo.note(job, rank_undo.find(job, seat=1, generation=3))
    assert made == rank_undo.Undone(1, 3, sequence=0, step=40) and not made.agreed
    rank_undo.give_up([made], memory)
    assert memory.newest() is None
    arena.slots[2].begin(9)
    arena.slots[2].commit(sequence=9, step=41, generation=4, size=8)
    rank_undo.give_up([made], memory)
    newest = memory.newest()
    assert newest is not None and newest.step == 41
    memory.close()
