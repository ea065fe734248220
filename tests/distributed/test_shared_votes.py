"""Numbers of all ranks in memory that all see: a rank reads those of its turn, and waits for one that is late."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.distributed.job import Job
from holdfast.distributed.shared_votes import SharedVotes


class Gone(Exception):
    pass


def gone() -> None:
    raise Gone


def test_each_turn_has_the_numbers_of_all(tmp_path: Path) -> None:
    ranks = [SharedVotes(Job(tmp_path), 3, rank, 3) for rank in range(3)]
    for turn in range(1, 6):
        for rank, votes in enumerate(ranks):
            votes.hand_in(10.0 * turn + rank, 0.0, float(rank == 0), 0.5, 7.0)
        for votes in ranks:
            rows = votes.read(gone)
            assert rows == [(10.0 * turn + rank, 0.0, float(rank == 0), 0.5, 7.0) for rank in range(3)]
    for votes in ranks:
        votes.close()


def test_a_rank_may_be_a_turn_ahead_and_no_more(tmp_path: Path) -> None:
    one, two = (SharedVotes(Job(tmp_path), 1, rank, 2) for rank in range(2))
    one.hand_in(1.0, 0.0, 0.0, 0.5, 7.0)
    two.hand_in(2.0, 0.0, 0.0, 0.5, 7.0)
    assert one.read(gone) == [(1.0, 0.0, 0.0, 0.5, 7.0), (2.0, 0.0, 0.0, 0.5, 7.0)]
    one.hand_in(3.0, 0.0, 0.0, 0.5, 7.0)
    assert two.read(gone) == [(1.0, 0.0, 0.0, 0.5, 7.0), (2.0, 0.0, 0.0, 0.5, 7.0)], "those of its own turn"
    with pytest.raises(Gone):
        one.read(gone)


def test_a_late_rank_is_waited_for(tmp_path: Path) -> None:
    one, two = (SharedVotes(Job(tmp_path), 1, rank, 2) for rank in range(2))
    one.hand_in(1.0, 1.0, 0.0, 0.5, 7.0)
    looked = threading.Event()
    late = threading.Thread(target=lambda: looked.wait(60) and two.hand_in(2.0, 0.0, 0.0, 0.5, 7.0))
    late.start()
    assert one.read(looked.set) == [(1.0, 1.0, 0.0, 0.5, 7.0), (2.0, 0.0, 0.0, 0.5, 7.0)]
    late.join()
