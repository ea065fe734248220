"""The index of a data set: which images can be trained on and where their boxes are, checked once, then remembered.

    checked = open_set("bccd/data.yaml")                 # finds, checks, keeps; the second time it only compares
    train = checked.splits["train"]                      # Index: arrays, a few dozen bytes an image
    train.path(7), train.boxes(7), train.size(7)
    checked.problems                                     # every bad label by file and line

Three hundred thousand images are a few arrays, not as many objects: paths in one piece of bytes, all boxes in one
table. The kept file is plain numpy without pickle; it is not used if any image or label has changed since.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.data_files import open_file, open_npz
from holdfast.base.errors import UserError
from holdfast.base.folders import Folder, make_private
from holdfast.workloads.detection import labels, sources
from holdfast.workloads.detection.classes import Classes
from holdfast.workloads.detection.labels import Boxes
from holdfast.workloads.detection.problems import Problems
from holdfast.workloads.detection.reading import reader_of, row_of
from holdfast.workloads.detection.sources import Source

FORMAT = 2
CACHE = "HOLDFAST_DETECTION_CACHE"
"""Where indices and the generated set are kept, if not in the user's cache folder."""
Tell = Callable[[int, int, str], None]


@dataclass
class Index:
    """One part of a set."""

    names: NDArray[np.uint8]
    """All paths, one after the other."""
    ends: NDArray[np.int64]
    sizes: NDArray[np.int32]
    """Width, height, channels of each image."""
    box_ends: NDArray[np.int64]
    table: Boxes

    def __len__(self) -> int:
        return len(self.ends)

    def path(self, index: int) -> str:
        start = self.ends[index - 1] if index else 0
        return os.fsdecode(self.names[start : self.ends[index]].tobytes())

    def boxes(self, index: int) -> Boxes:
        """Rows of class, x1, y1, x2, y2 in shares of the image."""
        rows = self.rows(index)
        return rows[rows[:, 0] >= 0]

    def masks(self, index: int) -> Boxes:
        """Rows of the places that must be neither learned nor taken for background."""
        rows = self.rows(index)
        return rows[rows[:, 0] < 0]

    def rows(self, index: int) -> Boxes:
        """Boxes and masks."""
        start = self.box_ends[index - 1] if index else 0
        return self.table[start : self.box_ends[index]]

    @property
    def negative(self) -> int:
        """Images without any object: nothing may be found there."""
        return int((np.diff(self.box_ends, prepend=0) == 0).sum())

    def size(self, index: int) -> tuple[int, int]:
        return int(self.sizes[index, 0]), int(self.sizes[index, 1])

    @property
    def grey(self) -> bool:
        return bool(len(self)) and bool((self.sizes[:, 2] == 1).all())

    @property
    def most_boxes(self) -> int:
        return int(np.diff(self.box_ends, prepend=0).max(initial=0))

    def counts(self, classes: int) -> list[int]:
        """Boxes of each class."""
        kinds = self.table[self.table[:, 0] >= 0, 0].astype(np.int64)
        return [int(each) for each in np.bincount(kinds, minlength=classes)[:classes]]

    def taken(self, rows: NDArray[np.int64]) -> Index:
        """Only these images."""
        return _index([(self.path(int(row)), tuple(self.sizes[row]), self.rows(int(row))) for row in rows])

    def sound(self) -> bool:
        """Whether the arrays fit together: the file may come from anywhere."""
        same = self.sizes.shape == (len(self), 3) and self.box_ends.shape == (len(self),)
        steps = all((np.diff(each, prepend=0) >= 0).all() for each in (self.ends, self.box_ends))
        last = not len(self) or (self.ends[-1] == len(self.names) and self.box_ends[-1] == len(self.table))
        return bool(same and steps and last and self.table.ndim == 2 and self.table.shape[1] == 5)


def _index(rows: Sequence[tuple[str, tuple[Any, ...], Boxes]]) -> Index:
    paths = [os.fsencode(path) for path, _, _ in rows]
    return Index(
        names=np.frombuffer(b"".join(paths), np.uint8),
        ends=np.cumsum([len(each) for each in paths], dtype=np.int64),
        sizes=np.array([size for _, size, _ in rows], np.int32).reshape(-1, 3),
        box_ends=np.cumsum([len(boxes) for _, _, boxes in rows], dtype=np.int64),
        table=np.concatenate([boxes for _, _, boxes in rows]) if rows else labels.NONE,
    )


