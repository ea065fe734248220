"""How far a data set may reach: into its own folder, and no further.

    bounds = Bounds([folder])
    bounds.holds("set/images/07.jpg")         # False for what an absolute path, a `..` or a link leads out by

The folder is the one that the user named, or the `path:` of a data.yaml that the user named. Lists of images, names in
a COCO file and links come with the set, and may be anybody's. The setting `data.outside` lets them lead anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

HINT = "if you trust it: `data.outside=true` (HOLDFAST_DATA_OUTSIDE=1) lets a data set lead out of its folder"


class Bounds:
    """Folders, and what is below them when all links have been followed."""

    def __init__(self, roots: Iterable[Path], *, outside: bool = False) -> None:
        self.outside = outside
        self.roots = [os.path.realpath(each) for each in roots]
        self._known: dict[str, bool] = {}

    def holds(self, path: str | Path) -> bool:
        """Whether a file or folder is below one of the roots. It costs one look a file, and one path a folder."""
        if self.outside:
            return True
        folder, _ = os.path.split(os.path.abspath(path) if os.pardir in str(path) else str(path))
        inside = self._known.get(folder)
        if inside is None:
            inside = self._known[folder] = self._below(os.path.realpath(folder))
        if inside and not os.path.islink(path):
            return True
        return self._below(os.path.realpath(path))

    def _below(self, real: str) -> bool:
        return any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in self.roots)
