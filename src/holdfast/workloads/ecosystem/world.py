"""The world: prey, predators and grass on a round map, many worlds at once, each step a few operations on arrays.

    world = World(Rules(worlds=4), seed=7)
    sight = world.observe(PREY)                      # what each living one sees: features, neighbours, where it is kept
    actions = np.full(world.shape, STAY)
    actions[sight.world, sight.slot] = ...           # 0 stay, 1-8 move, 9 graze or lunge
    happened = world.step(actions)                   # rewards, who is gone, and counts of attempts, catches, births…

Every animal has a slot in arrays of the shape (worlds, slots), prey first; `alive` says which slots are somebody. All
randomness comes from one generator, so that a state and its actions have one future; `state_dict` holds all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import UserError
from holdfast.workloads.ecosystem.neighbours import Nearest, without_self
from holdfast.workloads.ecosystem.rules import ACT, ACTIONS, PREDATOR, PREY, SPECIES, Rules

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

ANGLES = np.arange(8) * (np.pi / 4)
STEPS = np.zeros((ACTIONS, 2), np.float32)
STEPS[1:9] = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
"""The direction of each action; staying and acting go nowhere."""
AROUND = np.round(2 * STEPS[1:9]).astype(np.int64)
"""The cells whose grass an animal sees, beside its own."""

OWN_FEATURES = 13
NEIGHBOUR_FEATURES = 13
COUNTS = ("attempts", "catches", "births", "births_refused", "starved", "old", "extinctions", "grazed")


@dataclass(frozen=True, slots=True)
class Sight:
    """What the living ones of a species see, one row each."""

    own: Floats
    """(animals, OWN_FEATURES): energy, age, grass here and around, where it is going."""
    others: Floats
    """(animals, neighbours, NEIGHBOUR_FEATURES); the last feature is 1 for somebody and 0 for nobody."""
    world: Ints
    slot: Ints


@dataclass(slots=True)
class Happened:
    """What a step brought; arrays are (worlds, slots) and speak of who was there before it."""

    rewards: Floats
    gone: Mask
    """Died in this step."""
    cut: Mask
    """Lived on, but its world begins anew."""
    counts: dict[str, Ints] = field(default_factory=dict)
    """For each world: attempts, catches, births, …"""


class World:
    """So many worlds, with one generator."""

    def __init__(self, rules: Rules, seed: int = 0) -> None:
        self.rules = rules
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.shape = (rules.worlds, rules.slots)
        self.cells = max(1, round(rules.size))
        self.is_prey = np.broadcast_to(np.arange(rules.slots) < rules.prey_capacity, self.shape)
        self.x, self.y, self.energy = (np.zeros(self.shape, np.float32) for _ in range(3))
        self.heading = np.zeros((*self.shape, 2), np.float32)
        self.age = np.zeros(self.shape, np.int64)
        self.alive = np.zeros(self.shape, bool)
        self.used = np.zeros(self.shape, bool)
        self.grass = np.zeros((rules.worlds, self.cells, self.cells), np.float32)
        self.time = np.zeros(rules.worlds, np.int64)
        self._near: tuple[Any, ...] | None = None
        self.begin(np.ones(rules.worlds, bool))

    def begin(self, which: Mask) -> None:
        """These worlds begin anew."""
        rules, count = self.rules, int(which.sum())
        if not count:
            return
        place = np.zeros(rules.slots, bool)
        place[: rules.prey] = True
        place[rules.prey_capacity : rules.prey_capacity + rules.predators] = True
        drawn = self.rng.random((5, count, rules.slots), dtype=np.float32)
        self.alive[which] = self.used[which] = place
        self.x[which], self.y[which] = self._around(drawn[0] * rules.size), self._around(drawn[1] * rules.size)
        self.energy[which] = 0.4 + 0.4 * drawn[2]
        self.heading[which] = STEPS[1 + (drawn[3] * 8).astype(np.int64) % 8]
        self.age[which] = (drawn[4] * rules.lifetime * 0.5).astype(np.int64)
        self.grass[which] = 0.4 + 0.6 * self.rng.random((count, self.cells, self.cells), dtype=np.float32)
        self.time[which] = 0
        self._near = None

    def _around(self, place: Floats) -> Floats:
        """Onto the map, whose edges meet; rounding may give the edge itself, which is the other one."""
        wrapped = np.mod(place, np.float32(self.rules.size))
        return np.where(wrapped >= self.rules.size, np.float32(0.0), wrapped).astype(np.float32)

    def population(self) -> Ints:
        """(worlds, species): who lives."""
        return np.stack([(self.alive & self.is_prey).sum(1), (self.alive & ~self.is_prey).sum(1)], axis=1)

    # -- what they see -------------------------------------------------------------------------------------------

    def observe(self, species: int) -> Sight:
        """What each living one of a species sees now."""
        rules, size = self.rules, np.float32(self.rules.size)
        groups = self._groups()
        world, slot = groups[species]
        x, y = self.x[world, slot], self.y[world, slot]
        parts = []
        for kind in (PREY, PREDATOR):
            there, finder = groups[kind], groups[kind + 2]
            same = kind == species
            index, found = finder(x, y, world, k=rules.seen + same, within=rules.sight)
            if same:
                index, found = without_self(index, found, np.arange(len(x)))
            parts.append(self._seen(x, y, there[0], there[1], index, found, kind, size))
        return Sight(self._own(world, slot), np.concatenate(parts, axis=1), world, slot)

    def _groups(self) -> tuple[Any, ...]:
        """The living of each species as flat arrays, and a finder for each; made once a step."""
        if self._near is None:
            kinds = [np.nonzero(self.alive & mask) for mask in (self.is_prey, ~self.is_prey)]
            finders = [Nearest(self.x[w, s], self.y[w, s], w.astype(np.int64), size=self.rules.size) for w, s in kinds]
            self._near = (*kinds, *finders)
        return self._near

    def _own(self, world: Ints, slot: Ints) -> Floats:
        cell_x, cell_y = self._cell(world, slot)
        own = np.empty((len(world), OWN_FEATURES), np.float32)
        own[:, 0] = self.energy[world, slot]
        own[:, 1] = self.age[world, slot] / self.rules.lifetime
        own[:, 2:4] = self.heading[world, slot]
        own[:, 4] = self.grass[world, cell_x, cell_y]
        near_x = (cell_x[:, None] + AROUND[:, 0]) % self.cells
        near_y = (cell_y[:, None] + AROUND[:, 1]) % self.cells
        own[:, 5:13] = self.grass[world[:, None], near_x, near_y]
        return own

    def _cell(self, world: Ints, slot: Ints) -> tuple[Ints, Ints]:
        per = self.cells / self.rules.size
        return tuple((each[world, slot] * per).astype(np.int64) % self.cells for each in (self.x, self.y))  # type: ignore[return-value]

    def _seen(
        self, x: Floats, y: Floats, world: Ints, slot: Ints, index: Ints, found: Mask, kind: int, size: np.float32
    ) -> Floats:
        """Features of the animals at `index`, as somebody at x, y sees them; zeros for nobody."""
        features = np.zeros((*index.shape, NEIGHBOUR_FEATURES), np.float32)
        if not len(world):
            return features
        w, s = world[index], slot[index]
        half = size / 2
        dx = np.mod(self.x[w, s] - x[:, None] + half, size) - half
        dy = np.mod(self.y[w, s] - y[:, None] + half, size) - half
        apart = np.sqrt(dx * dx + dy * dy)
        safe = np.maximum(apart, np.float32(1e-6))
        sight, reach = np.float32(self.rules.sight), np.float32(max(self.rules.reach, 1e-3))
        features[..., 0], features[..., 1], features[..., 2] = dx / sight, dy / sight, apart / sight
        features[..., 3], features[..., 4] = dx / safe, dy / safe
        features[..., 5] = np.exp(-apart / reach)
        features[..., 6] = apart < reach
        features[..., 7 + kind] = 1.0
        features[..., 9] = self.energy[w, s]
        features[..., 10:12] = self.heading[w, s]
        features[..., 12] = 1.0
        features *= found[..., None]
        return features

    # -- what they do --------------------------------------------------------------------------------------------

    def step(self, actions: NDArray[Any]) -> Happened:
        """Everybody acts at once; `actions` has a number from 0 to 9 in the slot of everyone who lives."""
        chosen = self._checked(actions)
        before = self.alive.copy()
        rules = self.rules
        counts = {name: np.zeros(rules.worlds, np.int64) for name in COUNTS}
        rewards = np.zeros(self.shape, np.float32)
        far = self._nearest_prey() if rules.scent else None
        self._move(chosen)
        if far is not None:
            closer = (far - self._nearest_prey()) / np.float32(rules.predator_speed)
            smelled = np.where(far < rules.sight, np.clip(closer, -1.0, 1.0), 0.0)
            rewards[:, rules.prey_capacity :] += np.float32(rules.scent) * smelled * before[:, rules.prey_capacity :]
        self._graze((chosen == ACT) & before & self.is_prey, rewards, counts)
        caught = self._lunge((chosen == ACT) & before & ~self.is_prey, rewards, counts)
        self.age[before] += 1
        starved = before & ~caught & (self.energy <= 0.0)
        old = before & ~caught & ~starved & (self.age > rules.lifetime)
        gone = caught | starved | old
        counts["starved"] += starved.sum(1)
        counts["old"] += old.sum(1)
        rewards[gone & ~old] -= 1.0
        if rules.replace:
            self._replace(gone)
        else:
            self.alive &= ~gone
            self._bear(counts)
        self.grass += np.float32(rules.regrowth) * (1.0 - self.grass)
        self.time += 1
        self._near = None
        return Happened(rewards, gone, self._begin_anew(before & ~gone, counts), counts)

    def _checked(self, actions: NDArray[Any]) -> Ints:
        """A damaged policy gives NaN, or numbers that are no action: said at once, before anything has moved."""
        actions = np.asarray(actions)
        if actions.shape != self.shape:
            raise UserError(
                f"actions have the shape {actions.shape}", cause=f"the world has {self.shape}: (worlds, slots)"
            )
        theirs = actions[self.alive]
        wrong = ~np.isfinite(theirs) | (theirs < 0) | (theirs >= ACTIONS) | (theirs != np.floor(theirs))
        if wrong.any():
            world, slot = (each[int(np.flatnonzero(wrong)[0])] for each in np.nonzero(self.alive))
            who = SPECIES[int(slot >= self.rules.prey_capacity)]
            raise UserError(
                f"{int(wrong.sum())} of {len(theirs)} actions do not exist",
                cause=f"the first is {theirs[wrong][0]} (world {world}, slot {slot}, one of the {who});"
                f" there are 0 to {ACTIONS - 1}",
                hints=["NaN comes from a policy whose weights are damaged: go back to an earlier checkpoint"],
            )
        chosen = np.zeros(self.shape, np.int64)
        chosen[self.alive] = theirs.astype(np.int64)
        return chosen

    def _move(self, chosen: Ints) -> None:
        rules = self.rules
        speed = np.where(self.is_prey, np.float32(rules.prey_speed), np.float32(rules.predator_speed))
        way = STEPS[chosen]
        goes = self.alive & (chosen > 0) & (chosen < ACT)
        self.x, self.y = (
            np.where(goes, self._around((place + speed * way[..., axis]).astype(np.float32)), place)
            for axis, place in enumerate((self.x, self.y))
        )
        self.heading[goes] = way[goes]
        self.energy -= self.alive * np.float32(rules.living) + goes * np.float32(rules.moving)

    def _nearest_prey(self) -> Floats:
        """(worlds, predators): how far the nearest prey is from each; far away where there is none."""
        room, size = self.rules.prey_capacity, np.float32(self.rules.size)
        dx = np.abs(self.x[:, room:, None] - self.x[:, None, :room])
        dy = np.abs(self.y[:, room:, None] - self.y[:, None, :room])
        square = np.minimum(dx, size - dx) ** 2 + np.minimum(dy, size - dy) ** 2
        square += np.where(self.alive[:, None, :room], np.float32(0.0), np.float32(4.0) * size * size)
        return np.sqrt(square.min(axis=2, initial=4.0 * float(size) ** 2))  # type: ignore[no-any-return]

    def _graze(self, who: Mask, rewards: Floats, counts: dict[str, Ints]) -> None:
        world, slot = np.nonzero(who)
        if not len(world):
            return
        cell = self._cell(world, slot)
        wanting = np.zeros_like(self.grass)
        np.add.at(wanting, (world, *cell), np.float32(1.0))
        here = self.grass[(world, *cell)]
        eaten = np.minimum(np.float32(self.rules.bite), here / wanting[(world, *cell)])
        np.subtract.at(self.grass, (world, *cell), eaten)
        np.maximum(self.grass, 0.0, out=self.grass)
        gained = eaten * np.float32(self.rules.grass_energy)
        self.energy[world, slot] = np.minimum(self.energy[world, slot] + gained, 1.0)
        rewards[world, slot] += eaten * np.float32(0.4)
        counts["grazed"] += np.bincount(world, minlength=self.rules.worlds)

    def _lunge(self, who: Mask, rewards: Floats, counts: dict[str, Ints]) -> Mask:
        """Each takes the nearest prey in reach; if two want the same one, the nearer has it."""
        caught = np.zeros(self.shape, bool)
        world, slot = np.nonzero(who)
        counts["attempts"] += np.bincount(world, minlength=self.rules.worlds)
        self.energy[world, slot] -= np.float32(self.rules.lunging)
        rewards[world, slot] -= np.float32(self.rules.attempt_cost)
        if not len(world) or not self.rules.prey_capacity:
            return caught
        room, size = self.rules.prey_capacity, np.float32(self.rules.size)
        dx = np.abs(self.x[world, :room] - self.x[world, slot][:, None])
        dy = np.abs(self.y[world, :room] - self.y[world, slot][:, None])
        square = np.minimum(dx, size - dx) ** 2 + np.minimum(dy, size - dy) ** 2
        square[~self.alive[world, :room]] = np.inf
        prey = square.argmin(axis=1)
        apart = square[np.arange(len(prey)), prey]
        hits = np.flatnonzero(apart < self.rules.reach**2)
        hits = hits[np.argsort(apart[hits], kind="stable")]
        _, first = np.unique(world[hits] * room + prey[hits], return_index=True)
        hits = hits[first]
        caught[world[hits], prey[hits]] = True
        hunter = (world[hits], slot[hits])
        self.energy[hunter] = np.minimum(self.energy[hunter] + np.float32(self.rules.meal), 1.0)
        rewards[hunter] += 1.0
        counts["catches"] += np.bincount(world[hits], minlength=self.rules.worlds)
        return caught

    def _bear(self, counts: dict[str, Ints]) -> None:
        """Adults that are full bear a child beside them, as long as there is room; births without room are counted."""
        rules = self.rules
        for start, stop in ((0, rules.prey_capacity), (rules.prey_capacity, rules.slots)):
            alive = self.alive[:, start:stop]
            ready = alive & (self.energy[:, start:stop] > rules.birth) & (self.age[:, start:stop] > rules.adult)
            world, parent = np.nonzero(ready)
            if not len(world):
                continue
            free = ~alive if rules.reuse_slots else ~self.used[:, start:stop]
            rank = np.cumsum(ready, axis=1)[world, parent] - 1
            fits = rank < free.sum(1)[world]
            counts["births_refused"] += np.bincount(world[~fits], minlength=rules.worlds)
            world, parent, rank = world[fits], parent[fits] + start, rank[fits]
            child = np.argsort(~free, axis=1, kind="stable")[world, rank] + start
            drawn = self.rng.random((2, len(world)), dtype=np.float32) - np.float32(0.5)
            self.energy[world, parent] *= np.float32(0.5)
            self.energy[world, child] = self.energy[world, parent]
            self.x[world, child] = self._around(self.x[world, parent] + drawn[0])
            self.y[world, child] = self._around(self.y[world, parent] + drawn[1])
            self.heading[world, child] = self.heading[world, parent]
            self.age[world, child] = 0
            self.alive[world, child] = self.used[world, child] = True
            counts["births"] += np.bincount(world, minlength=rules.worlds)

    def _replace(self, gone: Mask) -> None:
        """Others of their kind appear somewhere else, in the same slots."""
        drawn = self.rng.random((3, int(gone.sum())), dtype=np.float32)
        self.x[gone], self.y[gone] = self._around(drawn[0] * self.rules.size), self._around(drawn[1] * self.rules.size)
        self.energy[gone] = 0.4 + 0.4 * drawn[2]
        self.age[gone] = 0

    def _begin_anew(self, survivors: Mask, counts: dict[str, Ints]) -> Mask:
        """A world that has lost a species it began with is over: it begins anew, if the rules say so."""
        began_with = np.array([self.rules.prey > 0, self.rules.predators > 0])
        over = ((self.population() == 0) & began_with).any(axis=1)
        counts["extinctions"] += over
        if not self.rules.reset or not over.any():
            return np.zeros(self.shape, bool)
        cut: Mask = survivors & over[:, None]
        self.begin(over)
        return cut

    # -- what is kept --------------------------------------------------------------------------------------------

    _ARRAYS = ("x", "y", "energy", "heading", "age", "alive", "used", "grass", "time")

    def state_dict(self) -> dict[str, Any]:
        """All of it: a world that loads this has the same future."""
        return {
            "arrays": {name: getattr(self, name) for name in self._ARRAYS},
            "generator": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._ARRAYS:
            saved, mine = np.asarray(state["arrays"][name]), getattr(self, name)
            if saved.shape != mine.shape:
                raise UserError(
                    f"the saved world does not fit: {name} is {saved.shape} there and {mine.shape} here",
                    hints=["go on with the rules the run began with"],
                )
            setattr(self, name, saved.astype(mine.dtype, copy=True))
        self.rng.bit_generator.state = state["generator"]
        self._near = None
