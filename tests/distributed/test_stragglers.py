"""A rank that holds the others up is named, with what it does so long; ranks that are alike are not."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.base.board import Beat, Board, Phase, PhaseTimes
from holdfast.distributed.rank_watch import Seen
from holdfast.distributed.stragglers import SET, Slow, Stragglers, judge
from tests.distributed.launched import Launched


def _alike(draw: random.Random, ranks: int) -> dict[int, list[dict[str, float]]]:
    return {
        rank: [{"data": 0.0, "compute": draw.gauss(0.1, 0.01), "own code": 0.0} for _ in range(SET)]
        for rank in range(ranks)
    }


@pytest.mark.all
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_are_alike_are_hardly_ever_suspected(ranks: int) -> None:
    """In one set; it takes two in a row to be named."""
    draw = random.Random(ranks)
    suspected = sum(judge(_alike(draw, ranks)) is not None for _ in range(4000))
    assert suspected <= 40, "one in a hundred at most"


@pytest.mark.parametrize("part", ["data", "compute", "own code"])
def test_what_it_does_so_long_is_named(part: str) -> None:
    windows = _alike(random.Random(1), 4)
    for row in windows[2]:
        row[part] += 0.1
    slow = judge(windows)
    assert slow is not None and (slow.rank, slow.part) == (2, part)


class _Boards:
    """Ranks whose boards say so many seconds for each step, ten steps a second."""

    def __init__(self, ranks: int) -> None:
        board = Board.create()
        self.beat = board.read()
        board.close()
        self.ranks = ranks
        self.steps = 0
        self.spent = {rank: {Phase.DATA: 0.0, Phase.FORWARD: 0.0} for rank in range(ranks)}
        self.draw = random.Random(3)

    def second(self, **slow: float) -> list[Seen]:
        self.steps += 10
        for rank, phases in self.spent.items():
            phases[Phase.FORWARD] += 10 * self.draw.gauss(0.02, 0.002)
            phases[Phase.DATA] += 10 * slow.get(f"rank{rank}", 0.005)
        return [Seen(rank, 4000 + rank, self._beat(rank)) for rank in range(self.ranks)]

    def _beat(self, rank: int) -> Beat:
        times = {phase: PhaseTimes(spent_s=self.spent[rank].get(phase, 0.0)) for phase in Phase}
        return replace(self.beat, attempts=self.steps, times=times)


def test_it_is_said_once_and_again_after_it_was_fast() -> None:
    boards, now = _Boards(3), [0.0]
    stragglers, said = Stragglers(clock=lambda: now[0]), []

    def pass_by(seconds: int, **slow: float) -> None:
        for _ in range(seconds):
            now[0] += 1.0
            found = stragglers.look(boards.second(**slow))
            said.extend([] if found is None else [found])

    pass_by(4 * SET)
    assert not said
    pass_by(6 * SET, rank1=0.05)
    assert [(each.rank, each.part) for each in said] == [(1, "data")] and stragglers.named is not None
    pass_by(2 * SET)
    assert stragglers.named is None
    pass_by(4 * SET, rank1=0.05)
    assert len(said) == 2


def test_the_sentence() -> None:
    said = Slow(2, "data", 0.041, 0.012).sentence
    assert (
        said == "rank 2 holds the others up: reading data takes 41 ms a step there, 12 ms in the slowest of the others"
    )


# Real processes ---------------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(processes.portable() or not Path("/dev/shm").is_dir(), reason="needs fork, /dev/shm")


def _named(launch: Launched) -> list[tuple[int, str]]:
    events = list(launch.run.events()) if launch.job is not None else []
    return [(event.data["slow_rank"], event.data["part"]) for event in events if "slow_rank" in event.data]


@needs_fork
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_rank_with_slow_data(tmp_path: Path) -> None:
    with Launched(tmp_path, 3, wait="100000", epochs=100000, lag="1:0.03", pause=0.01) as launch:
        launch.until(lambda: _named(launch))
        assert _named(launch) == [(1, "data")]


@needs_fork
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_rank_whose_process_gets_little_time(tmp_path: Path) -> None:
    """Stopped for three quarters of the time, as a process is that shares its processor with others."""
    with Launched(tmp_path, 3, wait="100000", epochs=100000, work=400) as launch:
        launch.until(lambda: launch.are_ready(3) and min(each.beat.step for each in launch.ranks()) > 3)
        (pid,) = [each.pid for each in launch.ranks() if each.rank == 2]

        def stopped_and_looked() -> bool:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.03)
            os.kill(pid, signal.SIGCONT)
            return bool(_named(launch))

        launch.until(stopped_and_looked)
        assert _named(launch) == [(2, "compute")]
