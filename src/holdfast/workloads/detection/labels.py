"""Labels as people keep them: a line of a YOLO file, an annotation of COCO, an object of Pascal VOC.

    yolo_boxes(text, "labels/07.txt", classes=4, problems)       # (count, 5): class x1 y1 x2 y2, in shares of the image
    voc_boxes(path, names, problems)                             # the same, with the size that the file tells

A label that cannot be used stands for an object all the same. Where its box is known, the row has the class MASK, and
that place is hidden from training; where it is not, `Lost` says that the image cannot be used. Files come from
anywhere: whatever is in them, the answer is boxes and problems, or one of the two exceptions of this module.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from holdfast.base.data_files import open_file
from holdfast.workloads.detection.problems import Problems

Boxes = NDArray[np.float32]
"""Rows of class, x1, y1, x2, y2; corners as shares of width and height."""
OVER = 0.005
"""A box may reach over the edge by so much of the image without being mentioned: others round."""
MOST_BYTES = 16 << 20
"""A label file larger than this is none."""
NONE: Boxes = np.zeros((0, 5), np.float32)
MASK = -1.0
"""The class of a row that says where something is which must be neither learned nor taken for background."""
FORMS = {
    "polygon": "polygons: the boxes around them are used",
    "oriented": "oriented boxes (four corners): the upright boxes around them are used",
    "keypoints": "labels with key points: their boxes are used",
    "score": "labels with a sixth column: taken as a score, and not used",
}
"""What boxes are made of when a line is more than a box."""


class Unreadable(Exception):
    """A label file that is none; says why, and which."""

    def __init__(self, why: str, file: str | Path = "") -> None:
        super().__init__(why)
        self.file = str(file)


class Lost(Exception):
    """Labels of an image that cannot be used, at places that are not known: what is there would be background."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} of its labels cannot be used")


