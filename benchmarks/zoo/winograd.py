"""How much Winograd's ways of convolution amplify roundings: the numbers of GAINS in bounds_of_sums.py.

    python -m benchmarks.zoo.winograd

F(m, r) computes m outputs of a kernel of r from m + r - 1 inputs: A((G w) * (B x)). A rounding of a number in the
middle, relative to the norms of w and x, is at most g b; the last matrix adds them up with the factors |a|.
"""

from __future__ import annotations

import numpy as np

POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 4.0, -4.0)


def matrices(m: int, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, G and B of Toom and Cook for these points and infinity."""
    n = m + r - 1
    points = POINTS[: n - 1]
    last, first, second = np.zeros((m, n)), np.zeros((n, r)), np.zeros((n, n))
    for column, point in enumerate(points):
        others = [each for each in points if each != point]
        last[:, column] = [point**power for power in range(m)]
        first[column] = [point**power / np.prod([point - each for each in others]) for power in range(r)]
        second[column, : n - 1] = np.poly(others)[::-1]
    last[m - 1, n - 1] = first[n - 1, r - 1] = 1.0
    second[n - 1] = np.poly(points)[::-1]
    return last, first, second


def gain(m: int, r: int) -> float:
    """In two dimensions."""
    last, first, second = matrices(m, r)
    inner = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float((np.abs(last) @ inner).max() ** 2)


def largest(kernel: int, tile: int) -> float:
    """Over the tiles up to this one, for outputs and for gradients of the kernel."""
    sizes = range(2, tile - kernel + 2)
    return max(max(gain(m, kernel), gain(kernel, m)) for m in sizes)


if __name__ == "__main__":
    for kernel, tile in ((2, 4), (3, 8), (5, 10)):
        print(kernel, round(largest(kernel, tile)))
