"""The world: one future for one seed, and a defined answer to whatever is done to it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.ecosystem.neighbours import Nearest, without_self
from holdfast.workloads.ecosystem.rules import ACT, PREDATOR, PREY, STAY, Rules
from holdfast.workloads.ecosystem.world import World

SMALL = Rules(worlds=3, size=14.0, prey=10, predators=5, prey_capacity=16, predator_capacity=8)


def actions(world: World, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 10, world.shape)


def same(one: World, other: World) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    arrays = all(np.array_equal(mine["arrays"][name], theirs["arrays"][name]) for name in mine["arrays"])
    return arrays and mine["generator"] == theirs["generator"]


def test_a_seed_has_one_future() -> None:
    one, other, third = World(SMALL, 3), World(SMALL, 3), World(SMALL, 4)
    for step in range(40):
        for world in (one, other, third):
            world.step(actions(world, step))
    assert same(one, other)
    assert not same(one, third)


def test_a_saved_world_goes_on_as_if_nothing_had_been() -> None:
    world = World(SMALL, 5)
    for step in range(20):
        world.step(actions(world, step))
    twin = World(SMALL, 99)
    twin.load_state_dict(world.state_dict())
    for step in range(20, 60):
        mine, theirs = world.observe(PREY), twin.observe(PREY)
        assert np.array_equal(mine.own, theirs.own) and np.array_equal(mine.others, theirs.others)
        world.step(actions(world, step))
        twin.step(actions(twin, step))
    assert same(world, twin)
    with pytest.raises(UserError, match="does not fit"):
        World(Rules(worlds=1, size=14.0)).load_state_dict(world.state_dict())


def test_the_tree_finds_what_comparing_all_pairs_finds() -> None:
    pytest.importorskip("scipy")
    rng = np.random.default_rng(0)
    x, y = (rng.random(200, dtype=np.float32) * 10 for _ in range(2))
    world = rng.integers(0, 3, 200)
    found = [Nearest(x, y, world, size=10.0, tree=tree)(x, y, world, k=6, within=2.0) for tree in (True, False)]
    (index, there), (index_all, there_all) = found
    assert np.array_equal(there, there_all)
    assert np.array_equal(index[there], index_all[there])
    assert (world[index][there] == np.repeat(world, 6).reshape(200, 6)[there]).all()
    index, there = without_self(index, there, np.arange(200))
    assert index.shape == (200, 5) and not (index == np.arange(200)[:, None])[there].any()


def test_neighbours_are_seen_across_the_edge() -> None:
    rules = Rules(worlds=1, size=14.0, prey=1, predators=1, prey_capacity=1, predator_capacity=1)
    world = World(rules, 0)
    world.x[0], world.y[0] = [0.1, 13.9], [7.0, 7.0]
    world._near = None
    seen = world.observe(PREDATOR).others[0]
    prey = seen[seen[:, 12] == 1.0]
    assert len(prey) == 1
    assert prey[0, 0] * rules.sight == pytest.approx(0.2, abs=1e-4)
    assert prey[0, 7] == 1.0 and prey[0, 6] == 1.0  # it is prey, and in reach


def test_a_lunge_in_reach_catches_once() -> None:
    rules = Rules(worlds=1, size=14.0, prey=2, predators=2, prey_capacity=2, predator_capacity=2, reset=False)
    world = World(rules, 0)
    world.x[0], world.y[0] = [5.0, 11.0, 5.1, 5.3], [5.0, 11.0, 5.0, 5.0]
    chosen = np.full(world.shape, STAY)
    chosen[0, 2:] = ACT
    happened = world.step(chosen)
    assert happened.counts["attempts"][0] == 2 and happened.counts["catches"][0] == 1
    assert world.alive[0].tolist() == [False, True, True, True] and happened.gone[0, 0]
    assert happened.rewards[0, 2] > 0.9 > happened.rewards[0, 3]  # the nearer one has it


def test_everyone_dies() -> None:
    mortal = Rules(worlds=2, size=14.0, prey=3, predators=3, prey_capacity=4, predator_capacity=4, living=0.5)
    world = World(mortal, 0)
    happened = [world.step(np.full(world.shape, STAY)) for _ in range(3)]
    assert sum(each.counts["extinctions"].sum() for each in happened) >= 2
    assert (world.population().sum(axis=1) > 0).all(), "worlds begin anew"
    stays = World(Rules(worlds=1, size=14.0, prey=3, predators=3, living=0.5, reset=False), 0)
    for _ in range(5):
        stays.step(np.full(stays.shape, STAY))
    assert stays.population().sum() == 0
    assert stays.observe(PREY).own.shape == (0, 13) and stays.observe(PREDATOR).others.shape[0] == 0


def test_more_births_than_there_is_room_for() -> None:
    fertile = Rules(worlds=1, size=14.0, prey=6, predators=1, prey_capacity=8, predator_capacity=1, birth=0.1, adult=0)
    world = World(fertile, 1)
    happened = world.step(np.full(world.shape, STAY))
    assert world.population()[0, PREY] == 8
    assert happened.counts["births"][0] == 2 and happened.counts["births_refused"][0] == 5  # 4 prey, 1 predator
    assert world.alive.sum() == 9


@pytest.mark.parametrize("bad", [np.nan, -1, 10, 2.5, np.inf])
def test_actions_that_are_none_are_refused_before_anything_moves(bad: float) -> None:
    world, twin = World(SMALL, 2), World(SMALL, 2)
    chosen = np.zeros(world.shape)
    chosen[1, 3] = bad
    with pytest.raises(UserError, match="1 of 45 actions do not exist") as refused:
        world.step(chosen)
    assert "world 1, slot 3, one of the prey" in str(refused.value.cause)
    assert same(world, twin)
    with pytest.raises(UserError, match="shape"):
        world.step(np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"prey": 0, "predators": 0}, "without animals"),
        ({"prey": -1}, "prey is -1"),
        ({"worlds": 0}, "worlds is 0"),
        ({"prey": 50, "prey_capacity": 10}, "50 prey do not fit"),
        ({"size": float("nan")}, "size is nan"),
        ({"sight": 9.0}, "sight is 9.0"),
    ],
)
def test_rules_that_cannot_be(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Rules(**{"size": 14.0, **wrong})


def test_one_species_alone_is_a_world() -> None:
    world = World(Rules(worlds=2, size=14.0, prey=5, predators=0), 0)
    for step in range(10):
        happened = world.step(actions(world, step))
    assert happened.counts["extinctions"].sum() == 0 and world.observe(PREDATOR).own.shape[0] == 0


def test_who_dies_is_replaced_where_policies_are_compared() -> None:
    world = World(Rules(worlds=2, size=14.0, prey=8, predators=6, replace=True, living=0.2), 0)
    for step in range(30):
        world.step(actions(world, step))
    assert (world.population() == [8, 6]).all()


def test_rules_of_a_run_folder_may_be_anybodys() -> None:
    assert Rules.from_json(json.loads(json.dumps(SMALL.to_json()))) == SMALL
    for bad in (None, [], {"prey": "many"}, {"size": None}, {"worlds": 10**9}, {"reset": 1}):
        with pytest.raises(UserError):
            Rules.from_json(bad)
