"""The ecosystem's figures: how much quicker than one animal at a time, where the time goes, and what is learned.

    python benchmarks/bench.py --parts ecosystem            # speeds: two minutes on a quiet core
    python benchmarks/bench.py --parts hunting              # learning, three seeds of each: twelve minutes on two

Speeds are ratios of CPU time, of variants that take turns in one process. What it is compared with is the usual way to
begin: the same network and the same weights, keys and values of every neighbour, one animal after the other. What is
learned is that of `holdfast train ecosystem` as anybody types it, by the clock.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Bound, at_most, say, train
from torch import Tensor, nn

from holdfast.workloads.ecosystem import ppo, reference
from holdfast.workloads.ecosystem.learner import Learner
from holdfast.workloads.ecosystem.policy import SIZES, Policy
from holdfast.workloads.ecosystem.rollout import Driver, collect
from holdfast.workloads.ecosystem.rules import PREDATOR, PREY, Rules
from holdfast.workloads.ecosystem.world import World

CPU = torch.device("cpu")
ROLLOUT = {"full": 8.0, "small": 10.0}
LOOP = 2.5


def measure(scratch: Path, quick: bool) -> dict[str, Any]:
    """Roll-outs and the whole loop beside one animal at a time, and the world's share of it."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for preset in ("tiny",) if quick else ("small", "full"):
        found[preset] = speeds(preset, rounds=1 if quick else 3)
        say(f"  {preset}: {found[preset]}")
    return found


def bounds(measured: dict[str, Any]) -> list[Bound]:
    kept = []
    for preset in (name for name in ROLLOUT if name in measured):
        row, least = measured[preset], ROLLOUT[preset]
        kept += [
            _at_least(f"times the speed of one animal at a time, roll-outs, {preset}", row["rollout_ratio"], least),
            _at_least(f"times its speed, the whole loop, {preset}", row["loop_ratio"], LOOP),
            at_most(f"part of the loop that the world takes, {preset}", row["world_share"], 0.2, quick=False),
        ]
    return kept


def hunting(scratch: Path, quick: bool) -> dict[str, Any]:
    """What predators learn in the default run, beside dice, and MAgent2's pursuit beside a plain PPO."""
    rows = [learn(seed, scratch, quick=quick) for seed in range(1 if quick else 3)]
    torch.set_num_threads(1)
    return {
        "learning": rows,
        "times_dice_over_seeds": _over_seeds([row["times_dice"][0] for row in rows]),
        "pursuit": pursuit(seeds=1 if quick else 3, updates=2 if quick else 24),
        "tiger_deer": tiger_deer(updates=1 if quick else 24),
    }


def hunting_bounds(measured: dict[str, Any]) -> list[Bound]:
    learned = measured["learning"]
    worst, low = min(row["times_dice"][1] for row in learned), measured["times_dice_over_seeds"][1]
    kept = [
        at_most("seconds of `holdfast train ecosystem`, slowest seed", max(row["seconds"] for row in learned), 120.0,
                quick=False),
        _at_least("times the catches of dice, low end of the interval over worlds, worst seed", worst, 1.5),
        _at_least("times the catches of dice, low end of the interval over seeds", low, 1.5),
    ]  # fmt: skip
    rows = measured["pursuit"]
    if rows:
        worst = min(row["times"] for row in rows)
        kept.append(_at_least("times the tags of dice within 600k steps, worst seed", worst, 5.0))
        kept.append(at_most("predator-steps it took", max(row["agent_steps"] for row in rows), 600_000))
        ratio = max(row["cpu_s"] / row["plain_cpu_s"] for row in rows)
        kept.append(at_most("CPU time over that of a plain PPO beside it", round(ratio, 3), 1.0, quick=False))
    return kept


def _at_least(what: str, measured: float, limit: float) -> Bound:
    return Bound(what, measured, f">= {limit}", measured >= limit, False)


# How quick --------------------------------------------------------------------------------------------------


def speeds(preset: str, *, rounds: int, steps: int = 4) -> dict[str, Any]:
    """The same worlds, weights and samples for both; they take turns."""
    torch.manual_seed(0)
    rules = Rules(worlds=4)
    learner = Learner(rules, preset, ppo.Recipe(), seed=0, steps=steps, freeze=0)
    slow = {species: _one_by_one(net) for species, net in learner.nets.items()}
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        variants: list[tuple[str, dict[int, Any]]] = [("ours", dict(learner.nets)), ("one", dict(slow))]
        for name, acts in variants if number % 2 else variants[::-1]:
            crew = {species: Driver(act) for species, act in acts.items()}
            world = World(rules, 1)
            torch.manual_seed(1)
            began = time.process_time()
            gathered = collect(world, crew, steps, CPU)
            times.setdefault(f"rollout_{name}", []).append(time.process_time() - began)
        batches = {species: gathered.batch(species, ppo.Scale(), learner.recipe, CPU) for species in learner.nets}
        for name, form in (("ours", _ours), ("one", _usual)):
            began = time.process_time()
            for species, net in learner.nets.items():
                batch = batches[species]
                assert batch is not None
                _train_once(form(net), net, batch, learner.recipe)
            times.setdefault(f"update_{name}", []).append(time.process_time() - began)
        times.setdefault("world", []).append(_world_alone(rules, steps))
    middle = {name: statistics.median(values) for name, values in times.items()}
    epochs = learner.recipe.epochs
    # an update has `epochs` passes; one pass is timed
    loop = {name: middle[f"rollout_{name}"] + epochs * middle[f"update_{name}"] for name in ("ours", "one")}
    return {
        "rollout_ratio": round(middle["rollout_one"] / middle["rollout_ours"], 2),
        "loop_ratio": round(loop["one"] / loop["ours"], 2),
        "world_share": round(middle["world"] / loop["ours"], 4),
        "seconds": {name: round(value, 4) for name, value in middle.items()},
        "basis": "CPU time, medians of rounds that took turns, one thread, fp32",
    }


