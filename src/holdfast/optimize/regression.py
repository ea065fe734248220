"""How near guesses are to true numbers, in plain numpy.

nrmse(truth, guess)          # rmse / std(truth): 1.0 is what the mean gets; NaN where all true values are the same
pearson(truth, guess)        # NaN, never a number, where one side does not vary
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def pair(truth: ArrayLike, guess: ArrayLike) -> tuple[Floats, Floats]:
    """Both as flat float64; ValueError if they are not of one length."""
    y, p = np.asarray(truth, dtype=np.float64).ravel(), np.asarray(guess, dtype=np.float64).ravel()
    if y.shape != p.shape:
        raise ValueError(f"{y.size} true values, {p.size} guesses")
    return y, p


def nrmse(truth: ArrayLike, guess: ArrayLike) -> float:
    """Root mean square error over the standard deviation of the truth (ddof 0), as the competition has it."""
    y, p = pair(truth, guess)
    return float(np.sqrt(np.mean((y - p) ** 2)) / y.std()) if varies(y) else float("nan")


def varies(values: Floats) -> bool:
    """Whether two of them differ. The standard deviation of equal numbers is rarely 0: their mean is rounded."""
    return bool(values.size and not (values == values[0]).all())


def pearson(truth: ArrayLike, guess: ArrayLike) -> float:
    """Linear correlation; NaN if either side does not vary."""
    y, p = pair(truth, guess)
    if not varies(y) or not varies(p):
        return float("nan")
    y, p = y - y.mean(), p - p.mean()
    size = float(np.sqrt((y @ y) * (p @ p)))
    return float(y @ p) / size if size > 1e-300 else float("nan")
