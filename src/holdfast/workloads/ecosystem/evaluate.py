"""Evaluation: how well do predators hunt, against whom, compared with dice, and how sure is that?

    found = duel(rules, {PREDATOR: net, PREY: None}, worlds=8, steps=150, seed=1000)     # None: dice
    found.catches                                    # for each world: catches per 100 steps of a predator
    mean, low, high = interval(found.catches)
    ratio(found.catches, dice.catches)               # how many times more, with its interval

Policies that learn together cannot be judged by their own return, because their opponents change: they are judged
against dice and against frozen copies, in worlds where who dies is replaced: a good hunter does not empty its map.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.workloads.ecosystem.rollout import Act, Driver, collect
from holdfast.workloads.ecosystem.rules import PREDATOR, PREY, Rules
from holdfast.workloads.ecosystem.world import World

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Duel:
    """One value for each world."""

    catches: Values
    """Per 100 steps of a predator."""
    attempts: Values
    survival: Values
    """The chance of a prey to live through 100 steps without being caught."""


def duel(
    rules: Rules,
    players: dict[int, Act | None],
    *,
    worlds: int = 8,
    steps: int = 100,
    seed: int = 1000,
    device: torch.device | None = None,
    around: Callable[[], Any] = contextlib.nullcontext,
) -> Duel:
    """Let these two meet in fresh worlds of constant populations. The same seed is the same beginning."""
    arena = dataclasses.replace(rules, worlds=worlds, replace=True)
    world = World(arena, seed)
    crew = {species: Driver(players[species]) for species in (PREY, PREDATOR)}
    gathered = collect(world, crew, steps, device or torch.device("cpu"), around=around)
    hunted = np.maximum(gathered.by_world["steps_predators"], 1)
    lived = np.maximum(gathered.by_world["steps_prey"], 1)
    caught = gathered.by_world["catches"]
    return Duel(100.0 * caught / hunted, 100.0 * gathered.by_world["attempts"] / hunted, (1.0 - caught / lived) ** 100)


def interval(values: Values, *, draws: int = 2000) -> tuple[float, float, float]:
    """The mean, and where it is with 95 % by drawing the worlds again (bootstrap)."""
    rng = np.random.default_rng(0)
    means = rng.choice(values, (draws, len(values))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def ratio(ours: Values, theirs: Values, *, draws: int = 2000) -> tuple[float, float, float]:
    """How many times more, with its interval; infinite if theirs is nothing."""
    rng = np.random.default_rng(0)
    mine = rng.choice(ours, (draws, len(ours))).mean(axis=1)
    other = rng.choice(theirs, (draws, len(theirs))).mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.where(other > 0, mine / other, np.inf)
        found = ours.mean() / theirs.mean() if theirs.mean() > 0 else np.inf
    low, high = np.sort(drawn)[[int(0.025 * draws), int(0.975 * draws) - 1]]
    return float(found), float(low), float(high)
