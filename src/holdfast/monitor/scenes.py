"""What a run shows of itself: a world that it simulates, as numbers to draw, and pictures and films in its folder.

    world(run.world)                 the animals of `world.json`, and the steps of a short film; None if there are none
    charts_of(run.world)             metrics that the run wants in one chart
    pictures(folder)                 [{"path": "hunt.gif", "type": "image/gif", "bytes": 81234}, …]
    read_picture(folder, "hunt.gif") its type and its bytes; OSError if it is not what its name says

A run folder may be anybody's: of a world only finite numbers pass, as many as a screen can show, and a picture is one
by its first bytes. Nothing here is drawn; the page does that, on a canvas.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.monitor.jsonfile import names_in
from holdfast.monitor.logs import clean
from holdfast.monitor.places import open_inside

FILE = "world.json"
MOST_ANIMALS, MOST_FRAMES, MOST_GRASS = 4000, 128, 128
"""Of one picture, of a film, and cells along an edge."""
MOST_PICTURES, LARGEST = 6, 8 << 20
_KINDS = {
    ".gif": ("image/gif", re.compile(rb"GIF8[79]a")),
    ".png": ("image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ".mp4": ("video/mp4", re.compile(rb"....ftyp", re.S)),
}


def world(told: Mapping[str, Any]) -> dict[str, Any] | None:
    """What can be drawn of a world."""
    size = _number(told.get("size"))
    if size is None or size <= 0:
        return None
    now = _animals(told)
    frames = told.get("frames")
    frames = frames[-MOST_FRAMES:] if isinstance(frames, list) else []
    film = [_animals(each) for each in frames if isinstance(each, dict)]
    return {
        "turn": _whole(told.get("turn")),
        "size": size,
        "grass": _grass(told.get("grass")),
        "frames": [*film, now],
        "facts": facts_of(told),
        "note": clean(note)[:300] if isinstance(note := told.get("note"), str) else "",
    }


def mark(told: Mapping[str, Any]) -> str | None:
    """Changes whenever there is something new to draw."""
    return f"{_whole(told.get('turn'))}/{_whole(told.get('time'))}" if told else None


def charts_of(told: Mapping[str, Any]) -> dict[str, list[str]]:
    """Titles, and the metrics that share a chart of that title; the first one is drawn first."""
    curves = told.get("curves")
    rows = list(curves.items())[:16] if isinstance(curves, dict) else []
    return {str(title)[:60]: names for title, each in rows if (names := _names(each))}


def facts_of(told: Mapping[str, Any]) -> list[str]:
    """Metrics that tell most about such a run, in order."""
    return _names(told.get("facts"))


def _animals(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"time": _whole(told.get("time")), **{name: _rows(told.get(name)) for name in ("prey", "predators")}}


def _rows(value: object) -> list[list[float]]:
    """x, y, energy and where it looks; a row with anything else in it is left out."""
    found = []
    for row in value[:MOST_ANIMALS] if isinstance(value, list) else ():
        numbers = [_number(each) for each in row[:5]] if isinstance(row, list) and len(row) >= 5 else [None]
        if all(each is not None for each in numbers):
            found.append([float(each or 0.0) for each in numbers])
    return found


def _grass(value: object) -> list[list[float]]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_GRASS:
        return []
    rows = [[_number(cell) or 0.0 for cell in row] for row in value if isinstance(row, list) and len(row) <= MOST_GRASS]
    return rows if len(rows) == len(value) and len({len(row) for row in rows}) == 1 and rows[0] else []


def _names(value: object) -> list[str]:
    return [name[:200] for name in value[:16] if isinstance(name, str)] if isinstance(value, list) else []


def _whole(value: object) -> int:
    found = _number(value)
    return 0 if found is None else int(found)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e9 < value < 1e9:
        return None
    return float(value) if math.isfinite(value) else None


# Pictures -------------------------------------------------------------------------------------------------


def pictures(folder: Path) -> list[dict[str, Any]]:
    """Films and images beside the journal, the newest first; what only looks like one by its name is left out."""
    found: list[dict[str, Any]] = []
    for name in names_in(folder):
        kind = _KINDS.get(os.path.splitext(name)[1].lower())
        if kind is None or name.startswith(".") or name == "world.png":  # that one is drawn live
            continue
        try:
            seen = os.lstat(folder / name)
            with open_inside(folder, name) as file:
                good = kind[1].match(file.read(16)) is not None
        except OSError:
            continue
        if good and seen.st_size <= LARGEST:
            found.append({"path": name, "type": kind[0], "bytes": seen.st_size, "time": seen.st_mtime})
    return sorted(found, key=lambda each: -each["time"])[:MOST_PICTURES]


def read_picture(folder: Path, name: str) -> tuple[str, bytes]:
    """One of them, checked again: a folder may change while it is looked at."""
    kind = _KINDS.get(os.path.splitext(name)[1].lower())
    if kind is None:
        raise OSError(errno.EINVAL, "not a picture")
    with open_inside(folder, name) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST or not kind[1].match(data):
        raise OSError(errno.EINVAL, "not a picture")
    return kind[0], data
