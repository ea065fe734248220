"""The world for other trainers: PettingZoo's parallel API.

    env = ParallelEcosystem(Rules(worlds=1), max_cycles=300)
    observations, infos = env.reset(seed=7)
    observations, rewards, terminations, truncations, infos = env.step({agent: 9 for agent in env.agents})

Agents are called `prey_0` … and `predator_0` …; newborns get names that were not used before, as long as there are any.
An observation is a flat vector: what the animal knows of itself, then its neighbours one after the other. An episode is
over after `max_cycles`, or when one species has died out.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import UserError
from holdfast.workloads.ecosystem.rules import ACTIONS, PREDATOR, PREY, STAY, Rules
from holdfast.workloads.ecosystem.world import NEIGHBOUR_FEATURES, OWN_FEATURES, World

try:
    import gymnasium
    from pettingzoo import ParallelEnv
except ImportError:
    raise UserError(
        "the world's face for other trainers needs pettingzoo",
        cause="not installed",
        hints=["pip install 'holdfast[ecosystem]'"],
    ) from None

Observation = NDArray[np.float32]


class ParallelEcosystem(ParallelEnv):  # type: ignore[misc]
    """One world as an environment."""

    metadata: ClassVar[dict[str, Any]] = {
        "name": "holdfast_ecosystem_v0", "render_modes": ["rgb_array"], "is_parallelizable": True,
    }  # fmt: skip

    def __init__(self, rules: Rules | None = None, *, max_cycles: int = 300, render_mode: str | None = None) -> None:
        self.rules = dataclasses.replace(rules or Rules(), worlds=1, reuse_slots=False, reset=False, replace=False)
        self.max_cycles, self.render_mode = max_cycles, render_mode
        room = self.rules.prey_capacity
        self.possible_agents = [f"prey_{n}" for n in range(room)]
        self.possible_agents += [f"predator_{n}" for n in range(self.rules.predator_capacity)]
        self._slot = {name: at for at, name in enumerate(self.possible_agents)}
        wide = OWN_FEATURES + 2 * self.rules.seen * NEIGHBOUR_FEATURES
        self._seen = gymnasium.spaces.Box(-np.inf, np.inf, (wide,), np.float32)
        self._done = {name: gymnasium.spaces.Discrete(ACTIONS) for name in self.possible_agents}
        self.agents: list[str] = []
        self._seed = 0
        self._world = World(self.rules, 0)

    def observation_space(self, agent: str) -> Any:
        return self._seen

    def action_space(self, agent: str) -> Any:
        return self._done[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """A fresh world; without a seed, the one after the last."""
        self._seed = self._seed + 1 if seed is None else int(seed)
        self._world = World(self.rules, self._seed)
        self.agents = self._living()
        return self._observed(self.agents), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        before = list(self.agents)
        strangers = sorted(set(actions) - set(before))
        if strangers:
            raise UserError(f"{strangers[0]} cannot act", cause="it is not alive, or there never was such an agent")
        chosen = np.full(self._world.shape, float(STAY))
        for agent, action in actions.items():
            chosen[0, self._slot[agent]] = action
        happened = self._world.step(chosen)
        over = bool(happened.counts["extinctions"][0])
        late = int(self._world.time[0]) >= self.max_cycles
        now = self._living()
        there = list(dict.fromkeys([*before, *now]))
        rewards = {agent: float(happened.rewards[0, self._slot[agent]]) for agent in there}
        gone = {agent: bool(happened.gone[0, self._slot[agent]]) for agent in there}
        cut = {agent: (late or over) and not gone[agent] for agent in there}
        self.agents = [] if late or over else now
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in there}
        return self._observed(there), rewards, gone, cut, infos

    def _living(self) -> list[str]:
        return [self.possible_agents[slot] for slot in np.flatnonzero(self._world.alive[0])]

    def _observed(self, agents: list[str]) -> dict[str, Observation]:
        """What each of these sees; who is dead sees nothing."""
        found = {agent: np.zeros(self._seen.shape, np.float32) for agent in agents}
        wide = self._seen.shape[0] - OWN_FEATURES
        for species in (PREY, PREDATOR):
            sight = self._world.observe(species)
            rows = np.concatenate([sight.own, sight.others.reshape(len(sight.own), wide)], axis=1)
            for row, slot in zip(rows, sight.slot, strict=True):
                name = self.possible_agents[slot]
                if name in found:
                    found[name] = row
        return found

    def state(self) -> Observation:
        """The whole world as one vector."""
        world = self._world
        parts = [world.x, world.y, world.energy, world.alive, world.grass]
        return np.concatenate([np.asarray(part, np.float32).ravel() for part in parts])

    def render(self) -> Any:
        """An image of the world as an array, with render_mode="rgb_array"."""
        from holdfast.workloads.ecosystem import picture

        return np.asarray(picture.draw(picture.scene_of(self._world))) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.agents = []
