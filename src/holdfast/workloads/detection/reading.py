"""Reads one image of a set with its labels, whatever kind of set it is.

    reader = reader_of(source, split, classes, problems, told)
    row_of("images/7.jpg", 7, reader, problems, decode=False)     # path, size, boxes; None if the image is left out

An image is left out where one of its labels stands for an object at a place that is not known: training would be
taught that nothing is there.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from holdfast.workloads.detection import coco, images, labels
from holdfast.workloads.detection.labels import Boxes
from holdfast.workloads.detection.problems import Problems
from holdfast.workloads.detection.sources import Source, Split

Reader = Callable[[int, str, tuple[int, int]], Boxes]
"""Gives the boxes and masks of an image by its number, path and size."""


def row_of(
    image: str, number: int, reader: Reader, problems: Problems, decode: bool
) -> tuple[str, tuple[int, int, int], Boxes] | None:
    """One image that can be used: its path, its size, its boxes and masks. None if it is left out, which is told."""
    try:
        size = images.look(image)
        if decode:
            images.pixels(image, size[2])
        return image, size, reader(number, image, size[:2])
    except images.Bad as bad:
        problems.add(image, 0, bad.kind, str(bad))
    except labels.Unreadable as error:
        problems.add(error.file or image, 0, "unreadable_label", str(error))
    except labels.Lost:
        pass  # each of its labels is told
    return None


class _Unlabelled(images.Bad):
    """An image that nobody has looked at."""

    def __init__(self, label: str) -> None:
        super().__init__("unlabelled", f"no label file{f' {label}' if label else ''}")


def reader_of(source: Source, split: Split, classes: int, problems: Problems, told: Counter[str]) -> Reader:
    """How the boxes of image `number` are read."""
    if source.kind == "coco":
        found = coco.Annotations(split.annotations, split.named, split.ids, problems, told)
        return lambda number, image, size: found.boxes(image, size)
    voc = {name: number for number, name in enumerate(source.names)}
    # Who writes an empty file for an image without objects means something else by no file at all.
    strict = source.kind == "voc" or any(map(_is_empty, split.labels))

    def read(number: int, image: str, size: tuple[int, int]) -> Boxes:
        label = split.labels[number]
        if not label or not os.path.exists(label):
            if strict:
                raise _Unlabelled(label)
            problems.add(image, 0, "image_without_label", f"no label file{f' {label}' if label else ''}")
            return labels.NONE
        if source.kind == "voc":
            return labels.voc_boxes(label, voc, problems)[0]
        text = labels.read_text(label)
        return labels.yolo_boxes(text, label, classes, problems, keypoints=source.keypoints, told=told)

    return read


def _is_empty(label: str) -> bool:
    try:
        return os.stat(label).st_size <= 2  # a line end or two
    except OSError:
        return False
