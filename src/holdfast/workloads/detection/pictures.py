"""Pictures without a plotting library: boxes on images, a sheet of the worst, curves, and who is taken for whom.

drawn(image, rows, names).save("found.png")              # rows x1 y1 x2 y2 score class
worst_sheet(found, index, names, worst(found, index))    # truth dashed in white, answers in colour
curves(scores)                                           # precision over recall, a line for each class
confusion_table(table, names)
"""

from __future__ import annotations

import colorsys
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from holdfast.workloads.detection import images
from holdfast.workloads.detection.evaluate import SHOWN, Found, Scores, in_pixels
from holdfast.workloads.detection.index import Index

COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#0072b2", "#999999"]
"""Colours that colour-blind people can tell apart (Okabe and Ito); more classes get others."""
INK, PAPER, FAINT = "#1a1a1a", "#ffffff", "#d0d0d0"
TILE = 300


def colour(kind: int) -> str:
    if kind < len(COLOURS):
        return COLOURS[kind]
    red, green, blue = colorsys.hsv_to_rgb((kind * 0.381966) % 1.0, 0.65, 0.95)
    return f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}"


def font(size: int) -> Any:
    return ImageFont.load_default(size)


def drawn(image: NDArray[np.uint8], rows: NDArray[np.float32], names: Sequence[str]) -> Image.Image:
    """A colour copy of an image with its boxes, the surest on top."""
    made = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).convert("RGB")
    pen = ImageDraw.Draw(made)
    thick = max(1, round(max(made.size) / 320))
    for x1, y1, x2, y2, score, kind in rows[::-1].tolist():
        _box(pen, (x1, y1, x2, y2), colour(int(kind)), thick)
        _tag(pen, (x1, y1), f"{_name(names, int(kind))} {score:.2f}", colour(int(kind)), max(10, 7 * thick), made.size)
    return made


def _name(names: Sequence[str], kind: int) -> str:
    return names[kind] if kind < len(names) else str(kind)


def _box(pen: Any, corners: tuple[float, ...], ink: str, width: int) -> None:
    x1, y1, x2, y2 = corners
    pen.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=ink, width=width)


def _tag(pen: Any, at: tuple[float, float], text: str, ink: str, size: int, inside: tuple[int, int]) -> None:
    written = font(size)
    left, top, right, bottom = pen.textbbox((0, 0), text, font=written)
    x = max(0.0, min(at[0], inside[0] - (right - left) - 2))
    y = max(0.0, at[1] - (bottom - top) - 4)
    pen.rectangle((x, y, x + right - left + 3, y + bottom - top + 4), fill=ink)
    pen.text((x + 2 - left, y + 2 - top), text, fill=INK, font=written)


