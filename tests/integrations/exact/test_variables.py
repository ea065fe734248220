"""Variables of a function that runs, as JSON and tensors, and back: in place where others refer to them."""

from __future__ import annotations

import collections
import enum
import json
import math
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.integrations.exact import frames
from holdfast.integrations.exact.capture import Capture
from holdfast.integrations.exact.constants import Constants
from holdfast.integrations.exact.restore import Different, Restore

pytestmark = pytest.mark.skipif(bool(frames.can_read()), reason=frames.can_read() or "can be read")


class Saved:
    """One picture of a frame, with tensors of its own."""

    def __init__(self, frame: types.FrameType) -> None:
        capture = Capture({}, Constants())
        self.rows = json.loads(json.dumps(capture.frames([frame])))
        self.nodes = json.loads(capture.text())
        self.tensors = {name: each.clone() for name, each in capture.tensors.items()}
        self.unsaved = capture.unsaved

    def put_back(self, frame: types.FrameType) -> None:
        Restore(self.nodes, self.tensors.__getitem__, Constants(), {}).frames(self.rows, [frame])


class Meter:
    def __init__(self) -> None:
        self.total, self.values = 0.0, [1]


def test_containers_numbers_and_objects_are_put_back_in_place() -> None:
    saves: list[Saved] = []
    numbers = [1, 2.5, float("inf"), 3 + 4j, b"x", None, True, range(3), np.float32(0.1)]
    table = collections.OrderedDict(a=[1], b={"c": (1, [2])})
    recent = collections.deque([1, 2], maxlen=2)
    meter, best, unit = Meter(), (0.5, "x"), torch.tensor([1.0, 2.0])
    same, chance, other = numbers, random.Random(3), np.arange(4.0)
    drawn, kept = [], meter
    turns = iter([0, 1])
    while True:
        turn = outside_turn(turns)
        led_except(saves, sys._getframe(), turn, {"saves", "turns", "turn", "first"})
        if turn == 1:
            break
        first = chance.random()
        numbers[1] = 7
        numbers.append("more")
        table["a"].append(5)
        table["d"] = 1
        recent.append(9)
        meter.total, best, other[0] = 3.0, (0.1, "y"), 5.0
        meter.values.append(2)
        unit.add_(1)
        drawn.append(turn)
        if turn == 0:
            table.move_to_end("a")
    assert numbers == [1, 2.5, float("inf"), 3 + 4j, b"x", None, True, range(3), np.float32(0.1)] and same is numbers
    assert list(table.items()) == [("a", [1]), ("b", {"c": (1, [2])})]
    assert list(recent) == [1, 2] and meter is kept and (meter.total, meter.values) == (0.0, [1])
    assert best == (0.5, "x") and unit.tolist() == [1.0, 2.0] and other.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert chance.random() == first and drawn == []


def test_the_sign_of_zero_and_the_order_of_a_set_are_put_back() -> None:
    saves: list[Saved] = []
    small, zero, zeros = set(range(65)), -0.0, [0.0, -0.0]
    for each in (0, *range(2, 64)):
        small.discard(each)
    order = list(small)
    assert order == [1, 64] and list({1, 64}) == [64, 1]  # in a set that was never larger
    turns = iter([0, 1])
    while True:
        turn = outside_turn(turns)
        led_except(saves, sys._getframe(), turn, {"saves", "turns", "turn", "order", "each"})
        if turn == 1:
            break
        zero, zeros[:] = 0.0, [-0.0, 0.0]
        small.clear()
        small.update({1, 64})
    assert [math.copysign(1, each) for each in (zero, *zeros)] == [-1, 1, -1]
    assert list(small) == order


@pytest.mark.parametrize("change", ["data", "numpy", "order"])
def test_what_is_written_behind_torchs_back_is_no_constant(change: str) -> None:
    constants, average = Constants(), torch.arange(40_001.0)
    assert constants.mark(average) is not None
    constants.settle()
    assert constants.mark(average) is not None
    version = average._version
    if change == "data":
        average.data.mul_(0.99)
    elif change == "numpy":
        average.numpy()[-1] += 1
    else:
        average.numpy()[:] = np.roll(average.numpy(), 2)
    assert average._version == version and constants.mark(average) is None


def test_a_batch_that_was_fetched_ahead_is_no_constant_when_its_turn_comes() -> None:
    constants, ahead = Constants(), torch.zeros(40_000)
    assert constants.mark(ahead, path="loader.next_input") is not None
    constants.settle()
    assert constants.mark(ahead, path="loader.next_input") is not None
    assert constants.mark(ahead, path="train.input") is None


def test_a_part_of_an_array_is_a_part_of_it_again() -> None:
    saves: list[Saved] = []
    order, sums = np.arange(8), torch.arange(8.0)
    turns, at = iter([0, 1]), 4
    part, half = order[at : at + 2], sums[at : at + 2]
    while True:
        turn = outside_turn(turns)
        led_except(saves, sys._getframe(), turn, {"saves", "turns", "turn"})
        if turn == 1:
            break
        at = 0
        part, half = order[at : at + 2], sums[at : at + 2]
        order[5], sums[5] = 50, 50.0
    assert order.tolist() == list(range(8)) and sums.tolist() == list(range(8))
    part[0], half[0] = 70, 70.0
    assert order.tolist() == sums.tolist() == [0, 1, 2, 3, 70, 5, 6, 7] and at == 4


