"""The rules of a world: sizes, speeds, energy, and what is worth what.

Rules(worlds=4, prey=60, predators=20)          # checked where it is made: a rule that cannot be is a UserError
Rules.from_json(rules.to_json())                # how a run folder keeps them
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from holdfast.base import dataclass_json
from holdfast.base.errors import UserError

PREY, PREDATOR = 0, 1
SPECIES = ("prey", "predators")
STAY, ACT, ACTIONS = 0, 9, 10
"""Actions: 0 stays, 1 to 8 move (east first, then against the clock), 9 acts: prey graze, predators lunge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Everything that can be set about a world. Lengths are in units of the map, times in steps."""

    worlds: int = 8
    """Worlds that are simulated together; each goes its own way."""
    size: float = 24.0
    """The map is a square whose edges meet: who leaves in the east comes back in the west."""
    prey: int = 32
    predators: int = 16
    prey_capacity: int = 48
    """There is room for so many; births beyond it do not happen, and are counted."""
    predator_capacity: int = 24
    neighbours: int = 16
    """How many others an animal sees: half of them prey, half predators, the nearest of each."""
    sight: float = 6.0
    reach: float = 0.8
    """A predator that lunges gets the nearest prey within this distance."""
    prey_speed: float = 0.5
    predator_speed: float = 0.65
    living: float = 0.003
    """Energy that a step costs, whatever is done in it; 1 is a full animal."""
    moving: float = 0.002
    lunging: float = 0.01
    bite: float = 0.25
    """Grass that one prey eats in a step at most; a cell holds 1."""
    grass_energy: float = 0.3
    regrowth: float = 0.02
    meal: float = 0.5
    """Energy of one prey, for who catches it."""
    birth: float = 0.9
    """Energy above which an adult bears a child, and shares it with it."""
    adult: int = 30
    lifetime: int = 600
    attempt_cost: float = 0.02
    """Taken from the reward of a predator for each lunge. High values teach it to do nothing: see the warning."""
    scent: float = 0.05
    """Reward of a predator for each step of its own that brings it nearer to the nearest prey in sight, taken back for
    each that does not: a help for beginners, which what is measured knows nothing of. 0 for none."""
    reuse_slots: bool = True
    """May a newborn take the place of one that died? PettingZoo's names may not come back, so there it may not."""
    replace: bool = False
    """Does another one appear somewhere for each that dies, and is nobody born? So are policies compared: a good hunter
    is not punished for an empty map."""
    reset: bool = True
    """Does a world begin anew when one of its species has died out?"""

    def __post_init__(self) -> None:
        for name, least in {"worlds": 1, "prey": 0, "predators": 0, "neighbours": 2, "adult": 0, "lifetime": 1}.items():
            _check(self, name, least)
        for name in ("size", "sight", "prey_speed", "predator_speed", "regrowth", "bite"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise UserError(f"{name} is {value}", cause="it has to be a number above 0")
        if self.prey + self.predators == 0:
            raise UserError("a world without animals", cause="prey is 0 and predators is 0", hints=["prey=60"])
        for species, started, room in (
            ("prey", self.prey, self.prey_capacity),
            ("predators", self.predators, self.predator_capacity),
        ):
            if room < started:
                raise UserError(
                    f"{started} {species} do not fit",
                    cause=f"the capacity is {room}",
                    hints=[f"{'prey' if species == 'prey' else 'predator'}_capacity={2 * started}"],
                )
        if self.sight * 2 > self.size:
            raise UserError(
                f"sight is {self.sight} in a world of size {self.size}",
                cause="an animal would see itself on the other side",
                hints=[f"size={4 * self.sight:g}"],
            )

    @property
    def slots(self) -> int:
        """Places for animals in one world: those of the prey first."""
        return self.prey_capacity + self.predator_capacity

    @property
    def seen(self) -> int:
        """Neighbours of each species that an animal sees."""
        return max(1, self.neighbours // 2)

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)

    @classmethod
    def from_json(cls, data: object) -> Rules:
        """Rules from a run folder, which may be anybody's: UserError if they are none."""
        for name, value in data.items() if isinstance(data, dict) else ():
            if isinstance(value, int) and value > 1_000_000:
                raise UserError(f"the rule {name} is {value}", cause="no world is that large")
        try:
            return dataclass_json.read_strictly(cls, data)
        except ValueError as error:
            raise UserError("these are not the rules of a world", cause=str(error)) from None


def _check(rules: Rules, name: str, least: int) -> None:
    value = getattr(rules, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"{name} is {value!r}", cause=f"it has to be a whole number, {least} or more")
