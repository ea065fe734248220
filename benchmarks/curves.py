"""Learning curves as an SVG: catches against dice over updates and over processor time, with intervals over seeds.

    svg = drawn(arms)          # `measured["arms"]` of ecosystem-sizes-cpu.json

Two panels side by side, one line for each arm, a band where 95 % of means over seeds are expected.
"""

from __future__ import annotations

from typing import Any

COLOURS = {
    "small": "#1f77b4", "small in 4 pieces": "#17becf", "full": "#d62728", "full in 4 pieces": "#ff7f0e",
    "small, longer": "#1f77b4",
}  # fmt: skip
NAMES = {
    "small": "0.74M (small)", "small in 4 pieces": "0.74M, accumulated over 4 pieces", "full": "2.93M (full)",
    "full in 4 pieces": "2.93M, accumulated over 4 pieces", "small, longer": "0.74M (small), 80 updates",
}  # fmt: skip
WIDE, HIGH, LEFT, TOP, GAP = 400, 260, 52, 34, 70
Point = tuple[float, float, float, float]


def drawn(arms: dict[str, Any]) -> str:
    """The whole picture."""
    first = ["full", "full in 4 pieces", "small", "small in 4 pieces"]
    second = ["full", "full in 4 pieces", "small, longer"]
    parts = [
        *_panel(arms, first, 0, "updates", by_time=False),
        *_panel(arms, second, 1, "processor seconds", by_time=True),
    ]
    width, height = 2 * (WIDE + GAP) + LEFT, HIGH + TOP + 62
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            'font-size="12" fill="#333">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _points(arm: dict[str, Any], by_time: bool) -> list[Point]:
    each = arm["cpu_s_median"] / len(arm["catch_rate"]) if by_time else 1.0
    rows = sorted((int(update), value) for update, value in arm["against_dice"].items())
    return [(update * each, value[0], value[1], value[2]) for update, value in rows]


def _panel(arms: dict[str, Any], names: list[str], place: int, unit: str, *, by_time: bool) -> list[str]:
    there = {name: _points(arms[name], by_time) for name in names if name in arms}
    most_x = 1.05 * max(point[0] for points in there.values() for point in points)
    most_y = 1.15 * max(point[1] for points in there.values() for point in points)
    left = LEFT + place * (WIDE + GAP)

    def x(value: float) -> float:
        return round(left + WIDE * value / most_x, 1)

    def y(value: float) -> float:
        return round(TOP + HIGH * (1 - min(max(value, 0.0), most_y) / most_y), 1)

    parts = [f'<text x="{left}" y="{TOP - 14}">catches against dice, in 100 steps of a predator</text>']
    for value in _ticks(most_y):
        parts.append(f'<path d="M{left} {y(value)}h{WIDE}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4}" text-anchor="end">{value:g}</text>')
    for value in _ticks(most_x):
        parts.append(f'<text x="{x(value)}" y="{TOP + HIGH + 16}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{left + WIDE}" y="{TOP + HIGH + 32}" text-anchor="end">{unit}</text>')
    for number, (name, points) in enumerate(there.items()):
        colour = COLOURS[name]
        band = [f"{x(p[0])},{y(p[3])}" for p in points] + [f"{x(p[0])},{y(p[2])}" for p in reversed(points)]
        line = " ".join(f"{x(p[0])},{y(p[1])}" for p in points)
        at, key = (TOP + HIGH - 48 + 17 * number, left + 150) if by_time else (TOP + 14 + 17 * number, left + 10)
        parts += [
            f'<polygon points="{" ".join(band)}" fill="{colour}" opacity="0.12"/>',
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<path d="M{key} {at - 4}h18" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{key + 24}" y="{at}">{NAMES[name]}, {arms[name]["seeds"]} seeds</text>',
        ]
    return parts


def _ticks(most: float) -> list[float]:
    """About five round numbers from 0 on."""
    step = next(each for each in (1, 2, 2.5, 4, 5, 10, 20, 25, 40, 50, 100) if most / each <= 6)
    return [step * number for number in range(int(most / step) + 1)]
