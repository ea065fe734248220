"""The files of a data set: what is below a folder, and where the label of an image is.

walk(Path("set/images"))                      # every image, links that lead nowhere new included
label_of("set/images/a/07.jpg")               # "set/labels/a/07.txt"
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.workloads.detection.bounds import Bounds
from holdfast.workloads.detection.images import ENDINGS

Refuse = Callable[[str, int, str], None]
"""Is told of a file or link that leads out: which, its line, what it is."""


def walk(
    folder: Path, endings: Iterable[str] = ENDINGS, *, within: Bounds | None = None, refuse: Refuse | None = None
) -> list[str]:
    """Files below a folder; one that may not be read is an error that names it. Links out of `within` are left."""
    found: list[str] = []
    waiting = [str(folder)]
    wanted = tuple(endings)
    been: set[str] = set()  # links may lead back up
    while waiting:
        here = waiting.pop()
        try:
            if os.path.realpath(here) in been:
                continue
            been.add(os.path.realpath(here))
            with os.scandir(here) as entries:
                for entry in entries:
                    if within is not None and entry.is_symlink() and not within.holds(entry.path):
                        if refuse is not None:
                            refuse(entry.path, 0, f"a link to {os.path.realpath(entry.path)}")
                    elif entry.name.lower().endswith(wanted):
                        found.append(entry.path)
                    elif not entry.name.startswith(".") and entry.is_dir():
                        waiting.append(entry.path)
        except OSError as error:
            raise UserError(
                f"{here} cannot be read", cause=error.strerror or str(error), hints=["check who may read that folder"]
            ) from None
    return sorted(found)


def label_of(image: str) -> str:
    """`…/images/a/b.jpg` has its label in `…/labels/a/b.txt`; without a folder `images`, beside itself."""
    stem = os.path.splitext(image)[0] + ".txt"
    return labels_folder(stem) or stem


def labels_folder(path: str) -> str | None:
    """The same path below `labels` instead of `images`, if there is an `images` in it."""
    parts = path.split(os.sep)
    at = [number for number, part in enumerate(parts) if part == "images"]
    return os.sep.join([*parts[: at[-1]], "labels", *parts[at[-1] + 1 :]]) if at else None
