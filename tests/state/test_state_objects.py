"""Objects with a state_dict of their own (worlds, agents) and random generators are saved, and go on, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from holdfast.state.protected import Protected
from tests.state.saving import CPU, load, save
from tests.state.state_jobs import World, net, same


def test_world() -> None:
    first = World(1)
    protected = Protected({"world": first}, CPU)
    [first.act() for _ in range(3)]
    slot = save(protected)
    expected = [first.act() for _ in range(3)]
    second = World(2)
    load(Protected({"world": second}, CPU), slot)
    assert [second.act() for _ in range(3)] == expected
    assert second.visits == first.visits
    assert torch.equal(second.memory, first.memory)


def test_agent_that_saves_its_own_networks() -> None:
    class Agent:
        def __init__(self) -> None:
            self.net = net()

        def state_dict(self) -> dict[str, Any]:
            return {"net": self.net.state_dict()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.net.load_state_dict(state["net"])

    agent, other = Agent(), Agent()
    slot = save(Protected({"agent": agent, "o": torch.optim.SGD(agent.net.parameters())}, CPU))
    load(Protected({"agent": other, "o": torch.optim.SGD(other.net.parameters())}, CPU), slot)
    same(dict(agent.net.state_dict()), dict(other.net.state_dict()))


def test_tensors_made_anew_at_each_look_do_not_change_the_layout() -> None:
    world = World(1)
    protected = Protected({"world": world, "generator": torch.Generator().manual_seed(3)}, CPU)
    protected.layout()
    protected.changed()
    layout = protected.layout()
    live = protected.tensors()
    for _ in range(3):
        world.act()
        assert not protected.changed()
        by_name = dict(zip([entry.name for entry in layout.live], protected.tensors(), strict=True))
        assert by_name["world.memory"].tolist() == world.memory.tolist()
        assert by_name["world.grid"].tolist() == world.grid.tolist()
    assert protected.tensors() is live


def test_an_array_is_used_in_place_even_after_a_restore() -> None:
    class Memory:
        def __init__(self) -> None:
            self.data = np.zeros(1000)

        def state_dict(self) -> dict[str, Any]:
            return {"data": self.data}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.data = state["data"]

    memory = Memory()
    protected = Protected({"memory": memory}, CPU)
    for _ in range(3):
        load(protected, save(protected))
        protected.layout()
        assert protected.tensors()[0].data_ptr() == memory.data.ctypes.data
        assert not protected.changed()


def test_a_number_that_becomes_another_type_is_seen() -> None:
    world = World(1)
    protected = Protected({"world": world}, CPU)
    for value in (1, 1.0, True, 0.0, -0.0):
        world.best = value
        protected.meta_json()
        other = World(2)
        load(Protected({"world": other}, CPU), save(protected))
        assert repr(other.best) == repr(value)


def test_generators() -> None:
    named: dict[str, Any] = {
        "torch_rng": torch.Generator().manual_seed(1),
        "numpy_rng": np.random.default_rng(1),
        "philox": np.random.Generator(np.random.Philox(4)),
        "legacy": np.random.RandomState(1),
        "python": random.Random(1),
    }

    def draw() -> list[Any]:
        return [
            torch.randn(3, generator=named["torch_rng"]).tolist(),
            named["numpy_rng"].standard_normal(3).tolist(),
            named["philox"].integers(1000, size=3).tolist(),
            named["legacy"].randn(3).tolist(),
            [named["python"].gauss(0, 1) for _ in range(3)],
        ]

    protected = Protected(named, CPU)
    draw()
    slot = save(protected)
    expected = draw()
    assert draw() != expected
    load(protected, slot)
    assert draw() == expected
