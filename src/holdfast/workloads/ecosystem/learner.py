"""A learner: a world, a policy and an optimizer for each species, and one turn of learning.

    learner = Learner(Rules(), "small", Recipe(), seed=0)
    session.protect(**learner.protected())
    numbers = session.transaction(lambda: learner.turn(session.device))     # collect, then update both species

Everything that a turn changes is in `protected()`, so a turn that was broken off anywhere is undone as a whole. The
frozen opponents are loaded anew in each turn, from the league, which is protected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.workloads.ecosystem import ppo
from holdfast.workloads.ecosystem.policy import Policy, attention, size_of
from holdfast.workloads.ecosystem.rollout import Driver, Gathered, collect
from holdfast.workloads.ecosystem.rules import PREDATOR, PREY, SPECIES, Rules
from holdfast.workloads.ecosystem.self_play import League
from holdfast.workloads.ecosystem.vitals import Vitals
from holdfast.workloads.ecosystem.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How it is computed: what the tuner and the user decide, and what does not change what is learned."""

    precision: str = "fp32"
    attention: str = "auto"


class Learner:
    """Both species, and their world."""

    def __init__(
        self,
        rules: Rules,
        preset: str,
        recipe: ppo.Recipe,
        *,
        seed: int = 0,
        steps: int = 32,
        freeze: int = 10,
        way: Way | None = None,
    ) -> None:
        self.rules, self.recipe, self.steps, self.freeze = rules, recipe, steps, freeze
        """`freeze`: after so many turns a copy is frozen to play against; 0 for no self-play."""
        self.way = way or Way()
        self.world = World(rules, seed)
        size = size_of(preset)
        self.nets = {species: Policy(size) for species in (PREY, PREDATOR)}
        self.frozen = {species: Policy(size).requires_grad_(False) for species in (PREY, PREDATOR)}
        self.optimizers = {
            species: torch.optim.Adam(net.parameters(), lr=recipe.lr, eps=1e-5) for species, net in self.nets.items()
        }
        self.scales = {species: ppo.Scale() for species in (PREY, PREDATOR)}
        self.league, self.vitals = League(), Vitals()
        self.turns = 0

    def protected(self) -> dict[str, Any]:
        """What has to survive, by name."""
        named: dict[str, Any] = {
            "world": self.world,
            "league": self.league,
            "vitals": self.vitals,
            "cursor": Cursor(self),
        }
        for species, word in enumerate(SPECIES):
            named[word] = self.nets[species]
            named[f"{word}_optimizer"] = self.optimizers[species]
            named[f"{word}_scale"] = self.scales[species]
        return named

    def around(self, device: torch.device) -> Callable[[], Any]:
        """What every forward happens in: precision, and the kernel of the attention."""

        @contextlib.contextmanager
        def inside() -> Any:
            enabled = self.way.precision != "fp32"
            dtype = torch.float16 if self.way.precision == "fp16" else torch.bfloat16
            with torch.autocast(device.type, dtype=dtype, enabled=enabled), attention(self.way.attention, device):
                yield

        return inside

    def crew(self, device: torch.device) -> dict[int, Driver]:
        """Who acts: the policies, but in the first worlds one of the species is a frozen copy of its past."""
        drivers = {species: Driver(net) for species, net in self.nets.items()}
        if not self.freeze or self.rules.worlds < 4:
            return drivers
        if self.turns % self.freeze == 0:
            self.league.add(self.by_name(), self.turns)
        each = max(1, self.rules.worlds // 8)
        for species, driver in drivers.items():
            self.league.into(SPECIES[species], self.frozen[species], float(self.world.rng.random()))
            driver.other = self.frozen[species].to(device)
            driver.elsewhere = np.zeros(self.rules.worlds, bool)
            driver.elsewhere[species * each : (species + 1) * each] = True
        return drivers

    def by_name(self) -> dict[str, nn.Module]:
        return {SPECIES[species]: net for species, net in self.nets.items()}

    def turn(self, device: torch.device, alive: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Collect some steps of all worlds, then learn from them; returns the vitals."""
        around = self.around(device)
        gathered = collect(self.world, self.crew(device), self.steps, device, around=around, alive=alive)
        learned: dict[str, dict[str, float]] = {}
        for species, net in self.nets.items():
            told = self.learn(species, net, gathered, device, alive)
            if told:
                learned[SPECIES[species]] = told
        self.turns += 1
        return self.vitals.of(gathered, learned)

    def learn(
        self, species: int, net: Policy, gathered: Gathered, device: torch.device, alive: Callable[[], None]
    ) -> dict[str, float]:
        scale = self.scales[species]
        returns = gathered.discounted(species, self.rules.prey_capacity, self.recipe.gamma)
        scale.learn(returns)
        batch = gathered.batch(species, scale, self.recipe, device)
        if batch is None:
            return {}
        return ppo.update(net, self.optimizers[species], batch, self.recipe, self.around(device), alive)


class Cursor:
    """How many turns were taken, as something that can be protected."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def state_dict(self) -> dict[str, Any]:
        return {"turns": self._learner.turns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._learner.turns = int(state["turns"])
