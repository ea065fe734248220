"""Where a loop without epochs commits: at its condition, and nowhere else."""

from __future__ import annotations

import pytest

from holdfast.worker import loop_head
from holdfast.worker.loop_head import LoopHead, place_of_caller


class Counter:
    """As much of a session as a loop needs: counts steps, and notes how many were done at each commit."""

    def __init__(self) -> None:
        self.head = LoopHead()
        self.steps = 0
        self.commits: list[tuple[str, int]] = []

    @property
    def step_count(self) -> int:
        if self.head.asked(place_of_caller()):
            self.commits.append(("head", self.steps))
        return self.steps

    def step(self) -> None:
        self.steps += 1
        if self.head.step_ends():
            self.commits.append(("step", self.steps))

    def step_by_hand(self) -> None:
        self.steps += 1
        self.head.stepped_by_hand()


def test_a_while_loop_commits_at_its_condition() -> None:
    session = Counter()
    while session.step_count < 3:
        session.step()
    assert session.commits == [("head", 1), ("head", 2), ("head", 3)]


def test_asking_in_the_body_commits_nothing() -> None:
    session = Counter()
    while session.step_count < 4:
        if session.step_count % 2 == 0:  # before the step
            pass
        session.step()
        session.step()
        if session.step_count % 2 == 0:  # after it
            pass
    assert session.commits == [("head", 2), ("head", 4)]


def test_asking_in_a_loop_of_the_body_commits_nothing() -> None:
    """It asks before a step and again after it, as the head of a next loop would."""
    session = Counter()
    while session.step_count < 8:
        for _ in range(2):
            assert session.step_count < 8
            session.step()
    assert session.commits == [("head", 2), ("head", 4), ("head", 6), ("head", 8)]


def test_a_body_of_many_steps_by_hand_is_committed_at_its_head() -> None:
    session = Counter()
    while session.step_count < 300:
        for _ in range(loop_head.STEPS + 20):
            session.step_by_hand()
    assert session.commits == [("head", 120), ("head", 240), ("head", 360)]


def test_two_loops_inside_of_a_third_take_turns() -> None:
    session = Counter()
    for bound in (4, 8):
        while session.step_count < bound - 2:
            session.step()
        while session.step_count < bound:
            session.step()
    assert session.commits == [("head", count) for count in range(1, 9)]


def test_a_second_loop_has_a_head_of_its_own() -> None:
    session = Counter()
    while session.step_count < 2:
        session.step()
    while session.step_count < 5:
        session.step()
    assert session.commits == [("head", count) for count in (1, 2, 3, 4, 5)]


def test_a_condition_in_a_function() -> None:
    session = Counter()

    def more() -> bool:
        return session.step_count < 3

    while more():
        session.step()
        more()
    assert session.commits == [("head", 1), ("head", 2), ("head", 3)]


def test_a_loop_that_asks_once_commits_each_step() -> None:
    session = Counter()
    for _ in range(session.step_count, 4):
        if session.step_count % 2 == 0:  # not the condition: a restored run would land before it
            pass
        session.step()
    assert session.commits == [("step", 1), ("step", 2), ("step", 3), ("step", 4)]


def test_one_that_asks_once_inside_of_another_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks as if it would ask again."""
    monkeypatch.setattr(loop_head, "STEPS", 4)
    session = Counter()
    for _ in range(1):
        for _ in range(session.step_count, 6):
            session.step()
    assert session.commits == [("step", 4), ("step", 5), ("step", 6)]


def test_a_slow_one_inside_of_another_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(loop_head.time, "monotonic", lambda: now[0])
    session = Counter()
    for _ in range(1):
        for _ in range(session.step_count, 4):
            session.step()
            now[0] += loop_head.SECONDS / 2
    assert session.commits == [("step", 3), ("step", 4)]


def test_a_number_asked_for_before_the_loop_is_no_head() -> None:
    """A restored run lands there, before the loop: each step is committed by itself, as that run expects."""
    session = Counter()
    assert session.step_count == 0
    while session.step_count < 2:
        session.step()
    assert session.commits == [("step", 1), ("step", 2)]


def test_a_body_of_many_steps_goes_back_to_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_head, "STEPS", 4)
    session = Counter()
    while session.step_count < 9:
        for _ in range(1 if session.steps != 2 else 6):
            session.step()
    assert session.commits == [("head", 1), ("head", 2), ("step", 6), ("step", 7), ("step", 8), ("head", 9)]


def test_without_a_head_each_step_is_committed() -> None:
    session = Counter()
    for _ in range(2):
        session.step()
    assert session.commits == [("step", 1), ("step", 2)]
