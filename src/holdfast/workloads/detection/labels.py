"""Labels as people keep them: a line of a YOLO file, an annotation of COCO, an object of Pascal VOC.

    yolo_boxes(text, "labels/07.txt", classes=4, problems)       # (count, 5): class x1 y1 x2 y2, in shares of the image
    voc_boxes(path, names, problems)                             # the same, with the size that the file tells
    sound(boxes)                                                 # which boxes can be trained on, and why the others not

Files come from anywhere: whatever is in them, the answer is boxes and problems, never an exception.
"""

from __future__ import annotations

import math
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


class Unreadable(Exception):
    """A label file that is none; says why, and which."""

    def __init__(self, why: str, file: str | Path = "") -> None:
        super().__init__(why)
        self.file = str(file)


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


def yolo_boxes(text: str, file: str, classes: int, problems: Problems) -> Boxes:
    """`class cx cy width height` a line, in shares of the image."""
    rows: list[tuple[float, ...]] = []
    seen: set[tuple[float, ...]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 5:
            more = ": a polygon? only boxes are trained on" if len(words) > 6 and len(words) % 2 else ""
            problems.add(file, number, "columns", f"{len(words)} columns, not 5{more}")
            continue
        try:
            values = tuple(float(word) for word in words)
        except ValueError:
            problems.add(file, number, "not_a_number", f"not numbers: {line.strip()[:60]!r}")
            continue
        kind, cx, cy, width, height = values
        corners = (cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2)
        row = checked(kind, corners, classes, file, number, problems)
        if row is None:
            continue
        if values in seen:
            problems.add(file, number, "twice", "the same label as in a line before")
            continue
        seen.add(values)
        rows.append(row)
    return np.array(rows, np.float32).reshape(-1, 5)


def checked(
    kind: float, corners: tuple[float, ...], classes: int, file: str, line: int, problems: Problems
) -> tuple[float, ...] | None:
    """One label, clipped to the image; None if it cannot be trained on."""
    if not all(math.isfinite(each) for each in (kind, *corners)):
        problems.add(file, line, "not_a_number", "not finite (nan or inf)")
        return None
    if kind != int(kind) or not 0 <= kind < classes:
        problems.add(file, line, "class_range", f"class {kind:g}, but there are {classes} (0 to {classes - 1})")
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
    if min(x1, y1) < -OVER or max(x2, y2) > 1.0 + OVER:
        problems.add(file, line, "clipped", told)
    return (kind, *inner)


def voc_boxes(path: str, names: dict[str, int], problems: Problems) -> tuple[Boxes, str]:
    """The objects of a Pascal VOC file, and the image it names. `names` grows if it has none to begin with."""
    try:
        found = _Voc(read_text(path))
    except Unreadable as error:
        raise Unreadable(str(error), path) from None
    width, height = found.size
    if not (width > 0 and height > 0):
        raise Unreadable("it gives no size of its image", path)
    rows = []
    for line, name, box in found.objects:
        if name not in names:
            problems.add(path, line, "class_range", f"class {name!r}, but there are {', '.join(names)}"[:200])
            continue
        if len(box) != 4:
            problems.add(path, line, "columns", f"a box with {len(box)} of its 4 sides")
            continue
        # VOC counts pixels from 1, and the last one belongs to the box.
        corners = ((box["xmin"] - 1) / width, (box["ymin"] - 1) / height, box["xmax"] / width, box["ymax"] / height)
        row = checked(names[name], corners, len(names), path, line, problems)
        if row is not None:
            rows.append(row)
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