def worst_sheet(
    found: Found, index: Index, names: Sequence[str], chosen: list[tuple[int, int, int]], *, channels: int
) -> Image.Image:
    """The images with the most mistakes, side by side."""
    columns = max(1, min(4, len(chosen)))
    rows = -(-max(1, len(chosen)) // columns)
    caption, head = 20, 46
    made = Image.new("RGB", (columns * (TILE + 8) + 8, head + rows * (TILE + caption + 8) + 8), PAPER)
    pen = ImageDraw.Draw(made)
    pen.text((8, 6), "The worst images", fill=INK, font=font(16))
    pen.text((8, 27), f"white: what is there · colour: what was found, from score {SHOWN}", fill=INK, font=font(12))
    for number, (which, missed, wrong) in enumerate(chosen):
        at = 8 + number % columns * (TILE + 8), head + number // columns * (TILE + caption + 8)
        made.paste(_tile(found[which], index, which, names, channels), at)
        name = os.path.basename(index.path(which))
        name = name if len(name) <= 24 else "…" + name[-23:]
        pen.text((at[0], at[1] + TILE + 3), f"{name}: {missed} missed, {wrong} wrong", fill=INK, font=font(12))
    if not chosen:
        pen.text((8, head + 20), "no mistakes", fill=INK, font=font(14))
    return made


def _tile(rows: NDArray[np.float32], index: Index, which: int, names: Sequence[str], channels: int) -> Image.Image:
    tile = Image.new("RGB", (TILE, TILE), FAINT)
    try:
        image = images.pixels(index.path(which), channels)
    except images.Bad:
        return tile
    height, width = image.shape[:2]
    scale = TILE / max(height, width)
    image = images.fitted(image, TILE)
    shown = rows[rows[:, 4] >= SHOWN].copy()
    shown[:, :4] *= scale
    made = drawn(image, shown, names)
    pen = ImageDraw.Draw(made)
    for box in (in_pixels(index, which)[:, 1:] * scale).tolist():
        _dashed(pen, box)
    tile.paste(made, ((TILE - made.width) // 2, (TILE - made.height) // 2))
    return tile


def _dashed(pen: Any, box: list[float], step: int = 5) -> None:
    x1, y1, x2, y2 = (round(each) for each in box)
    for x in range(x1, x2, 2 * step):
        for y in (y1, y2):
            pen.line((x, y, min(x + step, x2), y), fill=PAPER, width=1)
    for y in range(y1, y2, 2 * step):
        for x in (x1, x2):
            pen.line((x, y, x, min(y + step, y2)), fill=PAPER, width=1)


def curves(scores: Scores, names: Sequence[str]) -> Image.Image:
    """Precision over recall at IoU 0.5, a line for each class, and their mean."""
    side, left, top = 420, 60, 40
    shown = [number for number, each in enumerate(scores.classes) if each["ap50"] is not None]
    made = Image.new("RGB", (left + side + 220, top + side + 50), PAPER)
    pen = ImageDraw.Draw(made)
    pen.text((left, 4), f"Precision over recall, IoU 0.5 · mAP50 {scores.map50:.3f}", fill=INK, font=font(15))
    for tick in range(0, 11, 2):
        x, y = left + side * tick / 10, top + side - side * tick / 10
        pen.line((x, top, x, top + side), fill=FAINT)
        pen.line((left, y, left + side, y), fill=FAINT)
        pen.text((x - 8, top + side + 6), f"{tick / 10:.1f}", fill=INK, font=font(12))
        pen.text((left - 28, y - 7), f"{tick / 10:.1f}", fill=INK, font=font(12))
    pen.text((left + side / 2 - 20, top + side + 24), "recall", fill=INK, font=font(13))
    pen.text((4, top - 18), "precision", fill=INK, font=font(13))
    for row, number in enumerate(shown):
        line = _line(scores.curves[number], left, top, side)
        pen.line(line, fill=colour(number), width=2)
        if row < 24:
            y = top + 18 * row
            pen.line((left + side + 14, y + 8, left + side + 34, y + 8), fill=colour(number), width=3)
            text = f"{_name(names, number)[:16]} {scores.classes[number]['ap50']:.3f}"
            pen.text((left + side + 40, y), text, fill=INK, font=font(12))
    if len(shown) > 1:
        pen.line(_line(scores.curves[shown].mean(axis=0), left, top, side), fill=INK, width=3)
    return made


def _line(values: NDArray[np.float64], left: int, top: int, side: int) -> list[tuple[float, float]]:
    return [(left + side * at / 100, top + side * (1 - max(0.0, float(each)))) for at, each in enumerate(values)]


def confusion_table(table: NDArray[np.int64], names: Sequence[str]) -> Image.Image:
    """Truth by rows, answers by columns; darker is a larger share of the row."""
    words = [*names, "nothing"]
    cell, left, top = max(34, min(64, 640 // len(words))), 130, 70
    made = Image.new("RGB", (left + cell * len(words) + 20, top + cell * len(words) + 20), PAPER)
    pen = ImageDraw.Draw(made)
    pen.text((10, 8), f"Truth by rows, answers by columns (score from {SHOWN})", fill=INK, font=font(14))
    for number, word in enumerate(words):
        pen.text((10, top + cell * number + cell / 2 - 7), word[:16], fill=INK, font=font(12))
        pen.text((left + cell * number + 4, top - 20), word[: cell // 7], fill=INK, font=font(12))
    for row, counts in enumerate(table.tolist()):
        whole = max(1, sum(counts))
        for column, count in enumerate(counts):
            share = count / whole
            at = left + cell * column, top + cell * row
            shade = tuple(round(255 - share * (255 - dark)) for dark in (0, 114, 178))
            pen.rectangle((*at, at[0] + cell - 2, at[1] + cell - 2), fill=shade, outline=FAINT)
            if count:
                ink = PAPER if share > 0.6 else INK
                pen.text((at[0] + 5, at[1] + cell / 2 - 7), str(count), fill=ink, font=font(12))
    return made
