"""The savepoint of a step: what it brings back, and when it says that it cannot."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.state.protected import Protected
from holdfast.state.savepoint import Savepoint

CPU = torch.device("cpu")


class Diary:
    """An object that saves itself, by lists that live on."""

    def __init__(self) -> None:
        self.seen: list[int] = [1, 2]
        self.mean = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.mean = list(state["seen"]), state["mean"]


class World:
    """Everything that may be protected, after two steps."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.diary = Diary()
        self.chance = np.random.default_rng(3)
        self.objects = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "diary": self.diary,
            "chance": self.chance,
        }
        self.protected = Protected(self.objects, CPU)
        self.savepoint = Savepoint(self.protected, self.objects.values())
        self.update()
        self.update()

    def forward(self) -> torch.Tensor:
        return self.model(torch.randn(8, 3)).square().mean()

    def update(self) -> None:
        self.forward().backward()
        self.optimizer.step()

    def drawn(self) -> list[float]:
        return [float(torch.rand(())), random.random(), float(np.random.rand()), float(self.chance.random())]


def test_what_a_step_changes_before_its_update_comes_back() -> None:
    world = World()
    for _ in range(3):  # also after one that was gone back from, and with what was written to in between
        world.savepoint.take(CPU, 60.0)
        buffers = {name: each.clone() for name, each in world.model.named_buffers()}
        expected = world.drawn()
        world.forward().backward()
        world.diary.seen.append(3)
        world.diary.mean += 1.0
        assert world.savepoint.holds()
        world.savepoint.restore(CPU)
        assert all(torch.equal(each, buffers[name]) for name, each in world.model.named_buffers())
        assert world.drawn() == expected
        assert world.diary.seen == [1, 2] and not world.diary.mean.any()
        world.update()


def _replace(world: World) -> None:
    world.model[1].running_mean = torch.ones(4)


def _write(world: World) -> None:
    with torch.no_grad():
        world.model[0].weight.add_(1.0)


CHANGES: list[Callable[[World], Any]] = [
    World.update,
    _write,
    _replace,
    lambda world: world.scheduler.step(),
    lambda world: world.optimizer.param_groups[0].update(lr=0.5),
    lambda world: setattr(world.model[0], "weight", nn.Parameter(torch.ones(4, 3))),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_it_does_not_copy_is_seen_to_have_changed(change: Callable[[World], Any]) -> None:
    world = World()
    world.savepoint.take(CPU, 60.0)
    assert world.savepoint.holds()
    change(world)
    assert not world.savepoint.holds()


def test_an_object_that_takes_long_to_ask_leaves_no_savepoint() -> None:
    world = World()
    for _ in range(3):  # twice it took too long
        world.savepoint.take(CPU, 0.0)
    assert not world.savepoint.holds()
    world.savepoint.take(CPU, 60.0)
    assert world.savepoint.holds()


def test_an_object_that_took_long_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have had the processor in that moment: savepoints were off for 100 steps then."""
    world, state_dict = World(), Diary.state_dict

    def late(diary: Diary) -> dict[str, Any]:
        time.sleep(0.1)
        return state_dict(diary)

    monkeypatch.setattr(Diary, "state_dict", late)
    world.savepoint.take(CPU, 0.05)
    monkeypatch.undo()
    world.savepoint.take(CPU, 0.05)
    assert world.savepoint.holds()


def test_a_module_that_saves_itself_leaves_no_savepoint() -> None:
    class Own(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"steps": 1}

        def set_extra_state(self, state: dict[str, int]) -> None:
            return None

    objects = {"model": Own(2, 2)}
    savepoint = Savepoint(Protected(objects, CPU), objects.values())
    savepoint.take(CPU, 60.0)
    assert not savepoint.holds()
