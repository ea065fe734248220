"""What is done with answers outside of the network. This file travels in a bundle and needs numpy alone.

rows = apply({"kind": "nms", "score": 0.25, "overlap": 0.6, "most": 300}, [boxes, scores])
rows[0]                     # of the first image: x1 y1 x2 y2 score class, the surest first
"""

from typing import Any

import numpy as np

CANDIDATES = 3000


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
    left, found_at = np.arange(len(sure)), []  # type: Any, list[Any]
    while len(left) and len(found_at) < post["most"]:
        best, left = left[0], left[1:]
        found_at.append(best)
        low = np.maximum(apart[best, :2], apart[left, :2])
        high = np.minimum(apart[best, 2:], apart[left, 2:])
        both = np.prod(np.maximum(high - low, 0), axis=1)
        left = left[both <= post["overlap"] * (area[best] + area[left] - both)]
    kept = np.array(found_at, dtype=np.int64)
    return np.column_stack([found[kept], sure[kept], kind[kept]]).astype(np.float32).reshape(-1, 6)
