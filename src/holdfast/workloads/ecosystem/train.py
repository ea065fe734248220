"""Predators and prey that learn: PPO for both, in one run that survives whatever the hardware does.

    holdfast train ecosystem                               both species learn, from nothing
    holdfast train ecosystem preset=full updates=200       the large network
    holdfast train ecosystem attention=math                another kernel for the attention, if one is in doubt
    holdfast train ecosystem attempt_cost=0.5              see predators learn to do nothing, and the warning

One update is one transaction: steps of all worlds, then some epochs of PPO for each species. World, policies,
optimizers, normalisers, frozen opponents and every generator come back to the last update together, so that a run with
faults ends with the bits of one without. What is printed at the end is measured against dice, in fresh worlds.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch

import holdfast
from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.planning import measure
from holdfast.workloads.ecosystem import evaluate as judging
from holdfast.workloads.ecosystem import picture, ppo
from holdfast.workloads.ecosystem.learner import Learner, Way
from holdfast.workloads.ecosystem.policy import Policy, check_attention, parameters
from holdfast.workloads.ecosystem.rules import ACTIONS, PREDATOR, PREY, SPECIES, Rules
from holdfast.workloads.ecosystem.self_play import League
from holdfast.workloads.ecosystem.world import World

ABOUT, SCORES = "ecosystem.json", "scores.json"


def train(
    session: holdfast.Session,
    *,
    preset: str = "small",
    updates: int = 20,
    steps: int = 32,
    worlds: int = 8,
    prey: int = 32,
    predators: int = 16,
    size: float = 24.0,
    neighbours: int = 16,
    attempt_cost: float = 0.02,
    scent: float = 0.05,
    lr: float = 1e-3,
    epochs: int = 3,
    minibatch: int = 512,
    samples: int = 2048,
    entropy: float = 0.005,
    gamma: float = 0.95,
    freeze: int = 10,
    evaluate: int = 10,
    arena: int = 8,
    attention: str = "auto",
    tune: bool = True,
    precision: str = "",
    pieces: int = 0,
) -> None:
    """One run: worlds, policies, updates, scores."""
    if updates < 1 or steps < 1:
        raise UserError(f"updates is {updates} and steps {steps}", cause="both have to be 1 or more")
    if not 0 <= pieces <= minibatch:
        raise UserError(
            f"pieces is {pieces}", cause=f"a minibatch of {minibatch} can be cut into 1 to {minibatch}; 0: measured"
        )
    check_attention(attention, session.device)
    rules = Rules(
        worlds=worlds, size=size, prey=prey, predators=predators, prey_capacity=max(48, math.ceil(1.5 * prey)),
        predator_capacity=max(24, math.ceil(1.5 * predators)), neighbours=neighbours, attempt_cost=attempt_cost,
        scent=scent,
    )  # fmt: skip
    recipe = ppo.Recipe(lr=lr, epochs=epochs, minibatch=minibatch, most=samples, entropy=entropy, gamma=gamma)
    learner = Learner(rules, preset, recipe, seed=session.run.seed, steps=steps, freeze=freeze)
    count = parameters(*learner.nets.values())
    print(f"{preset}: {count:,} parameters for both species, {worlds} worlds of {prey} prey, {predators} predators")
    files.write_json(
        session.run.folder / ABOUT, {"schema": 1, "preset": preset, "rules": rules.to_json(), "attention": attention}
    )
    learner.recipe, learner.way = tuned(session, learner, updates, tune, precision, attention, pieces)
    session.protect(**learner.protected())

    film = picture.Film()

    def alive() -> None:  # a slow machine is not a hung one: an update may take minutes, a minibatch does not
        session.progress(learner.turns, updates, "update")
        film.look(learner.world)

    for _ in session.epochs(updates):
        film = picture.Film()
        numbers = session.transaction(lambda: learner.turn(session.device, alive))
        warning = learner.vitals.warning(numbers)
        if warning:
            print(warning, flush=True)
            numbers["attempts_collapsed"] = 1.0
        if evaluate and learner.turns % evaluate == 0 and learner.turns < updates:
            with session.evaluating():
                numbers |= _glance(session, learner, arena)
        session.log(**numbers)
        picture.live(session.run.folder, learner.world, learner.turns, numbers, film, learner.vitals.note)
    with session.evaluating():
        tell(session, learner, arena)


def tuned(
    session: holdfast.Session,
    learner: Learner,
    updates: int,
    tune: bool,
    precision: str,
    attention: str,
    pieces: int = 0,
) -> tuple[ppo.Recipe, Way]:
    """Precision, threads and pieces by the common tuner, on a real minibatch of this network."""
    import dataclasses

    recipe = learner.recipe
    some = Minibatch(learner.rules, recipe.minibatch, session.run.seed)
    trial = measure.Training(
        learner.nets[PREDATOR],
        lambda net, batch: ppo.loss(net, ppo.Batch.of(tuple(batch)), recipe)[0],
        some,
        batch=recipe.minibatch,
        lr=recipe.lr,
        steps=updates * 2 * recipe.epochs * max(1, recipe.most // recipe.minibatch),
    )
    fixed: dict[str, Any] = {"workers": 0} | ({"precision": precision} if precision else {})
    fixed |= {"pieces": pieces} if pieces else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CPU without bf16 says so at length; the tuner will not choose it
        choice = measure.for_session(session, trial, tuned=tune, fixed=fixed)
    return dataclasses.replace(recipe, pieces=choice.pieces), Way(precision=choice.precision, attention=attention)


class Minibatch(torch.utils.data.Dataset[tuple[torch.Tensor, ...]]):
    """What predators see in a fresh world; actions, advantages and returns by dice. Something to time a step on."""

    def __init__(self, rules: Rules, count: int, seed: int) -> None:
        sights = World(rules, seed).observe(PREDATOR)
        own, others = sights.own, sights.others
        if not len(own):  # no predators in these worlds
            sights = World(rules, seed).observe(PREY)
            own, others = sights.own, sights.others
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, len(own), count)
        self.own, self.others = torch.from_numpy(own[rows]), torch.from_numpy(others[rows])
        self.actions = torch.from_numpy(rng.integers(0, ACTIONS, count))
        self.numbers = torch.from_numpy(rng.normal(size=(3, count)).astype(np.float32))
        self.logp = torch.full((), -math.log(ACTIONS))

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        value, advantage, returned = self.numbers[:, index]
        return self.own[index], self.others[index], self.actions[index], self.logp, value, advantage, returned


def _glance(session: holdfast.Session, learner: Learner, arena: int) -> dict[str, float]:
    """A short look during training: catches against dice. It also decides which weights are the best."""
    if not learner.rules.prey or not learner.rules.predators:
        return {}
    around = learner.around(session.device)
    mine = learner.nets[PREDATOR]
    found = judging.duel(learner.rules, {PREY: None, PREDATOR: mine}, worlds=max(2, arena // 2), steps=50,
                         seed=2000, device=session.device, around=around)  # fmt: skip
    return {"valid_catches": float(found.catches.mean())}


def tell(session: holdfast.Session, learner: Learner, arena: int) -> None:
    """The scores, printed and kept: both policies against dice and against the first frozen copy."""
    rules, device = learner.rules, session.device
    if not rules.prey or not rules.predators:
        print("one species alone: there is nothing to catch, and no score")
        return
    past = first_copy(learner.league, learner.nets)
    found: dict[str, Any] = {}
    players: dict[str, dict[int, Any]] = {
        "dice": {PREY: None, PREDATOR: None},
        "predators": {PREY: None, PREDATOR: learner.nets[PREDATOR]},
        "prey": {PREY: learner.nets[PREY], PREDATOR: learner.nets[PREDATOR]},
        "frozen": {PREY: past[PREY].to(device), PREDATOR: learner.nets[PREDATOR]},
    }
    for name, who in players.items():
        found[name] = judging.duel(
            rules, who, worlds=max(2, arena), steps=100, seed=3000, device=device, around=learner.around(device)
        )
        session.progress(len(found), len(players), "measuring against dice")
    scores: dict[str, Any] = {
        "schema": 1,
        "run": session.run.name,
        "worlds": max(2, arena),
        **{f"catches_{name}": judging.interval(each.catches) for name, each in found.items()},
        **{f"attempts_{name}": judging.interval(each.attempts) for name, each in found.items()},
        "times_dice": judging.ratio(found["predators"].catches, found["dice"].catches),
        "times_dice_frozen_prey": judging.ratio(found["frozen"].catches, found["dice"].catches),
    }
    files.write_json(session.run.folder / SCORES, scores)
    for line in lines(scores):
        print(line, flush=True)
    session.log(times_dice=scores["times_dice"][0], catches=scores["catches_predators"][0])


def first_copy(league: League, nets: dict[int, Policy]) -> dict[int, Policy]:
    """The policies as they were when nothing was learned; those of now, if no copy was kept."""
    import copy

    found = {species: copy.deepcopy(net) for species, net in nets.items()}
    if len(league):
        for species, net in found.items():
            league.into(SPECIES[species], net, 0.0)
    return found


def lines(scores: dict[str, Any]) -> list[str]:
    """The scores as a person reads them."""

    def told(key: str) -> str:
        mean, low, high = scores[key]
        return f"{mean:.2f} [{low:.2f}, {high:.2f}]"

    return [
        f"catches per 100 steps of a predator, {scores['worlds']} fresh worlds, constant populations",
        f"  predators of this run   {told('catches_predators')}   {told('times_dice')} times those of dice",
        f"  predators by dice       {told('catches_dice')}",
        f"  against the prey of this run       {told('catches_prey')}",
        f"  against its first, frozen prey     {told('catches_frozen')}",
        f"  attempts                {told('attempts_predators')}, by dice {told('attempts_dice')}",
    ]
