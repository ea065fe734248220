"""What is done with answers outside of the network. This file travels in a bundle and needs numpy alone.

rows = apply({"kind": "nms", "score": 0.25, "overlap": 0.6, "most": 300}, [boxes, scores])
rows[0]                     # of the first image: x1 y1 x2 y2 score class, the surest first
"""

from typing import Any

import numpy as np

CANDIDATES, BLOCK = 3000, 256


def apply(post: Any, outputs: Any) -> Any:
    """The answers as a caller wants them, a list with one entry for each input."""
    if post is None:
        return outputs
    boxes, scores = outputs
    return [suppressed(post, each, sure) for each, sure in zip(boxes, scores, strict=True)]


def suppressed(post: Any, boxes: Any, scores: Any) -> Any:
    """Non-maximum suppression within each class."""
    place, kind = (scores > post["score"]).nonzero()
    sure = scores[place, kind]
    order = np.argsort(-sure, kind="stable")[:CANDIDATES]
    place, kind, sure = place[order], kind[order], sure[order]
    found = boxes[place]
    apart = found + (kind * (np.abs(found).max(initial=0.0) * 2 + 1))[:, None]  # classes do not meet
    area = np.maximum(apart[:, 2] - apart[:, 0], 0) * np.maximum(apart[:, 3] - apart[:, 1], 0)
    kept = _kept(apart, area, post["overlap"], post["most"])
    return np.column_stack([found[kept], sure[kept], kind[kept]]).astype(np.float32).reshape(-1, 6)


def _kept(boxes: Any, area: Any, overlap: float, most: int) -> Any:
    """Which boxes stay, the surest first; many are compared at once, because a step for each would cost more."""
    found = []  # type: list[int]
    for start in range(0, len(boxes), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(boxes)))
        if found:
            block = block[~_over(boxes, area, np.array(found), block, overlap).any(axis=0)]
        over = _over(boxes, area, block, block, overlap)
        left = np.ones(len(block), dtype=bool)
        for at in range(len(block)):
            if left[at]:
                found.append(int(block[at]))
                if len(found) == most:
                    return np.array(found, dtype=np.int64)
                left &= ~over[at]
    return np.array(found, dtype=np.int64)


def _over(boxes: Any, area: Any, some: Any, others: Any, overlap: float) -> Any:
    """Which of some and others share more than `overlap` of what they cover together."""
    low = np.maximum(boxes[some, None, :2], boxes[None, others, :2])
    high = np.minimum(boxes[some, None, 2:], boxes[None, others, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=2)
    return both > overlap * (area[some, None] + area[None, others] - both)
