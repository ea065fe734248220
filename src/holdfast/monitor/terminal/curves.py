"""Curves, bars and lanes as characters.

    curve([0.7, 0.5, 0.4], 30, 4)          # four lines of Braille dots, each cell two wide and four high
    bar(0.41, 28)                          # ━━━━━━━━━━━╸────────────────
    gauge(0.94)                            # ▮▮▮▮▮▮▮▮▮·
    lane(pieces, marks, begin, end, 60)    # ████▼███████░░░░

Pure: numbers in, text out. Every character has a plain one for terminals without Unicode (`plain`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from holdfast.base.human import BLOCKS

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_PLAIN = {
    "✓": "+",
    "✗": "x",
    "↺": "<",
    "⇒": "=",
    "▼": "v",
    "●": "*",
    "•": "*",
    "·": ".",
    "→": ">",
    "←": "<",
    "↑": "^",
    "↓": "v",
    "…": "~",
    "±": "~",
    "°": " ",
    "━": "=",
    "╸": ">",
    "─": "-",
    "│": "|",
    "▮": "#",
    "█": "#",
    "░": ".",
    "▸": ">",
    "■": "#",
    **dict.fromkeys("┌┐└┘├┤┬┴┼", "+"),
    "\u2009": " ",
    "\u202f": " ",
    **dict(zip(BLOCKS[:-1], "_.-~=+*", strict=True)),
}
_TABLE = str.maketrans(_PLAIN)


def plain(text: str) -> str:
    """The same in ASCII, character by character, so that columns stay; a letter that has none becomes a `?`."""
    swapped = text.translate(_TABLE)
    return swapped if swapped.isascii() else swapped.encode("ascii", "replace").decode()


def bar(share: float | None, width: int) -> str:
    if width < 3:
        return ""
    if share is None:
        return "─" * width
    full = int(max(0.0, min(1.0, share)) * width)
    edge = "╸" if full < width and share > 0 else ""
    return "━" * full + edge + "─" * (width - full - len(edge))


def gauge(share: float | None, width: int = 10) -> str:
    if share is None:
        return " " * width
    full = round(max(0.0, min(1.0, share)) * width)
    return "▮" * full + "·" * (width - full)


def curve(values: Sequence[float], width: int, height: int, *, ascii: bool = False) -> list[str]:
    """The course of `values` from left to right, scaled to the lowest and highest; gaps where they are not finite."""
    return list(_curve(tuple(values), max(1, width), max(1, height), ascii))


@functools.lru_cache(maxsize=16)
def _curve(values: tuple[float, ...], width: int, height: int, ascii: bool) -> list[str]:
    """Kept: a picture is drawn every second, and its curves change when an epoch ends."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return [""] * height
    low, high = min(finite), max(finite)
    across, up = (width, height) if ascii else (2 * width, 4 * height)
    dots = _rows(values, low, high, across, up)
    if ascii:
        return ["".join("*" if (x, y) in dots else " " for x in range(width)).rstrip() for y in range(height)]
    cells = [[0] * width for _ in range(height)]
    for x, y in dots:
        cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row).rstrip() for row in cells]


def _rows(values: Sequence[float], low: float, high: float, across: int, up: int) -> set[tuple[int, int]]:
    """Dots of the line: x from the left, y from the top; steep parts are filled so that no peak hangs in the air."""
    dots: set[tuple[int, int]] = set()
    before: tuple[int, int] | None = None
    for at, value in enumerate(values):
        if not math.isfinite(value):
            before = None
            continue
        x = 0 if len(values) == 1 else round(at * (across - 1) / (len(values) - 1))
        height = 0.5 if high == low else (value - low) / (high - low)
        y = round((1 - height) * (up - 1))
        if before is not None:
            dots.update(_line(before, (x, y)))
        dots.add((x, y))
        before = (x, y)
    return dots


def _line(begin: tuple[int, int], end: tuple[int, int]) -> Iterable[tuple[int, int]]:
    (x0, y0), (x1, y1) = begin, end
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    return ((round(x0 + (x1 - x0) * n / steps), round(y0 + (y1 - y0) * n / steps)) for n in range(steps + 1))


def marks(places: Iterable[float], width: int) -> str:
    """A line with ▼ at each place, 0 at the left and 1 at the right."""
    cells = [" "] * width
    for place in places:
        if 0 <= place <= 1 and width:
            cells[min(width - 1, int(place * width))] = "▼"
    return "".join(cells).rstrip()


def lane(
    pieces: Iterable[tuple[float, float]], faults: Iterable[float], now: float, begin: float, end: float, width: int
) -> str:
    """Where a device worked (█), what is left to do there (░ after `now`), and where it failed (▼)."""
    span = max(1e-9, end - begin)
    cells = [" "] * width

    def at(when: float) -> int:
        return max(0, min(width - 1, int((when - begin) / span * width)))

    for since, until in pieces:
        for cell in range(at(since), at(until) + 1):
            middle = begin + (cell + 0.5) * span / width
            cells[cell] = "░" if middle > now and cell > at(now) else "█"
    for when in faults:
        cells[at(when)] = "▼"
    return "".join(cells).rstrip()
