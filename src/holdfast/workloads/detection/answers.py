"""From what the network says for every point of an image to boxes, in numpy: the likely points first, then the rest.

    rows = boxes_of(raw, (352, 416), score=0.25)       # raw (batch, points, 4 * BINS + classes), as the net gives it
    rows[0]                                            # x1 y1 x2 y2 score class of the first image, the surest first

All images of a batch are decoded in one call, and only the points whose class is likely enough: that is a handful of
three thousand. The same boxes as `Detector.detect` finds, up to rounding. Imports no torch.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

STRIDES, BINS, FIRST = (8, 16, 32), 16, -1
"""As in `model.py`; a test holds them equal."""
MOST, CANDIDATES, OVERLAP = 300, 3000, 0.6
BLOCK = 256
Floats = NDArray[np.float32]


def boxes_of(raw: Floats, shape: tuple[int, int], score: float, overlap: float = OVERLAP) -> list[Floats]:
    """Rows of each image, after non-maximum suppression within each class."""
    image, point, kind = np.nonzero(raw[..., 4 * BINS :] > math.log(score / (1.0 - score)))
    sure = 1.0 / (1.0 + np.exp(-raw[image, point, 4 * BINS + kind]))
    at, stride = points(shape)
    spread = raw[image, point, : 4 * BINS].reshape(-1, 4, BINS)
    spread = np.exp(spread - spread.max(-1, keepdims=True))
    sides = (spread @ (np.arange(BINS, dtype=np.float32) + FIRST)) / spread.sum(-1) * stride[point, None]
    corners = np.concatenate([at[point] - sides[:, :2], at[point] + sides[:, 2:]], 1)
    rows = np.column_stack([corners, sure, kind]).astype(np.float32)
    return [_suppressed(rows[image == number], overlap) for number in range(len(raw))]


def to_image(rows: NDArray[np.float32], size: tuple[int, int], side: int) -> NDArray[np.float32]:
    """From pixels of the sheet to those of the image it came from, cut at its edges."""
    rows = rows.copy()
    scale = max(size) / side
    rows[:, :4] *= scale
    rows[:, [0, 2]] = rows[:, [0, 2]].clip(0, size[0])
    rows[:, [1, 3]] = rows[:, [1, 3]].clip(0, size[1])
    return rows


@lru_cache(maxsize=64)
def points(shape: tuple[int, int]) -> tuple[Floats, Floats]:
    """The middle of every cell of every level, in pixels, and its stride."""
    places, strides = [], []
    for stride in STRIDES:
        rows, columns = -(-shape[0] // stride), -(-shape[1] // stride)
        y, x = np.meshgrid(np.arange(rows) + 0.5, np.arange(columns) + 0.5, indexing="ij")
        places.append(np.stack([x, y], -1).reshape(-1, 2) * stride)
        strides.append(np.full(rows * columns, float(stride)))
    return np.concatenate(places).astype(np.float32), np.concatenate(strides).astype(np.float32)


def _suppressed(rows: Floats, overlap: float) -> Floats:
    """The surest first, without those that cover a surer one of their class by more than `overlap`."""
    rows = rows[np.argsort(-rows[:, 4], kind="stable")[:CANDIDATES]]
    far = float(np.abs(rows[:, :4]).max(initial=1.0)) * 2 + 1
    apart = rows[:, :4].astype(np.float64) + rows[:, 5:6] * far  # boxes of different classes never meet
    area = np.prod(apart[:, 2:] - apart[:, :2], axis=1)
    kept: list[int] = []
    for start in range(0, len(rows), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(rows)))
        if kept:
            block = block[~_over(apart, area, np.array(kept), block, overlap).any(axis=0)]
        over = _over(apart, area, block, block, overlap)
        left = np.ones(len(block), dtype=bool)
        for at in range(len(block)):
            if left[at]:
                kept.append(int(block[at]))
                left &= ~over[at]
        if len(kept) >= MOST:
            break
    return rows[kept[:MOST]]


def _over(boxes: NDArray[np.float64], area: NDArray[np.float64], some: NDArray[np.int64], others: NDArray[np.int64],
          overlap: float) -> NDArray[np.bool_]:  # fmt: skip
    low = np.maximum(boxes[some, None, :2], boxes[None, others, :2])
    high = np.minimum(boxes[some, None, 2:], boxes[None, others, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=2)
    covered: NDArray[np.bool_] = both > overlap * (area[some, None] + area[None, others] - both)
    return covered
