"""Other views of the same images, drawn from numpy's generator, which the Loader seeds for each (seed, epoch, index).

    image, boxes = mosaic([(image, boxes)] * 4, 416, Views())        # four images around a point
    image, boxes = alone(image, boxes, 416, Views())                 # one image, scaled and moved
    image, boxes = finish(image, boxes, Views())                     # mirrored, and another light

Boxes are rows class, x1, y1, x2, y2 in pixels. Grey images get another gain and offset and nothing else: hue and
saturation mean nothing there, and inverting heat would teach something false.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from holdfast.workloads.detection.images import EMPTY as EMPTY
from holdfast.workloads.detection.images import Pixels, plain, resized
from holdfast.workloads.detection.labels import Boxes

VISIBLE = 0.2
"""A box of which less is left after cutting is dropped."""


@dataclass(frozen=True, slots=True)
class Views:
    """How different the views may be."""

    mosaic: float = 1.0
    """The share of samples that are made of four images."""
    scale: float = 0.5
    """Images are made larger or smaller by up to this share."""
    shift: float = 0.1
    flip: float = 0.5
    """How often mirrored left to right."""
    upside: float = 0.0
    """How often upside down: for cameras that look straight down."""
    light: float = 1.0
    """Hue, saturation and brightness for colour, gain and offset for grey: 0 leaves both."""


def mosaic(four: list[tuple[Pixels, Boxes]], side: int, views: Views) -> tuple[Pixels, Boxes]:
    """Four images that meet at a point, each scaled for itself and cut at the edges of its quarter."""
    cx, cy = (int(each) for each in np.random.uniform(0.3, 0.7, 2) * side)
    canvas = np.full((side, side, four[0][0].shape[2]), EMPTY, np.uint8)
    kept = []
    for number, (image, boxes) in enumerate(four):
        width, height = _drawn_size(image, views)
        on_left, on_top = number % 2 == 0, number < 2
        at = (cx - width if on_left else cx, cy - height if on_top else cy)
        window = (0 if on_left else cx, 0 if on_top else cy, cx if on_left else side, cy if on_top else side)
        kept.append(_paste(canvas, image, boxes, (width, height), at, window))
    return canvas, np.concatenate(kept)


def alone(image: Pixels, boxes: Boxes, side: int, views: Views) -> tuple[Pixels, Boxes]:
    """One image on a square, larger or smaller, a little off the middle."""
    width, height = _drawn_size(image, views)
    off = np.random.uniform(-views.shift, views.shift, 2) * side
    at = int((side - width) / 2 + off[0]), int((side - height) / 2 + off[1])
    canvas = np.full((side, side, image.shape[2]), EMPTY, np.uint8)
    return canvas, _paste(canvas, image, boxes, (width, height), at, (0, 0, side, side))


def _drawn_size(image: Pixels, views: Views) -> tuple[int, int]:
    factor = np.random.uniform(1 - views.scale, 1 + views.scale)
    return max(8, round(image.shape[1] * factor)), max(8, round(image.shape[0] * factor))


def _paste(
    canvas: Pixels,
    image: Pixels,
    boxes: Boxes,
    size: tuple[int, int],
    at: tuple[int, int],
    window: tuple[int, int, int, int],
) -> Boxes:
    """Put the image down at this size and place, cut to the window; its boxes where they are now.

    Only the part that will be seen is resized: most of a mosaic's images lies outside.
    """
    (left, top), (width, height) = at, size
    x1, y1 = max(left, window[0]), max(top, window[1])
    x2, y2 = min(left + width, window[2]), min(top + height, window[3])
    across, down = image.shape[1] / width, image.shape[0] / height
    if x2 > x1 and y2 > y1:
        part = (x1 - left) * across, (y1 - top) * down, (x2 - left) * across, (y2 - top) * down
        canvas[y1:y2, x1:x2] = resized(image, (x2 - x1, y2 - y1), part)
    grown = np.array([1, 1 / across, 1 / down, 1 / across, 1 / down], np.float32)
    moved = boxes * grown + np.array([0, left, top, left, top], np.float32)
    return cut(moved, (x1, y1, x2, y2))


def cut(boxes: Boxes, window: tuple[int, int, int, int]) -> Boxes:
    """What is left of boxes inside a window; those of which too little is left are dropped."""
    x1, y1, x2, y2 = window
    inner = boxes.copy()
    inner[:, 1::2] = inner[:, 1::2].clip(x1, max(x1, x2))
    inner[:, 2::2] = inner[:, 2::2].clip(y1, max(y1, y2))
    before = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 4] - boxes[:, 2])
    wide, high = inner[:, 3] - inner[:, 1], inner[:, 4] - inner[:, 2]
    return inner[(wide * high > VISIBLE * before) & (wide > 2) & (high > 2)]


def finish(image: Pixels, boxes: Boxes, views: Views) -> tuple[Pixels, Boxes]:
    """Mirror, and change the light."""
    height, width = image.shape[:2]
    left_right, upside, draws = np.random.random(), np.random.random(), np.random.uniform(-1, 1, 3)
    if left_right < views.flip:
        image, boxes = image[:, ::-1], boxes.copy()
        boxes[:, [1, 3]] = width - boxes[:, [3, 1]]
    if upside < views.upside:
        image, boxes = image[::-1], boxes.copy()
        boxes[:, [2, 4]] = height - boxes[:, [4, 2]]
    if views.light:
        image = _grey_light(image, draws * views.light) if image.shape[2] == 1 else _colour(image, draws * views.light)
    return np.ascontiguousarray(image), boxes


def _grey_light(image: Pixels, draws: NDArray[np.float64]) -> Pixels:
    levels = np.arange(256, dtype=np.float32)
    table = np.clip((levels - 128) * (1 + 0.3 * draws[0]) + 128 + 25 * draws[1], 0, 255).astype(np.uint8)
    lit: Pixels = table[image]
    return lit


def _colour(image: Pixels, draws: NDArray[np.float64]) -> Pixels:
    """Hue by up to 1.5 %, saturation by 70 %, brightness by 40 %."""
    hue, saturation, value = np.array([0.015, 0.7, 0.4]) * draws
    levels = np.arange(256)
    tables = [
        ((levels + round(hue * 255)) % 256).astype(np.uint8),
        np.clip(levels * (1 + saturation), 0, 255).astype(np.uint8),
        np.clip(levels * (1 + value), 0, 255).astype(np.uint8),
    ]
    colours = Image.fromarray(image).convert("HSV").point(np.concatenate(tables).tolist())
    return plain(colours.convert("RGB"))
