"""Which recording is sample 4711? Where a sample came from, as far as its dataset can tell. No torch here.

    source_of(dataset, 4711)         # "sub-NDARAC904DMU/eeg/sub-NDARAC904DMU_task-RestingState_eeg.set", or None

A dataset that knows says so itself: `def source(self, index) -> str`. Others are asked for what most of them have:
a list with one path per sample (`files`, `samples`, `imgs`, ...), or a `description` of the recording. Subsets,
concatenations and wrappers are looked through. Never an error and never slow: nothing is read from the dataset.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

MOST_LAYERS = 16
"""Datasets inside of datasets: deeper than this is a circle."""
MOST_TEXT = 500
"""Characters of a source that are kept."""

_LISTS = (
    *("files", "paths", "filenames", "file_names", "filepaths", "file_paths", "fnames", "recordings", "records"),
    *("image_files", "image_paths", "images", "imgs", "samples", "items"),
)
"""Attributes that often hold one path per sample, those that mean nothing else first."""
_KEYS = ("path", "file", "filename", "file_name", "filepath", "file_path", "fname", "source", "recording")
"""The same for a sample that is described by a mapping."""
_MOST_WORDS = 6
_MOST_DATASETS = 100_000


def source_of(dataset: Any, index: int) -> str | None:
    """A path or a description of where sample `index` came from; None if nobody knows."""
    try:
        return _clean(_ask(dataset, int(index), 0))
    except Exception:  # somebody else's object may raise anything, and this must not make a bad day worse
        return None


def described(dataset: Any, indices: Any) -> list[dict[str, Any]]:
    """`[{"index": 4711, "source": "..."}]`, the form in which samples are named in JSON."""
    return [{"index": int(index), "source": source_of(dataset, int(index))} for index in indices]


def _ask(dataset: Any, index: int, layer: int) -> str | None:
    if layer > MOST_LAYERS or dataset is None:
        return None
    own = getattr(dataset, "source", None)
    if callable(own):
        return _text(own(index))
    within = _inside(dataset, index)
    if within is not None:
        found = _ask(*within, layer + 1)
        if found is not None:
            return found
    return _in_lists(dataset, index) or _in_description(dataset)


def _inside(dataset: Any, index: int) -> tuple[Any, int] | None:
    """The dataset this one is made of, and the sample's index there."""
    parts = _own(dataset, "datasets")
    if isinstance(parts, (list, tuple)) and 0 < len(parts) <= _MOST_DATASETS:  # torch's ConcatDataset, and its kind
        ends = _own(dataset, "cumulative_sizes") or list(accumulate(len(part) for part in parts))
        number = bisect_right(ends, index)
        return parts[number], index - (ends[number - 1] if number else 0)
    inner = _own(dataset, "dataset")
    if inner is None:
        return None
    indices = _own(dataset, "indices")
    if indices is not None:  # torch's Subset, which random_split makes too
        return inner, int(indices[index])
    return (inner, index) if len(inner) == len(dataset) else None


def _in_lists(dataset: Any, index: int) -> str | None:
    length = len(dataset)
    for name, values in _lists(dataset):
        if len(values) != length:
            continue
        found = _path_in(values[index], sure=name in _LISTS[:9])
        if found is not None:
            return found
    return None


def _lists(dataset: Any) -> Iterator[tuple[str, Any]]:
    """What the instance holds under a telling name, and then whatever else it holds. Never a property."""
    held = getattr(dataset, "__dict__", {})
    names = [name for name in (*_LISTS, *("_" + name for name in _LISTS)) if name in held]
    for name in [*names, *(name for name in held if name not in names)]:
        value = held[name]
        if isinstance(value, (list, tuple)) or (type(value).__name__ == "ndarray" and value.ndim > 0):
            yield name.lstrip("_"), value


def _path_in(value: Any, *, sure: bool) -> str | None:
    """The path in what stands for one sample: itself, the first of a tuple, an entry of a mapping."""
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    if isinstance(value, Mapping):
        value = next((value[key] for key in _KEYS if key in value), None)
        sure = True
    if isinstance(value, os.PathLike):
        return _text(value)
    if not isinstance(value, str) or not value or len(value) > 4096 or "\n" in value:
        return None
    return str(value) if sure or _looks_like_a_path(value) else None


def _looks_like_a_path(text: str) -> bool:
    """A sentence may have a dot or a slash as well; a file has an ending, or at least no blanks around a slash."""
    _, ending = os.path.splitext(text)
    if 1 < len(ending) <= 8 and ending[1:].isalnum():
        return True
    return ("/" in text or "\\" in text) and " " not in text


def _in_description(dataset: Any) -> str | None:
    """What a recording says about itself, as those of braindecode do: a mapping or a pandas Series."""
    raw = _own(dataset, "raw")
    files = getattr(raw, "filenames", None) if raw is not None else None
    if files:
        return _text(files[0])
    about = _own(dataset, "description")
    if about is None:
        about = getattr(dataset, "_description", None)
    if about is None or isinstance(about, str):
        return about or None
    pairs = dict(about.items())
    for key in _KEYS:
        if isinstance(pairs.get(key), (str, os.PathLike)):
            return _text(pairs[key])
    words = [f"{key}={value}" for key, value in pairs.items() if isinstance(value, (str, int, float))]
    return ", ".join(words[:_MOST_WORDS]) or None


def _own(dataset: Any, name: str) -> Any:
    """An attribute of the instance; a property would run code of the user's, and may read a file."""
    return getattr(dataset, "__dict__", {}).get(name)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return os.fsdecode(value) if isinstance(value, (os.PathLike, bytes)) else None


def _clean(text: str | None) -> str | None:
    """One line without control characters: it goes to terminals and into JSON."""
    if not text:
        return None
    shown = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return shown if len(shown) <= MOST_TEXT else "…" + shown[1 - MOST_TEXT :]
