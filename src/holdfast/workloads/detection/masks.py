"""Places of an image that are neither an object to learn nor background: they are painted over.

hidden(image, masks, boxes)           # a copy with these places in grey; what lies in a box stays as it is

Masks and boxes are rows class, x1, y1, x2, y2 in pixels.
"""

from __future__ import annotations

import math

from holdfast.workloads.detection.images import EMPTY, Pixels
from holdfast.workloads.detection.labels import Boxes


def hidden(image: Pixels, masks: Boxes, boxes: Boxes) -> Pixels:
    """The image without what is masked. An object that has a box is seen whole, also where a mask lies over it."""
    if not len(masks):
        return image
    painted = image.copy()
    for part in _parts(masks):
        painted[part] = EMPTY
    for part in _parts(boxes):
        painted[part] = image[part]
    return painted


def _parts(rows: Boxes) -> list[tuple[slice, slice]]:
    return [
        (slice(max(0, math.floor(y1)), max(0, math.ceil(y2))), slice(max(0, math.floor(x1)), max(0, math.ceil(x2))))
        for _, x1, y1, x2, y2 in rows.tolist()
    ]
