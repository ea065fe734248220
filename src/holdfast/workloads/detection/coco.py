"""COCO files: which images they name, and the boxes of each.

    found = files_of(folder)                                # {"train": …/instances_train.json, "val": …}
    reader = Annotations(file, named, ids, problems, told)  # ids: category id of this very file to class
    reader.boxes("images/7.jpg", (640, 480))                # rows class x1 y1 x2 y2, in shares of the image

An annotation is named by its id, since lines mean nothing in JSON. One that has no box but a polygon gets the box
around it; a crowd is masked, since it is many objects without a box of their own.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base import files
from holdfast.base.data_files import read_file
from holdfast.base.errors import UserError
from holdfast.workloads.detection import labels
from holdfast.workloads.detection.labels import Boxes
from holdfast.workloads.detection.problems import Problems

MOST_JSON = 4 << 30
_LISTS = ("images", "annotations", "categories")


def files_of(folder: Path) -> dict[str, Path]:
    """instances_train*.json beside instances_val*.json, or the folders that Roboflow writes."""
    found: dict[str, Path] = {}
    for name in ("train", "val", "test"):
        patterns = [f"annotations/*{name}*.json", f"*{name}*.json", f"{name}/_annotations.coco.json"]
        patterns += ["valid/_annotations.coco.json"] if name == "val" else []
        hits = [each for pattern in patterns for each in sorted(folder.glob(pattern))]
        if hits:
            found[name] = hits[0]
    return found if "train" in found else {}


def read(file: Path) -> dict[str, Any]:
    """The parts of a COCO file that are lists of objects, as they should be; UserError if they are not."""
    try:
        data = json.loads(read_file(file, MOST_JSON))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read", cause=str(error)[:200]) from None
    if not isinstance(data, dict) or not all(isinstance(data.get(name), list) for name in _LISTS):
        raise UserError(f"{file} is not a COCO file", cause=f"it needs the lists {', '.join(_LISTS)}")
    return {name: [each for each in data[name] if isinstance(each, dict)] for name in _LISTS}


def names_of(data: dict[str, Any]) -> list[str]:
    """The classes of a file in the order of their ids; Roboflow's first one, which only groups the others, is none."""
    kinds = sorted(_categories(data), key=lambda each: int(each["id"]))
    used = {each.get("category_id") for each in data["annotations"] if isinstance(each.get("category_id"), int)}
    groups = {each.get("supercategory") for each in kinds if isinstance(each.get("supercategory"), str)}
    named = [each for each in kinds if each["id"] in used or _name(each) not in groups or len(kinds) == 1]
    return list(dict.fromkeys(_name(each) for each in named or kinds))


def ids_of(data: dict[str, Any], names: list[str]) -> dict[int, int]:
    """Category id to class by the name: the files of two splits may count in different ways."""
    return {each["id"]: names.index(_name(each)) for each in _categories(data) if _name(each) in names}


def _categories(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in data["categories"] if isinstance(each.get("id"), int)]


def _name(category: dict[str, Any]) -> str:
    return str(category.get("name", category["id"]))


def images_folder(folder: Path, file: Path, name: str, images: list[str]) -> Path:
    """The folder that the names in a COCO file are relative to."""
    year = file.stem.removeprefix("instances_")
    places = [file.parent, *(folder / each for each in ("images", f"images/{year}", year, f"images/{name}", name))]
    places += [file.parent.parent / "images", file.parent.parent, folder]
    plain = [each for each in images[:20] if not os.path.isabs(each) and os.pardir not in Path(each).parts]
    for place in places:
        if any((place / each).is_file() for each in plain):
            return place
    return places[1]


class Annotations:
    """The annotations of one file, by image."""

    def __init__(
        self, file: str, named: dict[str, str], ids: dict[int, int], problems: Problems, told: Counter[str]
    ) -> None:
        self.file, self.ids, self.problems, self.told = file, ids, problems, told
        data = read(Path(file))
        self.sizes: dict[str, tuple[float, float]] = {}
        of_id: dict[str, str] = {}
        for each in data["images"]:
            path = named.get(str(each.get("file_name", "")))
            of_id[str(each.get("id"))] = path or ""
            if path:
                self.sizes[path] = files.number(each.get("width")), files.number(each.get("height"))
        self.of_image: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for number, each in enumerate(data["annotations"]):
            name, image = f"annotation {str(each.get('id', number))[:40]}", str(each.get("image_id"))
            if image not in of_id:
                problems.add(file, 0, "label_without_image", f"{name}: no image {str(each.get('image_id'))[:40]}")
            elif of_id[image]:
                self.of_image.setdefault(of_id[image], []).append((name, each))

    def boxes(self, image: str, size: tuple[int, int]) -> Boxes:
        """The boxes of one image, whose size is used where the file gives none; Lost if one has no place."""
        width, height = self.sizes.get(image, (0.0, 0.0))
        if not (width > 0 and height > 0):
            width, height = size
        rows = [self._row(name, each, width, height) for name, each in self.of_image.get(image, [])]
        if None in rows:
            raise labels.Lost(sum(row is None for row in rows))
        return np.array(rows, np.float32).reshape(-1, 5)

    def _row(self, name: str, each: dict[str, Any], width: float, height: float) -> tuple[float, ...] | None:
        box = each.get("bbox")
        if not isinstance(box, list) or len(box) != 4:
            box = _around(each.get("segmentation"))
            if box is None:
                self._add("columns", f"{name}: its bbox is {str(each.get('bbox'))[:40]}, not 4 numbers")
                return None
            self.told["polygon"] += 1
        x, y, wide, high = (float(v) if isinstance(v, (int, float)) else float("nan") for v in box)
        corners = (x / width, y / height, (x + wide) / width, (y + high) / height)
        before = len(self.problems.found)
        row = labels.checked(0, corners, 1, self.file, 0, self.problems)
        for at in range(before, len(self.problems.found)):
            self.problems.found[at] = self.problems.found[at]._replace(text=f"{name}: {self.problems.found[at].text}")
        if row is None:
            return None
        if each.get("iscrowd"):
            self._add("crowd", f"{name}: a crowd")
            return (labels.MASK, *row[1:])
        kind = each.get("category_id")
        number = self.ids.get(kind) if isinstance(kind, int) else None
        if number is None:
            self._add("class_range", f"{name}: no category {str(kind)[:40]}")
            return (labels.MASK, *row[1:])
        return (float(number), *row[1:])

    def _add(self, kind: str, text: str) -> None:
        self.problems.add(self.file, 0, kind, text)


def _around(polygons: Any) -> list[float] | None:
    """The box around the polygons of an annotation: x, y, width, height; None if there are none."""
    if not isinstance(polygons, list) or not polygons:
        return None
    flat: list[float] = []
    for each in polygons:
        if not isinstance(each, list) or len(each) < 6 or len(each) % 2:
            return None
        if not all(isinstance(value, (int, float)) for value in each):
            return None
        flat += map(float, each)
    across, down = flat[0::2], flat[1::2]
    return [min(across), min(down), max(across) - min(across), max(down) - min(down)]
