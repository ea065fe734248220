"""Finding a data set: YOLO folders with `data.yaml`, COCO JSON, Pascal VOC; which images, and whose labels are whose.

    source = find("bccd/data.yaml")          # or a folder, or a COCO file
    source.kind, source.names                # "yolo", ["RBC", "WBC", "Platelets"]
    source.splits["train"]                   # a Split: image files, and the label of each

The `path:` of a `data.yaml` may lead anywhere if that file was named; `train`, `val` and `test` are below it or beside
the file: a folder, a list of folders, or a text file that lists images. Nothing else leads out of there (`bounds`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError
from holdfast.run.settings import Settings
from holdfast.workloads.detection import bounds, coco, yaml_file
from holdfast.workloads.detection.bounds import Bounds
from holdfast.workloads.detection.labels import Unreadable, read_text, voc_names
from holdfast.workloads.detection.places import bases, spellings
from holdfast.workloads.detection.walking import label_of, labels_folder, walk

SPLITS = ("train", "val", "test")
HELD_OUT = 10
"""Where no validation set is given, one image in so many is taken for it, by its name."""


@dataclass
class Split:
    """Images of one part of the set, in the order of their names; a label file for each where there is one."""

    images: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    """A file for each image, which may not exist; empty for COCO."""
    orphans: list[str] = field(default_factory=list)
    """Label files without an image."""
    annotations: str = ""
    """The COCO file."""
    named: dict[str, str] = field(default_factory=dict)
    """COCO: the image of each file name."""
    ids: dict[int, int] = field(default_factory=dict)
    """COCO: category id of this file to class."""
    refused: list[tuple[str, int, str, str]] = field(default_factory=list)
    """What leads out of the set: file, line, kind of problem, words."""

    def refuse(self, file: str, line: int, what: str) -> None:
        self.refused.append((file, line, "leads_out", what))


@dataclass
class Source:
    """A data set that was found."""

    kind: str
    file: Path
    names: list[str]
    splits: dict[str, Split]
    notes: list[str] = field(default_factory=list)
    generated: bool = False
    keypoints: bool = False
    """YOLO: key points follow each box."""


def find(data: str, *, outside: bool | None = None) -> Source:
    """The set at this path; UserError with what was looked for. `outside` is the setting data.outside if not said."""
    outside = Settings.load().data.outside if outside is None else outside
    path = Path(data).expanduser().absolute()
    try:
        exists, folder = path.exists(), path.is_dir()
        inside = sorted(each.name for each in path.iterdir()) if folder else []
    except OSError as error:
        raise UserError(f"{data} cannot be read", cause=error.strerror or str(error)) from None
    if not exists:
        raise UserError(f"there is no {data}", hints=["give a data.yaml, a folder, or a COCO file: `data=PATH`"])
    if not folder:
        return _of_file(path, outside)
    for name in inside:
        if name in ("data.yaml", "data.yml", "dataset.yaml"):
            return _yolo(path / name, outside, named=False)
    if "Annotations" in inside:
        return _voc(path, Bounds([path], outside=outside))
    annotated = coco.files_of(path)
    if annotated:
        return _coco(path, annotated, outside)
    yamls = [name for name in inside if name.endswith((".yaml", ".yml"))]
    if len(yamls) == 1:
        return _yolo(path / yamls[0], outside, named=False)
    raise UserError(
        f"no data set was found in {data}",
        cause="no data.yaml (YOLO), no annotations/instances_*.json (COCO), no Annotations/ (Pascal VOC)",
        hints=["name the file itself: `data=FOLDER/data.yaml`"],
    )


def _of_file(path: Path, outside: bool) -> Source:
    if path.suffix in (".yaml", ".yml"):
        return _yolo(path, outside, named=True)
    if path.suffix == ".json":
        return _coco(path.parent, {"train": path}, outside)
    raise UserError(f"{path.name} is not a data set", cause="known are .yaml (YOLO), .json (COCO), folders")


# YOLO ---------------------------------------------------------------------------------------------------------


def _yolo(file: Path, outside: bool, *, named: bool) -> Source:
    """A file that the user `named` may say with `path:` where the set is; one found in a folder stays in it."""
    told, line_of = yaml_file.read(file)
    if not isinstance(told, dict):
        raise UserError(f"{file} is not a data set", cause="it holds no keys", hints=[_EXAMPLE])
    if not told.get("train"):
        raise UserError(f"{file} has no `train`", cause=f"its keys are {', '.join(map(str, told))}", hints=[_EXAMPLE])
    names, notes = _names(told, file)
    reach = Bounds([file.parent], outside=outside or named)
    first = bases(told.get("path"), file)
    if not reach.holds(first[0]):
        raise _leads_out(file, line_of("path"), f"path: {told['path']}", [f"name the file itself: `data={file}`"])
    base = [each for each in first if reach.holds(each)]
    splits, tried = {}, base
    for name in SPLITS:
        given = told.get(name) or (told.get("valid") if name == "val" else None)
        if given:
            key = name if told.get(name) else "valid"
            finder = _Finder(file, tried, (key, line_of(key)), outside, notes)
            splits[name] = _yolo_split(given, finder)
            tried = finder.starts  # all parts of a set are in the folder in which the first of them was found
    if told.get("path") not in (None, "", ".") and len(first) == 1:
        notes.append(f"`path: {told['path']}` of {file.name} does not exist: its own folder is used")
    source = Source("yolo", file, names, splits, notes, generated=told.get("generated") is True)
    source.keypoints = bool(told.get("kpt_shape"))
    if not names:
        _names_from_labels(source)
    return _with_validation(source)


_EXAMPLE = "it looks like this: `path: .`, `train: images/train`, `val: images/val`, `names: [person, car]`"


def _names(told: dict[str, Any], file: Path) -> tuple[list[str], list[str]]:
    """Names as a list or a dict; from `nc` alone if there are none."""
    names, count = told.get("names"), told.get("nc")
    if isinstance(names, dict):
        try:
            numbers = {int(key): str(value) for key, value in names.items()}
        except (TypeError, ValueError):
            raise UserError(f"`names` in {file} is wrong", cause="its keys have to be 0, 1, 2 …") from None
        if min(numbers, default=0) < 0 or max(numbers, default=0) > 100_000:
            raise UserError(f"`names` in {file} is wrong", cause="its keys have to be 0, 1, 2 …")
        found = [numbers.get(number, f"class {number}") for number in range(max(numbers, default=-1) + 1)]
    elif isinstance(names, list):
        found = [str(each) for each in names]
    elif names is None:
        found = [f"class {number}" for number in range(count)] if isinstance(count, int) and 0 < count < 10**5 else []
        return found, [f"{file.name} has no `names`: classes go by their numbers"]
    else:
        raise UserError(f"`names` in {file} is wrong", cause=f"it is {names!r}, not a list or a dict of names")
    if isinstance(count, int) and count != len(found):
        return found, [f"{file.name} says nc: {count}, but has {len(found)} names: the names count"]
    return found, []


def _names_from_labels(source: Source) -> None:
    """Neither `names` nor `nc`: the largest class that a label mentions."""
    largest = -1
    for path in source.splits["train"].labels[:20_000]:
        try:
            words = (line.split()[:1] for line in read_text(path).splitlines())
            largest = max([largest, *(int(word[0]) for word in words if word and word[0].isdigit())])
        except Unreadable:
            continue
    source.names = [f"class {number}" for number in range(min(largest, 10_000) + 1)]
    source.notes.append(f"{source.file.name} has no `nc` either: the labels mention {len(source.names)} classes")


def _leads_out(file: Path, line: int, what: str, hints: list[str] | None = None) -> UserError:
    at = f"line {line} of {file}" if line else str(file)
    return UserError(f"{at} leads out of the data set", cause=f"`{what}`", hints=[*(hints or []), bounds.HINT])


class _Finder:
    """Finds what one key of a data.yaml means."""

    def __init__(self, file: Path, starts: list[Path], key: tuple[str, int], outside: bool, notes: list[str]) -> None:
        self.file, self.starts, self.key, self.notes, self.outside = file, starts, key, notes, outside

    @property
    def within(self) -> Bounds:
        return Bounds([*self.starts[:1], self.file.parent], outside=self.outside)

    def place(self, given: str) -> Path:
        """The first place that is there and in the set; UserError if there is none, or if it leads out."""
        name, line = self.key
        tried = spellings(given, self.starts)
        there = [each for each in tried if _exists(each.place)]
        if not there:
            cause = "looked for " + ", ".join(str(each.place) for each in tried)
            raise UserError(f"`{name}: {given}` of {self.file} does not exist", cause=cause)
        for each in there:
            if Bounds([each.start, self.file.parent], outside=self.outside).holds(each.place):
                self.starts = list(dict.fromkeys([each.start, self.file.parent]))
                if not each.literal:
                    self.notes.append(f"`{name}: {given}` of {self.file.name} is read as {each.place}")
                return each.place
        raise _leads_out(self.file, line, f"{name}: {given}", ["give the folder that holds the whole set as `path:`"])


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise UserError(f"{path} cannot be read", cause=error.strerror or str(error)) from None


def _yolo_split(given: Any, finder: _Finder) -> Split:
    split = Split()
    folders: list[Path] = []
    found: list[str] = []
    for each in given if isinstance(given, list) else [given]:
        place = finder.place(str(each))
        within = finder.within
        if place.is_dir():
            folders.append(place)
            found += walk(place, within=within, refuse=split.refuse)
        else:
            found += _listed(place, within, split)
    _with_labels(split, sorted(dict.fromkeys(found)), finder.within)
    known = set(split.labels)
    for folder in folders:
        beside = labels_folder(str(folder))
        if beside and os.path.isdir(beside):
            split.orphans += [each for each in walk(Path(beside), (".txt",)) if each not in known]
    return split


def _with_labels(split: Split, found: list[str], within: Bounds) -> None:
    """Labels stand below the set too, or in `labels` beside an `images` that is the set's own folder."""
    beside = [Path(each) for root in within.roots if (each := labels_folder(root))]
    near = Bounds([*map(Path, within.roots), *beside], outside=within.outside)
    for image in found:
        label = label_of(image)
        if near.holds(label):
            split.images.append(image)
            split.labels.append(label)
        else:
            split.refuse(label, 0, f"the label of {image}")