@dataclass
class Checked:
    """A whole set: what can be trained on, and what was wrong with the rest."""

    file: str
    kind: str
    names: list[str]
    splits: dict[str, Index]
    problems: Problems = field(default_factory=Problems)
    notes: list[str] = field(default_factory=list)
    generated: bool = False
    left_out: int = 0
    """Images that are in no part because they cannot be used."""
    warm: bool = False
    """Found checked, not checked now."""

    @property
    def grey(self) -> bool:
        return all(part.grey for part in self.splits.values() if len(part))


def open_set(
    data: str,
    *,
    tell: Tell | None = None,
    rebuild: bool = False,
    decode: bool = False,
    bound: Path | None = None,
    outside: bool | None = None,
    classes: str = "",
) -> Checked:
    """Find a set and check it, or use the check of before if nothing has changed; UserError if nothing can be used.

    `classes` chooses and renames classes (`classes.py`). `bound` is the file of a run that goes on with what it began
    with, whatever happens to the set meanwhile: it is used as it is if it is there, and made if not. `outside` lets
    the set lead out of its folder; None: the settings.
    """
    checked = _load(bound) if bound is not None else None
    if checked is None:
        source = sources.find(data, outside=outside)
        wanted = Classes.chosen(classes, source.names)
        kept = _place(source, decode, wanted)
        checked = None if rebuild else _load(kept)
        if checked is None:
            checked = build(source, tell=tell, decode=decode, wanted=wanted)
            _save(kept, checked)
        if bound is not None:
            _save(bound, checked)
    _check_usable(checked)
    return checked


def check_set(data: str, *, tell: Tell | None = None, decode: bool = False, classes: str = "") -> Checked:
    """Look at all of a set now, whatever is left of it; a run that follows finds it checked."""
    source = sources.find(data)
    wanted = Classes.chosen(classes, source.names)
    checked = build(source, tell=tell, decode=decode, wanted=wanted)
    for thorough in {False, decode}:
        _save(_place(source, thorough, wanted), checked)
    return checked


def _place(source: Source, decode: bool, wanted: Classes) -> Path:
    return cache_folder() / "indices" / f"{_key(source, decode, wanted)}.npz"


def _check_usable(checked: Checked) -> None:
    if not checked.names:
        raise UserError(f"no class is known in {checked.file}", hints=["name them in data.yaml: `names: [person]`"])
    for name in ("train", "val"):
        part = checked.splits.get(name)
        if part is None or not len(part):
            seen = "; ".join(checked.problems.summary()) or "no image was found"
            raise UserError(f"{checked.file} has no image to {'train on' if name == 'train' else 'validate with'}",
                            cause=seen, hints=["`holdfast detection check` names every problem"])  # fmt: skip
    if not sum(checked.splits["train"].counts(len(checked.names))):
        raise UserError(f"{checked.file} has no box to learn from", cause="; ".join(checked.problems.summary()) or None)


def build(source: Source, *, tell: Tell | None = None, decode: bool = False, wanted: Classes | None = None) -> Checked:
    """Look at every image and every label."""
    problems, told = Problems(), Counter()  # type: Problems, Counter[str]
    wanted = wanted or Classes.chosen("", source.names)
    unwanted: Counter[str] = Counter()
    total = sum(len(split.images) for split in source.splits.values())
    tell = tell or (lambda done, of, what: None)
    splits, done = {}, 0
    for name, split in source.splits.items():
        reader = reader_of(source, split, len(wanted.before), problems, told)
        rows = []
        for number, image in enumerate(split.images):
            row = row_of(image, number, reader, problems, decode)
            if row is not None:
                rows.append((*row[:2], wanted.applied(row[2], unwanted)))
            done += 1
            if done % 500 == 0:
                tell(done, total, "checking images and labels")
        for refused in split.refused:
            problems.add(*refused)
        for orphan in split.orphans:
            problems.add(orphan, 0, "label_without_image", "a label, but no image")
        splits[name] = _index(rows)
    left = total - sum(len(part) for part in splits.values())
    if "val" in splits:
        splits["val"] = _without_trained(splits["train"], splits["val"], problems)
    tell(total, total, "checking images and labels")
    notes = [*source.notes, *_notes(splits, told, wanted, unwanted)]
    return Checked(str(source.file), source.kind, wanted.names, splits, problems, notes, source.generated, left)


