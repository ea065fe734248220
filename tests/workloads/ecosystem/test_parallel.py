"""PettingZoo's own tests of our face, and odd environments of others in our learner."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.base.errors import UserError
from holdfast.workloads.ecosystem import ppo
from holdfast.workloads.ecosystem.rules import Rules

pettingzoo = pytest.importorskip("pettingzoo", reason="the extra `ecosystem` is not installed")
gymnasium = pytest.importorskip("gymnasium")
from holdfast.workloads.ecosystem.anyworld import GroupLearner, groups, make  # noqa: E402
from holdfast.workloads.ecosystem.parallel import ParallelEcosystem  # noqa: E402

CPU = torch.device("cpu")
RULES = Rules(prey=8, predators=4, prey_capacity=20, predator_capacity=8, size=14.0)


@pytest.mark.all
def test_the_api_is_pettingzoos() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not everybody who could be born was: it says so
        from pettingzoo.test import parallel_api_test, parallel_seed_test

        parallel_api_test(ParallelEcosystem(RULES), num_cycles=150)
        parallel_seed_test(lambda: ParallelEcosystem(RULES, max_cycles=40), num_cycles=20)


def test_our_own_face_can_be_learned_in_like_any_other() -> None:
    worlds = [make("ecosystem", rules=RULES, max_cycles=20) for _ in range(2)]
    learner = GroupLearner(worlds, groups(worlds[0])["predator"], ppo.Recipe(minibatch=64), steps=20, hidden=16)
    first = learner.turn(CPU)
    assert first["agent_steps"] > 0 and np.isfinite(first["loss"])
    with pytest.raises(UserError, match="prey_99 cannot act"):
        worlds[0].reset(seed=0)
        worlds[0].step({"prey_99": 1})


class Odd:
    """Agents come and go; what they see and do can be set."""

    def __init__(self, sizes: dict[str, int], stranger: bool = False) -> None:
        self.possible_agents, self.sizes, self.stranger = list(sizes), sizes, stranger
        self.agents: list[str] = []
        self.time = 0

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(-1, 1, (self.sizes[agent],), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(3)

    def _see(self) -> dict[str, Any]:
        return {agent: np.zeros(self.sizes.get(agent, 2), np.float32) for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.agents = 0, self.possible_agents[:1]
        return self._see(), {}

    def step(self, actions: dict[str, int]) -> Any:
        self.time += 1
        before = self.agents
        self.agents = {1: self.possible_agents, 2: self.possible_agents[1:], 3: []}.get(self.time, before)
        self.agents = [*self.agents, "stranger_0"] if self.stranger else list(self.agents)
        gone = {agent: agent not in self.agents for agent in before}
        return self._see(), dict.fromkeys(before, 1.0), gone, dict.fromkeys(before, False), {}


def test_agents_that_come_and_go() -> None:
    world = Odd({"walker_0": 2, "walker_1": 2, "walker_2": 2})
    learner = GroupLearner([world], groups(world)["walker"], ppo.Recipe(minibatch=8), steps=10, hidden=8)
    found = learner.episodes(CPU, 0)
    assert found.steps == 3 and found.there.sum(axis=1)[:4].tolist() == [1, 3, 2, 0]
    assert found.ends[1].tolist() == [True, False, False] and found.ends[2].tolist() == [False, True, True]
    assert learner.turn(CPU)["agent_steps"] == 6


def test_environments_that_cannot_be_learned_in() -> None:
    with pytest.raises(UserError, match="called walker are not alike"):
        groups(Odd({"walker_0": 2, "walker_1": 3}))
    assert set(groups(Odd({"walker_0": 2, "runner_0": 3}))) == {"walker", "runner"}
    with pytest.raises(UserError, match="no agents"):
        groups(Odd({}))
    odd = Odd({"walker_0": 2}, stranger=True)
    learner = GroupLearner([odd], groups(odd)["walker"], ppo.Recipe(), steps=5, hidden=8)
    with pytest.raises(UserError, match="was not announced: stranger_0"):
        learner.turn(CPU)
    with pytest.raises(UserError, match="no environment `no_such_package`"):
        make("no_such_package")
    with pytest.raises(UserError, match="json is not an environment of PettingZoo"):
        make("json")