def read_text(path: str | Path) -> str:
    """The text of a label file; Unreadable if it cannot be one."""
    try:
        with open_file(path) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Unreadable(error.strerror or str(error), path) from None
    if len(data) > MOST_BYTES:
        raise Unreadable(f"larger than {MOST_BYTES >> 20} MB", path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("not text", path) from None


def yolo_boxes(
    text: str, file: str, classes: int, problems: Problems, *, keypoints: bool = False, told: Counter[str] | None = None
) -> Boxes:
    """The labels of one image, a line each; Lost, after all lines were looked at, if one of them has no place."""
    rows: list[tuple[float, ...]] = []
    seen: set[tuple[float, ...]] = set()
    lost = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            values = tuple(float(word) for word in words)
        except ValueError:
            problems.add(file, number, "not_a_number", f"not numbers: {line.strip()[:60]!r}")
            lost += 1
            continue
        corners, form = corners_of(values, keypoints)
        if corners is None:
            problems.add(file, number, "columns", f"{len(words)} columns: neither a box (5) nor a polygon (7, 9, 11 …)")
            lost += 1
            continue
        row = checked(values[0], corners, classes, file, number, problems)
        if row is None:
            lost += 1
        elif values in seen:
            problems.add(file, number, "twice", "the same label as in a line before")
        else:
            seen.add(values)
            rows.append(row)
            if told is not None and form:
                told[form] += 1
    if lost:
        raise Lost(lost)
    return np.array(rows, np.float32).reshape(-1, 5)


def corners_of(values: tuple[float, ...], keypoints: bool) -> tuple[tuple[float, ...] | None, str]:
    """The box of a line, and what it was made of: nothing for a box, else one of `FORMS`; None if it is no label.

    A line is read by its columns: 5 are a box, 6 a box with its score, more are the corners of a polygon (4 of them
    are how oriented boxes are kept). Where the set says that it has key points, they follow the box.
    """
    count = len(values)
    if count == 5 or count == 6 or (keypoints and count > 6):
        _, cx, cy, width, height = values[:5]
        form = "" if count == 5 else "score" if count == 6 else "keypoints"
        return (cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2), form
    if count < 7 or count % 2 == 0:
        return None, ""
    across, down = values[1::2], values[2::2]
    if not all(map(math.isfinite, values)):
        return (math.nan,) * 4, ""
    return (min(across), min(down), max(across), max(down)), "oriented" if count == 9 else "polygon"


def checked(
    kind: float, corners: tuple[float, ...], classes: int, file: str, line: int, problems: Problems
) -> tuple[float, ...] | None:
    """One label, clipped to the image; as a mask if its class is not known, None if its place is not."""
    if not all(math.isfinite(each) for each in (kind, *corners)):
        problems.add(file, line, "not_a_number", "not finite (nan or inf)")
        return None
    x1, y1, x2, y2 = corners
    if x2 <= x1 or y2 <= y1:
        problems.add(file, line, "no_area", f"a box of {x2 - x1:g} x {y2 - y1:g}")
        return None
    inner = (max(x1, 0.0), max(y1, 0.0), min(x2, 1.0), min(y2, 1.0))
    middle = 0.0 <= (x1 + x2) / 2 <= 1.0 and 0.0 <= (y1 + y2) / 2 <= 1.0
    told = f"x {x1:.3f} to {x2:.3f}, y {y1:.3f} to {y2:.3f} of the image"
    if not middle or inner[2] <= inner[0] or inner[3] <= inner[1]:
        in_pixels = max(abs(each) for each in corners) > 2.0
        problems.add(file, line, "outside", told + (": in pixels? they are shares of 1" if in_pixels else ""))
        return None
    if kind != int(kind) or not 0 <= kind < classes:
        problems.add(file, line, "class_range", f"class {kind:g}, but there are {classes} (0 to {classes - 1})")
        return (MASK, *inner)
    if min(x1, y1) < -OVER or max(x2, y2) > 1.0 + OVER:
        problems.add(file, line, "clipped", told)
    return (kind, *inner)


def voc_boxes(path: str, names: dict[str, int], problems: Problems) -> tuple[Boxes, str]:
    """The objects of a Pascal VOC file, and the image it names; Lost if the box of one is not known."""
    try:
        found = _Voc(read_text(path))
    except Unreadable as error:
        raise Unreadable(str(error), path) from None
    width, height = found.size
    if not (width > 0 and height > 0):
        raise Unreadable("it gives no size of its image", path)
    rows, lost = [], 0
    for line, name, box in found.objects:
        if len(box) != 4:
            problems.add(path, line, "columns", f"a box with {len(box)} of its 4 sides")
            lost += 1
            continue
        # VOC counts pixels from 1, and the last one belongs to the box.
        corners = ((box["xmin"] - 1) / width, (box["ymin"] - 1) / height, box["xmax"] / width, box["ymax"] / height)
        row = checked(names.get(name, 0), corners, max(1, len(names)), path, line, problems)
        lost += row is None
        if row is not None and name not in names:
            problems.add(path, line, "class_range", f"class {name!r}, but there are {', '.join(names)}"[:200])
            row = (MASK, *row[1:])
        if row is not None:
            rows.append(row)
    if lost:
        raise Lost(lost)
    return np.array(rows, np.float32).reshape(-1, 5), found.image


def voc_names(path: str) -> set[str]:
    """The classes that a file mentions."""
    try:
        return {name for _, name, _ in _Voc(read_text(path)).objects}
    except Unreadable:
        return set()


class _Voc:
    """One annotation file, read as a stream of elements, because that is how lines are known."""

    def __init__(self, text: str) -> None:
        self.image = ""
        self.size = (0.0, 0.0)
        self.objects: list[tuple[int, str, dict[str, float]]] = []
        self._path: list[str] = []
        self._text: list[str] = []
        self._line, self._name, self._box = 0, "", {}  # type: int, str, dict[str, float]
        self._sides: dict[str, float] = {}
        parser = expat.ParserCreate()
        self._parser = parser
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.StartDoctypeDeclHandler = self._refuse  # entities can be made to fill the memory
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            raise Unreadable(f"no XML: {error}") from None

    def _refuse(self, *_: object) -> None:
        raise Unreadable("it has a DOCTYPE, which no annotation needs")

    def _start(self, tag: str, _: object) -> None:
        self._path.append(tag)
        self._text.clear()
        if self._path[1:] == ["object"]:
            self._line, self._name, self._box = self._parser.CurrentLineNumber, "", {}

    def _end(self, tag: str) -> None:
        text, here = "".join(self._text).strip(), self._path[1:]
        self._text.clear()
        if here == ["filename"]:
            self.image = text
        elif here in (["size", "width"], ["size", "height"]):
            self._sides[tag] = _number(text)
            self.size = self._sides.get("width", 0.0), self._sides.get("height", 0.0)
        elif here == ["object", "name"]:
            self._name = text
        elif here[:2] == ["object", "bndbox"] and tag in ("xmin", "ymin", "xmax", "ymax"):
            self._box[tag] = _number(text)
        elif here == ["object"]:
            self.objects.append((self._line, self._name, self._box))
        self._path.pop()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
