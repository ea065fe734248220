"""Who is near whom? The nearest animals of one species, for everybody, in all worlds at once.

    find = Nearest(x, y, world, size=24.0)          # the ones to be found: flat arrays
    index, found = find(x, y, world, k=8, within=6.0)

One tree holds all worlds: they are layers, further apart than anybody sees. The map's edges meet. scipy's cKDTree does
it; without scipy all pairs of a world are compared, which is slower and finds the same ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

try:
    from scipy.spatial import cKDTree
except ImportError:  # pragma: no cover - the extra `ecosystem` has it
    cKDTree = None


class Nearest:
    """The animals to be found."""

    def __init__(self, x: Floats, y: Floats, world: Ints, *, size: float, tree: bool | None = None) -> None:
        self.size, self.count = size, len(x)
        self._points = self._layered(x, y, world)
        self._tree: Any = None
        if self.count and (cKDTree is not None if tree is None else tree):
            box = np.array([size, size, 0.0])  # 0: no wrapping from the last world to the first
            self._tree = cKDTree(self._points, boxsize=box, balanced_tree=False, compact_nodes=False)

    def _layered(self, x: Floats, y: Floats, world: Ints) -> NDArray[np.float64]:
        return np.stack([x, y, world * (4.0 * self.size)], axis=1).astype(np.float64)

    def __call__(self, x: Floats, y: Floats, world: Ints, *, k: int, within: float) -> tuple[Ints, NDArray[np.bool_]]:
        """(who, k) positions in the arrays above, nearest first, and which of them are real."""
        if not self.count or not len(x):
            return np.zeros((len(x), k), np.int64), np.zeros((len(x), k), bool)
        points = self._layered(x, y, world)
        if self._tree is not None:
            _, index = self._tree.query(points, k=k, distance_upper_bound=within)
            index = index.reshape(len(x), k)
            found = index < self.count
            return np.where(found, index, 0).astype(np.int64), found
        return self._all_pairs(points, k, within)

    def _all_pairs(self, points: NDArray[np.float64], k: int, within: float) -> tuple[Ints, NDArray[np.bool_]]:
        apart = np.abs(points[:, None, :2] - self._points[None, :, :2])
        apart = np.minimum(apart, self.size - apart)
        square = (apart**2).sum(axis=2)
        square[points[:, None, 2] != self._points[None, :, 2]] = np.inf
        short = min(k, self.count)
        index = np.argsort(square, axis=1, kind="stable")[:, :short]
        found = np.take_along_axis(square, index, axis=1) < within**2
        pad = ((0, 0), (0, k - short))
        return np.pad(index, pad), np.pad(found, pad)


def without_self(index: Ints, found: NDArray[np.bool_], own: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """One column fewer: the animal itself is not its neighbour. Who has not found itself loses the furthest."""
    itself = (index == own[:, None]) & found
    if itself[:, 0].all():
        return index[:, 1:], found[:, 1:]
    order = np.argsort(itself, axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(found, order, axis=1)
