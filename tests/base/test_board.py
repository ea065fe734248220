"""The board: what one process writes, another reads, and what is learned about each phase on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.board import Board, Phase

ELSEWHERE = [sys.executable, "-c"]


class Clock:
    """Nanoseconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


def timed_board() -> tuple[Board, Clock]:
    board, clock = Board.create(generation=3), Clock()
    board._clock = clock
    board.beat()
    return board, clock


def spend(board: Board, clock: Clock, phase: Phase, seconds: float) -> None:
    board.enter(phase)
    clock.wait(seconds)
    board.enter(Phase.LOOP)


def test_a_new_board_says_that_nothing_has_happened_yet() -> None:
    board = Board.create(generation=7)
    beat = board.read()
    assert (beat.generation, beat.phase, beat.step, beat.attempts, beat.beats) == (7, Phase.SETUP, 0, 0, 0)
    assert beat.loss is None
    assert beat.label == ""
    assert not board.stop_requested
    assert all(times.count == 0 for times in beat.times.values())
    board.close()


def test_silence_is_the_time_since_the_last_beat() -> None:
    board, clock = timed_board()
    clock.wait(2.5)
    assert board.read().silence == pytest.approx(2.5)
    board.enter(Phase.FORWARD)
    assert board.read().silence == 0.0
    clock.wait(1.0)
    board.beat()
    assert board.read().silence == 0.0
    board.close()


def test_a_clock_of_another_process_that_runs_ahead_is_not_negative_silence() -> None:
    board, clock = timed_board()
    clock.wait(-1.0)
    assert board.read().silence == 0.0
    board.close()


def test_each_phase_learns_how_long_it_takes() -> None:
    board, clock = timed_board()
    for seconds in (0.2, 0.5, 0.3):
        spend(board, clock, Phase.FORWARD, seconds)
    times = board.read().times[Phase.FORWARD]
    assert times.count == 3
    assert times.slowest_s == pytest.approx(0.5, rel=0.01)
    assert times.first_s == pytest.approx(0.5)
    assert board.read().times[Phase.BACKWARD].count == 0
    board.close()


def test_only_the_first_three_times_count_as_first() -> None:
    board, clock = timed_board()
    for seconds in (0.1, 0.1, 0.1, 9.0):
        spend(board, clock, Phase.FORWARD, seconds)
    times = board.read().times[Phase.FORWARD]
    assert times.first_s == pytest.approx(0.1)
    assert times.slowest_s == pytest.approx(9.0)
    board.close()


def test_one_slow_step_is_forgotten_slowly() -> None:
    board, clock = timed_board()
    spend(board, clock, Phase.FORWARD, 10.0)
    for _ in range(180):
        spend(board, clock, Phase.FORWARD, 0.01)
    assert 4.0 < board.read().times[Phase.FORWARD].slowest_s < 6.0
    board.close()


def test_a_beat_inside_a_phase_teaches_nothing() -> None:
    """Declared progress: the hour of a data set's preparation is no measure for anything."""
    board, clock = timed_board()
    for done in range(5):
        clock.wait(600.0)
        board.progress(done, 5, "decoding")
    beat = board.read()
    assert beat.silence == 0.0
    assert beat.times[Phase.SETUP].count == 0
    assert (beat.done, beat.total, beat.label) == (4, 5, "decoding")
    board.close()


def test_a_long_label_is_cut_even_inside_a_letter() -> None:
    board = Board.create()
    board.progress(1, 2, "é" * 200)
    assert board.read().label.startswith("é" * 63)
    board.progress(1, 2, "short")
    assert board.read().label == "short"
    board.close()


def test_what_the_worker_tells_about_its_position() -> None:
    board = Board.create()
    board.identify(4711)
    board.begin_attempt(12)
    board.begin_attempt(12)
    board.commit(12, 768)
    board.loss(0.25)
    board.pieces(4)
    board.position(epoch=2, epochs=10, batch=5, batches=40)
    beat = board.read()
    assert (beat.pid, beat.attempt, beat.attempts, beat.step, beat.samples) == (4711, 12, 2, 12, 768)
    assert (beat.epoch, beat.epochs, beat.batch, beat.batches) == (2, 10, 5, 40)
    assert (beat.loss, beat.pieces) == (0.25, 4)
    board.loss(float("nan"))
    assert board.read().loss is None
    board.close()


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are not inherited")
def test_another_process_reads_and_asks_through_the_descriptor() -> None:
    board = Board.create(generation=2)
    board.enter(Phase.OPTIMIZER)
    code = f"""
from holdfast.base.board import Board
board = Board.open({board.fd})
beat = board.read()
print(beat.generation, beat.phase.label)
board.request_stop()
"""
    told = subprocess.run([*ELSEWHERE, code], pass_fds=[board.fd], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["2", "optimizer"]
    assert board.stop_requested
    board.close()


def test_another_process_finds_a_board_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "board"
    board = Board.create(path=path)
    board.commit(99, 0)
    code = (
        f"from holdfast.base.board import Board; from pathlib import Path\n"
        f"print(Board.open_path(Path({str(path)!r})).read().step)"
    )
    told = subprocess.run([*ELSEWHERE, code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "99"
    board.close()
    assert not path.exists()


@pytest.mark.all
@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are not inherited")
def test_no_value_is_ever_seen_half_written() -> None:
    """Each word differs from the other in all eight bytes; a torn read would be neither."""
    board = Board.create()
    low, high = 0x0101010101010101, 0x7E7E7E7E7E7E7E7E
    board.commit(low, high)
    code = f"""
from holdfast.base.board import Board
board = Board.open({board.fd})
print("writing", flush=True)
while not board.stop_requested:
    board.commit({high}, {low})
    board.commit({low}, {high})
"""
    with subprocess.Popen([*ELSEWHERE, code], pass_fds=[board.fd], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        seen = set()
        for _ in range(5_000):
            beat = board.read()
            seen |= {beat.step, beat.samples}
        board.request_stop()
    assert seen == {low, high}
    board.close()


def test_something_else_is_not_taken_for_a_board(tmp_path: Path) -> None:
    for content in (b"x" * 4096, bytes(4096)):
        path = tmp_path / "other"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a holdfast board"):
            Board.open_path(path)
    path.write_bytes(b"short")
    with pytest.raises(ValueError):
        Board.open_path(path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_closed_board_leaves_nothing_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        Board.create().close()
        Board.create(path=tmp_path / "board").close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(tmp_path.iterdir()) == []