def _listed(file: Path, within: Bounds, split: Split) -> list[str]:
    """Images from a text file, one a line, relative to that file."""
    try:
        lines = read_text(file).splitlines()
    except Unreadable as error:
        raise UserError(f"{file} cannot be read", cause=str(error)) from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            path = Path(line.strip())
            place = str(path if path.is_absolute() else Path(os.path.normpath(file.parent / path)))
            if within.holds(place):
                found.append(place)
            else:
                split.refuse(str(file), number, f"it lists {line.strip()[:200]}")
    return found


# COCO ---------------------------------------------------------------------------------------------------------


def _coco(folder: Path, found: dict[str, Path], outside: bool) -> Source:
    splits, names = {}, []  # type: dict[str, Split], list[str]
    for name, file in found.items():
        data = coco.read(file)
        names = coco.names_of(data) if name == "train" else names
        images = [str(each.get("file_name", "")) for each in data["images"]]
        base = coco.images_folder(folder, file, name, images)
        within = Bounds([folder, base], outside=outside)
        split = splits[name] = Split(annotations=str(file), ids=coco.ids_of(data, names))
        for each in filter(None, images):
            if within.holds(base / each):
                split.named[each] = str(base / each)
            else:
                split.refuse(str(file), 0, f"its image {each[:200]!r}")
        split.images = sorted(split.named.values())
    return _with_validation(Source("coco", found["train"], names, splits))