def _one_by_one(net: Policy) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda own, others: reference.one_at_a_time(net, own, others)


def _ours(net: Policy) -> Callable[..., Any]:
    return net


def _usual(net: Policy) -> Callable[..., Any]:
    """The update was batched in the first version too; only the attention was the usual one."""
    return lambda own, others: reference.usual_forward(net, own, others)


def _train_once(form: Callable[..., Any], net: nn.Module, batch: ppo.Batch, recipe: ppo.Recipe) -> None:
    for part in torch.arange(len(batch)).split(recipe.minibatch):
        net.zero_grad()
        ppo.loss(form, batch.rows(part), recipe)[0].backward()


def _world_alone(rules: Rules, steps: int) -> float:
    world, rng = World(rules, 1), np.random.default_rng(0)
    began = time.process_time()
    for _ in range(steps):
        world.observe(PREY)
        world.observe(PREDATOR)
        world.step(rng.integers(0, 10, world.shape))
    return time.process_time() - began


# What is learned --------------------------------------------------------------------------------------------


def learn(seed: int, scratch: Path, *, quick: bool) -> dict[str, Any]:
    """`holdfast train ecosystem` as it is, to its end: what its predators catch beside dice, and how long it took."""
    words = [f"run.seed={seed}", *(["preset=tiny", "updates=2", "steps=8", "arena=2", "tune=false"] if quick else [])]
    began = time.monotonic()
    summary = train(words, scratch / f"seed-{seed}", job=Path("ecosystem"), patience=1200.0)
    took = time.monotonic() - began
    scores = json.loads((Path(summary["folder"]) / "scores.json").read_text())
    row = {
        "seed": seed,
        "updates": summary["receipt"]["steps"],
        "seconds": round(took, 1),
        **{key: _round(scores[key]) for key in ("catches_predators", "catches_dice", "attempts_predators")},
        "times_dice": _round(scores["times_dice"]),
        "times_dice_frozen_prey": _round(scores["times_dice_frozen_prey"]),
    }
    say(f"  seed {seed}: {row['times_dice']} times dice, {row['seconds']} s")
    return row


def _over_seeds(values: list[float]) -> list[float]:
    """The mean over seeds and its interval of 95 %, by Student's t: seeds are few."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return [round(mean, 3), round(mean, 3), round(mean, 3)]
    t = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}[len(values)]
    half = t * statistics.stdev(values) / len(values) ** 0.5
    return [round(mean, 3), round(mean - half, 3), round(mean + half, 3)]


def _round(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values]


RECIPE = ppo.Recipe(lr=1e-3, epochs=2, minibatch=2048, most=0, entropy=0.01, gamma=0.95, lam=0.9, stop_at=0.0)
PLAIN = dataclasses.replace(RECIPE, lr=5e-4, epochs=4, gamma=0.99, lam=0.95, value_clip=0.0)
"""The usual settings, in the same loop: four epochs, and a horizon five times as long."""


def pursuit(*, seeds: int, updates: int) -> list[dict[str, Any]]:
    """MAgent2's adversarial_pursuit: tags per predator and episode within 600k predator-steps, beside a plain PPO."""
    rows = []
    for seed in range(1, seeds + 1):
        mine, plain = _pursue(seed, updates, RECIPE), _pursue(seed, updates, PLAIN)
        if not mine:
            return []
        rows.append({**mine, "plain_times": plain["times"], "plain_cpu_s": plain["cpu_s"]})
        say(f"  pursuit, seed {seed}: {rows[-1]}")
    return rows


def _pursue(seed: int, updates: int, recipe: ppo.Recipe, name: str = "adversarial_pursuit") -> dict[str, Any]:
    from holdfast.workloads.ecosystem.anyworld import GroupLearner, groups, make

    try:
        options = {"tag_penalty": 0.0} if name == "adversarial_pursuit" else {}
        worlds = [make(name, map_size=45, max_cycles=150, **options) for _ in range(4)]
    except Exception as error:
        say(f"  {name} is left out: {error}")
        return {}
    there = groups(worlds[0])
    torch.manual_seed(seed)
    learner = GroupLearner(worlds, there.get("predator") or there["tiger"], recipe, seed=seed)
    dice = []
    for number in range(3):
        found = learner.episodes(CPU, 50_000 + 10 * number, dice=True)
        dice.append(learner.numbers_of(found)["rewarded"])
    began, steps, curve = time.process_time(), 0.0, []
    for _ in range(updates):
        numbers = learner.turn(CPU)
        steps += numbers["agent_steps"]
        curve.append(numbers["rewarded"])
    took = time.process_time() - began
    last = statistics.mean(curve[-3:])
    by_dice = statistics.mean(dice)
    return {
        "seed": seed,
        "agent_steps": int(steps),
        "tags": round(last, 3),
        "tags_dice": round(by_dice, 3),
        "times": round(last / by_dice, 2) if by_dice else 0.0,
        "cpu_s": round(took, 1),
        "curve": [round(value, 2) for value in curve[::4]],
    }


def tiger_deer(*, updates: int) -> dict[str, Any]:
    """The hard one: two tigers have to attack together. Whatever it is."""
    return _pursue(1, updates, RECIPE, "tiger_deer")


assert set(ROLLOUT) <= set(SIZES)
