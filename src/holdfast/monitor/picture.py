"""The charts of a run as one PNG, drawn here: for a mail, a paper, a chat. Needs pillow.

write(run, Path("calm-heron.png"))
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from holdfast.monitor import payload
from holdfast.monitor.reader import Run

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#a8488a", "#3d9cd4", "#b07d00", "#5b5b66", "#7a5c2e")
INK, MUTED, GRID, BAD = "#161b22", "#596474", "#e6eaf0", "#b02a1d"
WIDTH, HEIGHT, COLUMNS = 560, 300, 2
MARGIN, TOP = 28, 118
FINER = 2
"""Drawn larger and made smaller: smooth edges."""


def write(run: Run, path: Path) -> None:
    """Draw and save; ImportError without pillow."""
    from PIL import Image, ImageDraw

    shown = payload.charts(run)[:12]
    columns = min(COLUMNS, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    size = (max(WIDTH, columns * WIDTH) + 2 * MARGIN, TOP + rows * HEIGHT + MARGIN)
    image = Image.new("RGB", (size[0] * FINER, size[1] * FINER), "#ffffff")
    pen = _Pen(ImageDraw.Draw(image))
    y = MARGIN
    for line in _wrapped(payload.summary(run), size[0] // 9):
        pen.text((MARGIN, y), line, 17, INK)
        y += 24
    pen.text((MARGIN, y + 2), f"{run.workload or ''} · {run.name} · {run.state}", 13, MUTED)
    series = payload.series(run, [line["key"] for chart in shown for line in chart["lines"]], 2 * WIDTH)
    marks = [fault.step for fault in run.faults if fault.step is not None]
    anchors = payload.anchors(run)
    for at, chart in enumerate(shown):
        left, top = MARGIN + (at % columns) * WIDTH, TOP + (at // columns) * HEIGHT
        _chart(pen, chart, series, marks, anchors, (left, top, left + WIDTH - 24, top + HEIGHT - 24))
    with open(path, "wb") as file:
        image.resize(size, Image.Resampling.LANCZOS).save(file, "PNG")


class _Pen:
    """Draws in the coordinates of the picture, whatever it is drawn at."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def text(self, at: tuple[float, float], text: str, size: int, colour: str, anchor: str = "la") -> None:
        from PIL import ImageFont

        where = (at[0] * FINER, at[1] * FINER)
        plain = "".join(letter if letter.isprintable() else "?" for letter in text)[:300]
        self._draw.text(where, plain, fill=colour, font=ImageFont.load_default(size * FINER), anchor=anchor)

    def line(self, points: list[tuple[float, float]], colour: str, width: float = 1.0) -> None:
        scaled = [(x * FINER, y * FINER) for x, y in points]
        if len(scaled) > 1:
            self._draw.line(scaled, fill=colour, width=max(1, round(width * FINER)), joint="curve")

    def dot(self, at: tuple[float, float], radius: float, colour: str) -> None:
        x, y, r = at[0] * FINER, at[1] * FINER, radius * FINER
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def triangle(self, x: float, y: float, colour: str) -> None:
        corners = [(x - 4, y), (x + 4, y), (x, y + 7)]
        self._draw.polygon([(a * FINER, b * FINER) for a, b in corners], fill=colour)


def _chart(
    pen: _Pen,
    chart: dict[str, Any],
    series: dict[str, Any],
    marks: list[int],
    anchors: list[list[float]],
    box: tuple[float, float, float, float],
) -> None:
    left, top, right, bottom = box[0] + 52, box[1] + 56, box[2], box[3] - 20
    pen.text((box[0], box[1]), f"{chart['title']}{' · ' + chart['unit'] if chart['unit'] else ''}", 15, INK)
    lines = [(line, _points(line, series.get(line["key"]), anchors)) for line in chart["lines"][: len(COLOURS)]]
    xs = [x for _, points in lines for x, _ in points]
    ys = [y for _, points in lines for _, y in points]
    if not ys:
        pen.text(((left + right) / 2, (top + bottom) / 2), "nothing finite was logged", 12, MUTED, "mm")
        return
    low, high = min(ys), max(ys)
    pad = (high - low or abs(high) or 1.0) * 0.06
    low, high = (max(0.0, low - pad) if low >= 0 else low - pad), high + pad
    x0, x1 = 0.0, max(max(xs), 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (x - x0) / (x1 - x0) * (right - left), bottom - (y - low) / (high - low) * (bottom - top)

    for tick in _ticks(low, high, 4):
        y = place(x0, tick)[1]
        pen.line([(left, y), (right, y)], GRID)
        pen.text((left - 8, y), f"{tick:.4g}", 11, MUTED, "rm")
    for tick in _ticks(x0, x1, 5):
        pen.text((place(tick, low)[0], bottom + 6), f"{tick:g}", 11, MUTED, "ma")
    for step in marks:
        if x0 <= step <= x1:
            pen.triangle(place(step, low)[0], top - 9, BAD)
    x = box[0]
    for at, (line, points) in enumerate(lines):
        pen.line([place(*point) for point in points], COLOURS[at], 1.8)
        for point in points if len(points) <= 40 else []:
            pen.dot(place(*point), 2.4, COLOURS[at])
        label = f"{line['label']} {points[-1][1]:.4g}" if points else str(line["label"])
        pen.line([(x, box[1] + 29), (x + 16, box[1] + 29)], COLOURS[at], 2.4)
        pen.text((x + 21, box[1] + 29), label, 12, MUTED, "lm")
        x += 40 + 6.6 * len(label)


def _points(line: dict[str, Any], data: Any, anchors: list[list[float]]) -> list[tuple[float, float]]:
    if not data:
        return []
    scale = line.get("scale") or 1.0
    xs = data["x"] if data["x"] is not None else [_step_at(anchors, when) for when in data["t"]]
    return [(x, y * scale) for x, y in zip(xs, data["y"], strict=True) if y is not None and x is not None]


def _step_at(anchors: list[list[float]], when: float | None) -> float | None:
    """The step at a time, between what is known of both."""
    if when is None or not anchors:
        return None
    before = None
    for row in anchors:
        if row[0] >= when:
            if before is None or row[0] == before[0]:
                return row[1]
            return before[1] + (row[1] - before[1]) * (when - before[0]) / (row[0] - before[0])
        before = row
    return anchors[-1][1]


def _ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / count
    if not rough > 0:
        return [low]
    power = 10 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [at * step for at in range(first, math.floor(high / step + 1e-9) + 1)]


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width)[:3]
