"""A picture of a world: pixels for a film or a report, or numbers for a page that draws it itself.

    image = draw(scene_of(world, 0), pixels=480)          # a Pillow image
    live(run_folder, world, turn, numbers)                # world.json and world.png, for who watches

Prey are round and pale, predators are triangles that point where they go; both fade as they starve. The map's edges
meet, so who leaves on one side comes in on the other.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from holdfast import files

JSON, PNG = "world.json", "world.png"
EVERY = 5
"""Turns between two live pictures; the numbers are written at each turn."""
SOIL, GRASS = (58, 46, 36), (86, 148, 62)
PREY_COLOUR, PREDATOR_COLOUR, INK = (250, 240, 205), (224, 62, 48), (24, 20, 16)


def scene_of(world: Any, number: int = 0) -> dict[str, Any]:
    """One world as plain numbers."""
    alive = world.alive[number]
    found: dict[str, Any] = {"size": float(world.rules.size), "time": int(world.time[number])}
    for name, mask in (("prey", world.is_prey[number]), ("predators", ~world.is_prey[number])):
        who = alive & mask
        columns = (
            world.x[number][who], world.y[number][who], world.energy[number][who],
            world.heading[number][who][:, 0], world.heading[number][who][:, 1],
        )  # fmt: skip
        found[name] = [[round(float(value), 3) for value in row] for row in zip(*columns, strict=True)]
    found["grass"] = [[round(float(value), 2) for value in row] for row in world.grass[number]]
    return found


def live(folder: Path, world: Any, turn: int, numbers: dict[str, float]) -> None:
    """What the world looks like now, for a monitor. A disk that is full is no reason to stop."""
    scene = scene_of(world)
    try:
        files.write_json(folder / JSON, {"schema": 1, "turn": turn, **scene})
        if turn % EVERY == 0 and available():
            caption = f"update {turn}   catches {numbers.get('catch_rate', 0.0):.1f} per 100 steps"
            _save_png(draw(scene, pixels=360, caption=caption), folder / PNG)
    except OSError:
        return


def _save_png(image: Any, path: Path) -> None:
    """Whole or not at all: somebody may be reading."""
    beside = path.with_name(path.name + ".tmp")
    image.save(beside, format="PNG", optimize=False, compress_level=3)
    beside.replace(path)


def available() -> bool:
    import importlib.util

    return importlib.util.find_spec("PIL") is not None


def draw(scene: dict[str, Any], *, pixels: int = 480, caption: str = "") -> Any:
    """One world as an image."""
    from PIL import Image, ImageDraw

    strip = 22 if caption else 0
    unit = pixels / scene["size"]
    grass = scene["grass"]
    ground = Image.new("RGB", (len(grass), len(grass[0])))
    ground.putdata([_mix(SOIL, GRASS, column[row]) for row in range(len(grass[0])) for column in grass])
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
        pen.text((6, pixels + 5), caption, fill=(235, 230, 220))
    return image


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