def test_two_lists_stay_two_where_one_variable_holds_the_other_now() -> None:
    saves: list[Saved] = []
    turns, first, second = iter([0, 1]), [1], [2]
    while True:
        turn = outside_turn(turns)
        led_except(saves, sys._getframe(), turn, {"saves", "turns", "turn"})
        if turn == 1:
            break
        second = first
        first.append(3)
    assert first == [1] and second == [2] and first is not second


def test_loops_and_generators_go_on_where_they_were() -> None:
    def numbered(source: Iterator[int]) -> Iterator[tuple[int, int]]:
        count = 100
        for each in source:
            count += 1
            yield count, each

    saves: list[Saved] = []
    turns, led_back = iter([0, 2, 1, 2, 2]), False
    outside: list[Any] = []
    for i, ((count, each), letter) in enumerate(zip(numbered(iter(range(10, 60, 10))), "abcde", strict=True)):
        outside.append((i, count, each, letter))
        turn = -1 if led_back else outside_turn(turns)
        led_back = led_back or turn == 1
        led_except(saves, sys._getframe(), turn, {"saves", "outside", "turns", "led_back", "turn"})
    assert outside == [
        (0, 101, 10, "a"), (1, 102, 20, "b"), (2, 103, 30, "c"),
        (1, 102, 20, "b"), (2, 103, 30, "c"), (3, 104, 40, "d"), (4, 105, 50, "e"),
    ]  # fmt: skip


def outside_turn(turns: Iterator[int]) -> int:
    return next(turns, -1)


def led_except(saves: list[Saved], frame: types.FrameType, turn: int, names: set[str]) -> None:
    """At turn 0 everything is saved, but for variables of the test itself; at turn 1 it is put back."""
    if turn == 0:
        saved = Saved(frame)
        saved.rows[0][1] = [row for row in saved.rows[0][1] if row[0] not in names]
        saves.append(saved)
    elif turn == 1:
        saves[0].put_back(frame)


def test_what_cannot_be_read_is_named() -> None:
    import hashlib

    chain = hashlib.sha256(b"x")
    saved = Saved(sys._getframe())
    assert saved.unsaved == {"test_what_cannot_be_read_is_named.chain": "HASH"} and chain.digest()


def test_another_place_is_refused() -> None:
    saved = Saved(sys._getframe())
    with pytest.raises(Different, match="another place"):
        saved.put_back(sys._getframe())


class Stage(enum.Enum):
    WARM, COOL = 1, 2


class Part(enum.Flag):
    HEAD, BODY, TAIL = 1, 2, 4


def test_members_of_an_enum_are_put_back_and_stay_what_they_are() -> None:
    saves: list[Saved] = []
    turns, stage, part = iter([0, 1]), Stage.WARM, Part.HEAD | Part.TAIL
    held = {"stage": Stage.WARM}
    while True:
        turn = outside_turn(turns)
        led_except(saves, sys._getframe(), turn, {"saves", "turns", "turn"})
        if turn == 1:
            break
        stage, part = Stage.COOL, Part.BODY
        held["stage"] = Stage.COOL
    assert stage is Stage.WARM and held["stage"] is Stage.WARM and part == Part.HEAD | Part.TAIL
    assert Stage.COOL.value == 2 and Part.BODY.value == 2


def test_a_scaler_knows_again_what_it_found_of_each_optimizer() -> None:
    """Saved between `unscale_` and `update`: one optimizer has found an inf and must not step, the other has none."""
    saves: list[Saved] = []
    first, second = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    one, two = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.SGD(second.parameters(), lr=0.1)
    scaler, off = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu", enabled=False)
    turns = iter([0, 1])
    while True:
        turn = outside_turn(turns)
        if turn == 0:
            scaler.scale(first(torch.full((1, 2), float("inf"))).sum()).backward()
            scaler.scale(second(torch.ones(1, 2)).sum()).backward()
            scaler.unscale_(one)
            scaler.unscale_(two)
        led_except(saves, sys._getframe(), turn, {"saves", "turns", "turn", "first", "second"})
        if turn == 1:
            break
        scaler.step(one)
        scaler.step(two)
        scaler.update()
        assert scaler.get_scale() == 4.0
        one.zero_grad()
        scaler.scale(first(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(one)  # another process in its first step: no inf, and the other optimizer is not unscaled
    states = scaler._per_optimizer_states
    assert states.keys() == {id(one), id(two)} and scaler.get_scale() == 8.0 and not off.is_enabled()
    assert [sum(each.item() for each in states[id(each)]["found_inf_per_device"].values()) for each in (one, two)] == [
        1.0,
        0.0,
    ]
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(two)
    scaler.update()
    assert scaler.get_scale() == 4.0
