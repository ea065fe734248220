"""Collecting experience: the world and its policies, step by step, all prey in one forward and all predators in one.

    crew = {PREY: Driver(prey_net), PREDATOR: Driver(predator_net)}
    gathered = collect(world, crew, steps=32, device=session.device)
    gathered.batch(PREY, scale, recipe)              # a ppo.Batch, rewards normalised, advantages computed

A driver says who acts for a species, and in which worlds somebody else does: a frozen earlier policy, or dice. What
others did is not learned from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.workloads.ecosystem import ppo
from holdfast.workloads.ecosystem.rules import ACTIONS, PREDATOR, PREY, SPECIES, STAY
from holdfast.workloads.ecosystem.world import COUNTS, Floats, Ints, Mask, Sight, World

Act = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(own, others) to (logits, value)."""
Around = Callable[[], Any]


@dataclass(slots=True)
class Driver:
    """Who acts for a species."""

    act: Act | None
    """None: dice."""
    other: Act | None = None
    """Who acts in the worlds below."""
    elsewhere: Mask | None = None
    """(worlds,): there the other one acts."""


@dataclass(slots=True)
class Track:
    """What one species did, step by step; flat arrays of different length for each step."""

    own: list[Tensor] = field(default_factory=list)
    others: list[Tensor] = field(default_factory=list)
    actions: list[Tensor] = field(default_factory=list)
    logps: list[Tensor] = field(default_factory=list)
    where: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    """(step, world, slot) of each row."""


class Gathered:
    """What some steps brought."""

    def __init__(self, world: World, steps: int) -> None:
        shape = (steps, *world.shape)
        self.rewards, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.ends, self.cuts, self.there = (np.zeros(shape, bool) for _ in range(3))
        self.last = np.zeros(world.shape, np.float32)
        self.room = world.rules.prey_capacity
        self.tracks = {PREY: Track(), PREDATOR: Track()}
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self.steps_of = {PREY: 0, PREDATOR: 0}
        """Steps that animals of a species have lived through, all of them together."""
        self.population = np.zeros(2)
        self.by_world: dict[str, Ints] = {}
        """The same for each world, and the steps lived through: `steps_prey`, `steps_predators`."""

    def add(self, name: str, count: Ints) -> None:
        before = self.by_world.get(name)
        self.by_world[name] = count.copy() if before is None else before + count

    def batch(self, species: int, scale: ppo.Scale, recipe: ppo.Recipe, device: torch.device) -> ppo.Batch | None:
        """What the species has to learn from; None if nobody of it was there."""
        track = self.tracks[species]
        if not track.actions:
            return None
        rows = tuple(np.concatenate([each[axis] for each in track.where]) for axis in range(3))
        advantages, returns = ppo.gae(
            self.rewards / np.float32(max(float(scale.spread[0]), 1e-3)), self.values, self.ends, self.cuts, self.there,
            self.last, gamma=recipe.gamma, lam=recipe.lam,
        )  # fmt: skip
        batch = ppo.Batch(
            (torch.cat(track.own), torch.cat(track.others)),
            torch.cat(track.actions),
            torch.cat(track.logps),
            *(torch.from_numpy(each[rows]).to(device) for each in (self.values, advantages, returns)),
        )
        some = ppo.thinned(len(batch), recipe.most)
        return batch if some is None else batch.rows(some.to(device))

    def discounted(self, species: int, room: int, gamma: float) -> Floats:
        """Returns without any value function: what their spread is learned from."""
        part = np.s_[:, :, :room] if species == PREY else np.s_[:, :, room:]
        rewards, ends, there = self.rewards[part], self.ends[part] | self.cuts[part], self.there[part]
        total, found = np.zeros_like(rewards[0]), []
        for t in range(len(rewards) - 1, -1, -1):
            total = rewards[t] + np.float32(gamma) * total * ~ends[t]
            found.append(total[there[t]])
        return np.concatenate(found)


def collect(
    world: World,
    crew: dict[int, Driver],
    steps: int,
    device: torch.device,
    *,
    around: Around = contextlib.nullcontext,
    alive: Callable[[], None] = lambda: None,
) -> Gathered:
    """So many steps of all worlds. `alive` is called before each step: a sign of life."""
    gathered = Gathered(world, steps)
    with torch.no_grad():
        for step in range(steps):
            alive()
            gathered.there[step] = world.alive
            gathered.population += world.population().sum(axis=0) / (steps * world.rules.worlds)
            actions = np.full(world.shape, STAY, np.int64)
            for species, driver in crew.items():
                _act(world, species, driver, step, gathered, actions, device, around)
            happened = world.step(actions)
            gathered.rewards[step] = happened.rewards
            gathered.ends[step], gathered.cuts[step] = happened.gone, happened.cut
            for name, count in happened.counts.items():
                gathered.counts[name] += int(count.sum())
                gathered.add(name, count)
        for species, driver in crew.items():
            _judge(world, species, driver, gathered, device, around)
    return gathered


def _act(
    world: World,
    species: int,
    driver: Driver,
    step: int,
    gathered: Gathered,
    actions: Ints,
    device: Any,
    around: Around,
) -> None:
    sight = world.observe(species)
    gathered.steps_of[species] += len(sight.slot)
    gathered.add(f"steps_{SPECIES[species]}", np.bincount(sight.world, minlength=world.rules.worlds))
    away = np.zeros(len(sight.slot), bool) if driver.elsewhere is None else driver.elsewhere[sight.world]
    for mine, act in ((~away, driver.act), (away, driver.other)):
        if not mine.any():
            continue
        where = (sight.world[mine], sight.slot[mine])
        if act is None:
            actions[where] = world.rng.integers(0, ACTIONS, int(mine.sum()))
            continue
        own, others = _tensors(sight, mine, device)
        with around():
            logits, value = act(own, others)
        chosen, logps = ppo.sample(logits, SPECIES[species])
        actions[where] = chosen.cpu().numpy()
        if act is driver.act and driver.act is not None:
            gathered.values[step][where] = value.cpu().numpy()
            track = gathered.tracks[species]
            track.own.append(own)
            track.others.append(others)
            track.actions.append(chosen)
            track.logps.append(logps)
            track.where.append((np.full(len(where[0]), step), *where))


def _judge(world: World, species: int, driver: Driver, gathered: Gathered, device: Any, around: Around) -> None:
    """The value of where they are now, for the advantages of the last step."""
    if driver.act is None:
        return
    sight = world.observe(species)
    if len(sight.slot):
        own, others = _tensors(sight, np.ones(len(sight.slot), bool), device)
        with around():
            _, value = driver.act(own, others)
        gathered.last[sight.world, sight.slot] = value.cpu().numpy()


def _tensors(sight: Sight, mine: Mask, device: Any) -> tuple[Tensor, Tensor]:
    if mine.all():
        return torch.from_numpy(sight.own).to(device), torch.from_numpy(sight.others).to(device)
    return torch.from_numpy(sight.own[mine]).to(device), torch.from_numpy(sight.others[mine]).to(device)