def _notes(splits: dict[str, Index], told: Counter[str], wanted: Classes, unwanted: Counter[str]) -> list[str]:
    """What was done that is no mistake of the set: boxes out of polygons, other classes, images without an object."""
    notes = [f"{told[form]:,} {words}" for form, words in labels.FORMS.items() if told[form]]
    notes += [] if wanted.plain else [wanted.note()]
    if unwanted:
        which = ", ".join(f"{name} {count:,}" for name, count in unwanted.most_common(8))
        notes.append(f"{unwanted.total():,} boxes of classes that are not wanted are background: {which}")
    negative = {name: part.negative for name, part in splits.items() if part.negative}
    if negative:
        counted = ", ".join(f"{count:,} {name}" for name, count in negative.items())
        notes.append(f"images without any object, in which nothing may be found: {counted}")
    return notes


def _without_trained(train: Index, val: Index, problems: Problems) -> Index:
    """Validation images that are trained on as well say nothing: found by their content, compared where sizes agree."""
    sizes: dict[int, list[int]] = {}
    for number in range(len(train)):
        sizes.setdefault(_file_size(train.path(number)), []).append(number)
    known: dict[int, dict[bytes, int]] = {}
    good = []
    for number in range(len(val)):
        path = val.path(number)
        size = _file_size(path)
        if size in sizes and size not in known:
            known[size] = {_content(train.path(each)): each for each in sizes[size]}
        twin = known.get(size, {}).get(_content(path)) if size in sizes else None
        if twin is None:
            good.append(number)
        else:
            problems.add(path, 0, "in_both", f"the same image as {train.path(twin)}")
    return val if len(good) == len(val) else val.taken(np.array(good, np.int64))


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _content(path: str) -> bytes:
    try:
        with open_file(path) as file:
            return hashlib.blake2b(file.read(), digest_size=16).digest()
    except OSError:
        return path.encode(errors="surrogateescape")


# Kept ---------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The same for all runs of a user."""
    if os.environ.get(CACHE):
        return Path(os.environ[CACHE])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "holdfast" / "detection"


def _key(source: Source, decode: bool, wanted: Classes) -> str:
    told = f"{FORMAT} {source.kind} {source.file} {source.names} {decode} {wanted.names} {wanted.becomes}"
    digest = hashlib.blake2b(told.encode(errors="surrogateescape"), digest_size=20)
    for stamp in sources.stamps(source):
        digest.update(stamp)
    return digest.hexdigest()


_ARRAYS = ("names", "ends", "sizes", "box_ends", "table")
_TYPES = {"names": np.uint8, "ends": np.int64, "sizes": np.int32, "box_ends": np.int64, "table": np.float32}


def _save(path: Path, checked: Checked) -> None:
    arrays = {f"{part}.{name}": getattr(index, name) for part, index in checked.splits.items() for name in _ARRAYS}
    told = {
        "file": checked.file,
        "kind": checked.kind,
        "names": checked.names,
        "splits": list(checked.splits),
        "problems": checked.problems.to_json(),
        "notes": checked.notes,
        "generated": checked.generated,
        "left_out": checked.left_out,
    }
    about = np.frombuffer(json.dumps(told).encode(), np.uint8)
    try:
        make_private(path.parent)
        beside = path.with_suffix(f".{os.getpid()}.tmp").name
        with Folder.at(path.parent) as folder:
            folder.discard(beside)
            with folder.create(beside) as file:
                np.savez(file, about=about, **arrays)
            folder.rename(beside, path.name)
    except OSError:
        return  # a full disk: the next run checks again


def _load(path: Path) -> Checked | None:
    """None for a file that is missing, damaged, or not ours."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, EOFError):
        with open_npz(path) as data:
            about = json.loads(data["about"].tobytes())
            names = [str(each) for each in about["names"]]
            splits = {str(part): _read_index(data, str(part), len(names)) for part in about["splits"]}
        problems = Problems.from_json(about["problems"])
        notes = [str(each) for each in about["notes"]]
        return Checked(str(about["file"]), str(about["kind"]), names, splits, problems, notes,
                       about["generated"] is True, int(about["left_out"]), warm=True)  # fmt: skip
    return None


def _read_index(data: Any, part: str, classes: int) -> Index:
    """ValueError if the arrays do not fit together: the file may come from anywhere."""
    arrays = {name: data[f"{part}.{name}"] for name in _ARRAYS}
    index = Index(**arrays)
    if any(arrays[name].dtype != kind for name, kind in _TYPES.items()) or not index.sound():
        raise ValueError(part)
    if len(index) and index.sizes.min() < 1:
        raise ValueError(part)
    if len(index.table) and not labels.MASK <= index.table[:, 0].min() <= index.table[:, 0].max() < classes:
        raise ValueError(part)
    return index
