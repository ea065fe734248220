"""A thermal-like set that is made, not recorded: warm shapes of four kinds moving over noise and drift, boxes known.

    write("thermal", train=320, val=80, seed=0)              # YOLO folders with data.yaml, `generated: true` in it
    frame, boxes = Clip(random, 160, 128).frame(3)           # one image, and rows class x1 y1 x2 y2 in pixels

It is what `holdfast train detection` learns from where no data are given, and it never pretends to be anything else.
Clips of eight frames share a background and their shapes; training and validation have clips of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from holdfast.base.errors import UserError

NAMES = ("tall", "wide", "ring", "pair")
FRAMES = 8
Grey = NDArray[np.float32]


@dataclass
class Shape:
    """One warm thing that moves."""

    kind: int
    middle: NDArray[np.float64]
    speed: NDArray[np.float64]
    half: NDArray[np.float64]
    """Half of its width and height."""
    heat: float


class Clip:
    """Frames of one place: a background that drifts, and shapes that cross it."""

    def __init__(self, random: np.random.Generator, width: int, height: int) -> None:
        self.random, self.width, self.height = random, width, height
        rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
        self.rows, self.columns = rows, columns
        coarse = random.normal(0, 1, (height // 16 + 2, width // 16 + 2)).astype(np.float32)
        ground = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
        slope = random.normal(0, 12, 2)
        self.ground = 80 + 10 * ground + slope[0] * rows / height + slope[1] * columns / width
        self.drift = random.normal(0, 1.5)
        self.shapes = [self._shape() for _ in range(int(random.integers(2, 7)))]

    def _shape(self) -> Shape:
        random, kind = self.random, int(self.random.integers(len(NAMES)))
        long, short = random.uniform(10, 18) * self.width / 160, random.uniform(4, 6) * self.width / 160
        half = {0: (short, long), 1: (long, short), 2: (0.7 * long, 0.7 * long), 3: (long, 0.5 * long)}[kind]
        middle = random.uniform((0, 0), (self.width, self.height))
        return Shape(kind, middle, random.normal(0, 3.0, 2), np.array(half), float(random.uniform(45, 110)))

    def frame(self, number: int) -> tuple[Grey, NDArray[np.float32]]:
        """The image of this moment, 0..255, and the boxes in it."""
        image = self.ground + self.drift * number
        boxes = []
        for shape in self.shapes:
            x, y = shape.middle + number * shape.speed
            warm = self._warmth(shape, (self.columns - x) / shape.half[0], (self.rows - y) / shape.half[1])
            image = image + shape.heat * warm
            low = np.maximum((x - shape.half[0], y - shape.half[1]), 0)
            high = np.minimum((x + shape.half[0], y + shape.half[1]), (self.width, self.height))
            inside = np.prod(np.maximum(high - low, 0))
            if inside > 0.4 * 4 * np.prod(shape.half):
                boxes.append((shape.kind, *low, *high))
        image = image + self.random.normal(0, 4.0, image.shape)
        return np.clip(image, 0, 255).astype(np.float32), np.array(boxes, np.float32).reshape(-1, 5)

    def _warmth(self, shape: Shape, x: Grey, y: Grey) -> Grey:
        """How warm each pixel is, 0..1; x and y are -1 to 1 across its box."""
        name = NAMES[shape.kind]
        if name == "ring":
            away = np.hypot(x, y)
            return np.exp(-(((away - 0.72) / 0.2) ** 2)).astype(np.float32)
        if name == "pair":
            left, right = np.hypot((x + 0.55) / 0.45, y), np.hypot((x - 0.55) / 0.45, y)
            return (_blob(left) + _blob(right)).astype(np.float32)
        return _blob(np.hypot(x, y))


def _blob(away: Grey) -> Grey:
    """Flat in the middle, soft at the edge, nothing outside."""
    warm: Grey = (1.0 / (1.0 + np.exp((away - 0.85) * 12))).astype(np.float32)
    return warm


def write(
    folder: str | os.PathLike[str],
    *,
    train: int = 320,
    val: int = 80,
    width: int = 160,
    height: int = 128,
    seed: int = 0,
    bits: int = 8,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """The set as YOLO folders; returns its data.yaml, which is written last."""
    root = Path(folder)
    if train < 1 or val < 1 or bits not in (8, 16) or not (32 <= width <= 4096 and 32 <= height <= 4096):
        raise UserError(
            "such a set cannot be made", cause=f"{train} and {val} images of {width} x {height}, {bits} bits"
        )
    done, total = 0, train + val
    for part, count in (("train", train), ("val", val)):
        try:
            (root / "images" / part).mkdir(parents=True, exist_ok=True)
            (root / "labels" / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{root} cannot be written", cause=error.strerror or str(error)) from None
        for number in range(count):
            clip, frame = divmod(number, FRAMES)
            if frame == 0:
                made = Clip(np.random.default_rng((seed, part == "val", clip)), width, height)
            image, boxes = made.frame(frame)
            _write_one(root, part, f"clip{clip:04d}_{frame}", image, boxes, bits)
            done += 1
            if progress and done % 50 == 0:
                progress(done, total, "generating thermal-like images")
    if progress:
        progress(total, total, "generating thermal-like images")
    text = "\n".join(
        [
            "# GENERATED by holdfast: warm shapes over noise and drift, no camera was involved",
            "generated: true",
            "path: .",
            "train: images/train",
            "val: images/val",
            "names:",
            *(f"  {number}: {name}" for number, name in enumerate(NAMES)),
        ]
    )
    beside = root / "data.yaml.tmp"
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(root / "data.yaml")
    return root / "data.yaml"


def _write_one(root: Path, part: str, name: str, image: Grey, boxes: NDArray[np.float32], bits: int) -> None:
    height, width = image.shape
    stored = image.astype(np.uint8) if bits == 8 else (image * 20 + 28000).astype(np.uint16)
    Image.fromarray(stored).save(root / "images" / part / f"{name}.png", compress_level=1)
    lines = []
    for kind, x1, y1, x2, y2 in boxes.tolist():
        cx, cy = (x1 + x2) / 2 / width, (y1 + y2) / 2 / height
        lines.append(f"{kind:.0f} {cx:.6f} {cy:.6f} {(x2 - x1) / width:.6f} {(y2 - y1) / height:.6f}\n")
    (root / "labels" / part / f"{name}.txt").write_text("".join(lines), encoding="ascii")
