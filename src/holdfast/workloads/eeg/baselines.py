"""What a score has to be held against: guesses that never looked at the EEG.

    constant(train)                                   # the mean of the training labels
    age_and_sex(train_people, train, test_people)     # ridge on age and sex
    subject_mean(test, subjects)                      # an oracle: knows each test subject's true mean

The oracle is what a perfect reader of the person, and nothing else, would get; no honest model has its knowledge.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def constant(train: ArrayLike) -> float:
    """The mean of what is known."""
    return float(np.nanmean(np.asarray(train, dtype=np.float64)))


def age_and_sex(train_people: ArrayLike, train: ArrayLike, test_people: ArrayLike, *, ridge: float = 1.0) -> Floats:
    """Ridge regression on (age, sex); a missing one counts as the mean."""
    known = np.asarray(train_people, dtype=np.float64)
    y = np.asarray(train, dtype=np.float64).ravel()
    asked = np.asarray(test_people, dtype=np.float64)
    centre, spread = _of(known)
    x, ask = _scaled(known, centre, spread), _scaled(asked, centre, spread)
    kept = np.isfinite(y)
    x, y = x[kept], y[kept]
    if not len(y):
        return np.full(len(ask), np.nan)
    mean = y.mean()
    weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ (y - mean))
    found: Floats = ask @ weights + mean
    return found


def _of(people: Floats) -> tuple[Floats, Floats]:
    some = np.isfinite(people).any(axis=0)
    filled = np.where(some, people, 0.0)
    return np.nanmean(filled, axis=0), np.nanstd(filled, axis=0)


def _scaled(people: Floats, centre: Floats, spread: Floats) -> Floats:
    return np.nan_to_num((people - centre) / np.where(spread > 0, spread, 1.0))


def subject_mean(truth: ArrayLike, subjects: ArrayLike) -> Floats:
    """Each row gets the true mean of its subject."""
    y = np.asarray(truth, dtype=np.float64).ravel()
    _, number = np.unique(np.asarray(subjects), return_inverse=True)
    sums, counts = np.bincount(number, weights=y), np.bincount(number)
    means: Floats = (sums / counts)[number]
    return means