# Pascal VOC -----------------------------------------------------------------------------------------------------


def _voc(folder: Path, within: Bounds) -> Source:
    bad = Split()
    labels = walk(folder / "Annotations", (".xml",), within=within, refuse=bad.refuse)
    stems = {Path(each).stem: each for each in labels}
    pictures = folder / "JPEGImages" if (folder / "JPEGImages").is_dir() else folder / "images"
    here = walk(pictures, within=within, refuse=bad.refuse) if pictures.is_dir() else []
    images = {Path(each).stem: each for each in here}
    splits = {}
    for name in SPLITS:
        listing = folder / "ImageSets" / "Main" / f"{name}.txt"
        if listing.is_file():
            chosen = {Path(each).name.split()[0] for each in _listed(listing, within, bad)}
            splits[name] = _voc_split(sorted(chosen & set(images)), images, stems)
    if "train" not in splits:
        splits["train"] = _voc_split(sorted(images), images, stems)
    splits["train"].refused = bad.refused
    splits["train"].orphans = sorted(path for stem, path in stems.items() if stem not in images)
    names = sorted(set().union(*(voc_names(each) for each in labels[:50_000])) if labels else set())
    return _with_validation(Source("voc", folder, names, splits))


def _voc_split(chosen: list[str], images: dict[str, str], labels: dict[str, str]) -> Split:
    return Split([images[each] for each in chosen], [labels.get(each, "") for each in chosen])


# Validation -----------------------------------------------------------------------------------------------------


def _with_validation(source: Source) -> Source:
    """Some images are held out where the set names none: by a digest of their names, so always the same ones."""
    train = source.splits["train"]
    if "val" in source.splits or len(train.images) < 2:
        return source
    held = [held_out(image) for image in train.images]
    if not any(held):
        held[-1] = True
    source.splits["train"], source.splits["val"] = (_part(train, held, keep) for keep in (False, True))
    source.splits["train"].orphans, source.splits["train"].refused = train.orphans, train.refused
    source.notes.append(f"no validation set is named: {sum(held):,} of {len(held):,} images are held out for it")
    return source


def held_out(image: str) -> bool:
    return hashlib.sha256(os.path.basename(image).encode(errors="surrogateescape")).digest()[0] % HELD_OUT == 0


def _part(split: Split, held: list[bool], keep: bool) -> Split:
    images = [each for each, out in zip(split.images, held, strict=True) if out == keep]
    labels = [each for each, out in zip(split.labels, held, strict=True) if out == keep] if split.labels else []
    return Split(images, labels, [], split.annotations, split.named, split.ids)


def stamps(source: Source) -> Iterator[bytes]:
    """What changes when a file does, for every file of the set: its path, size and time."""
    for name, split in sorted(source.splits.items()):
        yield name.encode()
        for path in (*split.images, *split.labels, *split.orphans, split.annotations):
            yield path.encode(errors="surrogateescape")
            yield _stamp(path)


def _stamp(path: str) -> bytes:
    try:
        told = os.stat(path) if path else None
    except OSError:
        told = None
    return f"{told.st_size},{told.st_mtime_ns};".encode() if told else b"-;"
