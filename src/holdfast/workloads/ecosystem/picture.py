"""A picture of a world: pixels for a film or a report, or numbers for a page that draws it itself.

    image = draw(scene_of(world), pixels=480)             # a Pillow image
    film = Film()
    film.look(world)                                      # after each step: where everybody is
    live(run_folder, world, turn, numbers, film)          # world.json and world.png, for who watches

Prey are round and pale, predators are triangles that point where they go; both fade as they starve. The map's edges
meet, so who leaves on one side comes in on the other.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

from holdfast.base.folders import write_whole

JSON, PNG = "world.json", "world.png"
EVERY = 5
"""Turns between two live pictures; the numbers are written at each turn."""
SHOWN = -1
"""The world that is shown: the last one. In the first ones, frozen policies of the past play along."""
MOST_FRAMES, MOST_ANIMALS = 64, 6000
"""Of a film. One with more has every other picture left out."""
CURVES = {
    "population": ["prey", "predators"],
    "entropy": ["prey_entropy", "predators_entropy"],
    "return": ["prey_return", "predators_return"],
    "value loss": ["prey_value_loss", "predators_value_loss"],
    "kl": ["prey_kl", "predators_kl"],
}
"""Metrics that are drawn in one chart."""
FACTS = ["catch_rate", "attempts", "hits", "survival", "births", "starved"]
"""Metrics that belong beside the picture: never the return alone."""
SOIL, GRASS = (58, 46, 36), (86, 148, 62)
PREY_COLOUR, PREDATOR_COLOUR, INK = (250, 240, 205), (224, 62, 48), (24, 20, 16)
LETTERS = (235, 230, 220)


def scene_of(world: Any, number: int = SHOWN) -> dict[str, Any]:
    """One world as plain numbers."""
    found: dict[str, Any] = {"size": float(world.rules.size), **animals_of(world, number)}
    found["grass"] = [[round(float(value), 2) for value in row] for row in world.grass[number]]
    return found


def animals_of(world: Any, number: int = SHOWN) -> dict[str, Any]:
    """Who is where: x, y, energy, and where it looks."""
    alive = world.alive[number]
    found: dict[str, Any] = {"time": int(world.time[number])}
    for name, mask in (("prey", world.is_prey[number]), ("predators", ~world.is_prey[number])):
        who = alive & mask
        columns = (
            world.x[number][who], world.y[number][who], world.energy[number][who],
            world.heading[number][who][:, 0], world.heading[number][who][:, 1],
        )  # fmt: skip
        found[name] = [[round(float(value), 2) for value in row] for row in zip(*columns, strict=True)]
    return found


class Film:
    """One world through the steps of one turn. It only looks, and is no state: what is undone is filmed again."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self._every, self._seen = 1, -1

    def look(self, world: Any) -> None:
        """To be called as often as one likes; a step is taken once."""
        when = int(world.time[SHOWN])
        if when == self._seen:
            return
        if when < self._seen:  # the turn was undone, or the world began anew: so does its film
            self.frames = [frame for frame in self.frames if frame["time"] < when]
        self._seen = when
        if when % self._every:
            return
        self.frames.append(animals_of(world))
        animals = sum(len(frame["prey"]) + len(frame["predators"]) for frame in self.frames)
        if len(self.frames) > MOST_FRAMES or animals > MOST_ANIMALS:
            self.frames, self._every = self.frames[::2], self._every * 2


def live(
    folder: Path, world: Any, turn: int, numbers: dict[str, float], film: Film | None = None, note: str = ""
) -> None:
    """What the world looks like now, for a monitor. A disk that is full is no reason to stop."""
    scene = scene_of(world)
    told = {"schema": 1, "turn": turn, "curves": CURVES, "facts": FACTS, "note": note, **scene}
    try:
        _save_json({**told, "frames": film.frames if film else []}, folder / JSON)
        if turn % EVERY == 0 and available():
            caption = f"update {turn}   catches {numbers.get('catch_rate', 0.0):.1f} per 100 steps"
            _save_png(draw(scene, pixels=360, caption=caption), folder / PNG)
    except OSError:
        return


def _save_json(told: dict[str, Any], path: Path) -> None:
    """Whole or not at all, small, and without waiting for the disk: the next one comes soon."""
    write_whole(path, json.dumps(told, separators=(",", ":")).encode())


def _save_png(image: Any, path: Path) -> None:
    """Whole or not at all: somebody may be reading."""
    data = io.BytesIO()
    image.save(data, format="PNG", optimize=False, compress_level=3)
    write_whole(path, data.getvalue())


def available() -> bool:
    import importlib.util

    return importlib.util.find_spec("PIL") is not None


def draw(scene: dict[str, Any], *, pixels: int = 480, caption: str = "") -> Any:
    """One world as an image."""
    from PIL import Image, ImageDraw

    strip = 22 if caption else 0
    unit = pixels / scene["size"]
    grass = scene["grass"]
    shades = [_mix(SOIL, GRASS, part / 100) for part in range(101)]
    ground = Image.new("RGB", (len(grass), len(grass[0])))
    ground.putdata([shades[_percent(column[row])] for row in range(len(grass[0])) for column in grass])
    image = Image.new("RGB", (pixels, pixels + strip), INK)
    image.paste(ground.resize((pixels, pixels), Image.Resampling.BICUBIC), (0, 0))
    pen = ImageDraw.Draw(image)
    for x, y, energy, *_ in scene["prey"]:
        _round(pen, x * unit, y * unit, max(2.5, 0.22 * unit), _mix(SOIL, PREY_COLOUR, 0.35 + 0.65 * energy))
    for x, y, energy, dx, dy in scene["predators"]:
        colour = _mix(SOIL, PREDATOR_COLOUR, 0.4 + 0.6 * energy)
        _arrow(pen, x * unit, y * unit, dx, dy, max(4.5, 0.42 * unit), colour)
    if caption:
        pen.rectangle((0, pixels, pixels, pixels + strip), fill=INK)
        pen.text((6, pixels + 5), caption, fill=LETTERS)
    return image


def palette() -> Any:
    """The colours there are, for a film of few: grass, both species from starving to fed, ink and letters."""
    from PIL import Image

    shades = [_mix(SOIL, colour, part / 12) for colour in (GRASS, PREY_COLOUR, PREDATOR_COLOUR) for part in range(13)]
    flat = [value for colour in (INK, LETTERS, *shades) for value in colour]
    image = Image.new("P", (1, 1))
    image.putpalette(flat + flat[:3] * (256 - len(flat) // 3))
    return image


def _percent(share: float) -> int:
    return min(100, max(0, round(100 * share)))


def _mix(one: tuple[int, int, int], other: tuple[int, int, int], part: float) -> tuple[int, int, int]:
    part = min(1.0, max(0.0, part))
    return tuple(round(a + (b - a) * part) for a, b in zip(one, other, strict=True))  # type: ignore[return-value]


def _round(pen: Any, x: float, y: float, radius: float, colour: tuple[int, int, int]) -> None:
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour, outline=INK)


def _arrow(pen: Any, x: float, y: float, dx: float, dy: float, radius: float, colour: tuple[int, int, int]) -> None:
    turn = math.atan2(dy, dx)
    corners = [
        (x + reach * math.cos(turn + angle), y + reach * math.sin(turn + angle))
        for angle, reach in ((0.0, radius * 1.3), (2.5, radius), (-2.5, radius))
    ]
    pen.polygon(corners, fill=colour, outline=INK)
