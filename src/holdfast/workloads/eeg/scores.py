"""The competition's metric and its friends, in plain numpy.

    nrmse(truth, guess)                                   # rmse / std(truth): 1.0 is what the mean gets
    overall(challenge1=0.914, challenge2=0.985)           # 0.3 C1 + 0.7 C2 = 0.9637
    pearson(truth, guess), auroc(slow, guess)
    interval(nrmse, truth, guess, subjects)               # (low, high): subjects are drawn, not windows
    inside_noise(nrmse, truth, guess, subjects, constant) # whether it could be the constant's luck

Unknown is NaN, never a number: a constant guess has no correlation, labels of one kind have no AUROC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.base.human import counted
from holdfast.optimize.regression import nrmse, pair, pearson, varies
from holdfast.workloads.eeg import closing

__all__ = ["auroc", "inside_noise", "interval", "nrmse", "overall", "pearson"]

Floats = NDArray[np.float64]
Metric = Callable[[Floats, Floats], float]

FEWEST = closing.FEWEST
WEIGHTS = (0.3, 0.7)
"""Challenge 1 and Challenge 2 in the overall score."""


def overall(challenge1: float, challenge2: float) -> float:
    """The number of the leaderboard."""
    return WEIGHTS[0] * challenge1 + WEIGHTS[1] * challenge2


def auroc(positive: ArrayLike, guess: ArrayLike) -> float:
    """The chance that a positive one is ranked above a negative one; ties count half."""
    label, p = np.asarray(positive, dtype=bool).ravel(), np.asarray(guess, dtype=np.float64).ravel()
    if label.shape != p.shape:
        raise ValueError(f"{label.size} labels, {p.size} guesses")
    ups, downs = int(label.sum()), int((~label).sum())
    if not ups or not downs:
        return float("nan")
    ranks = _ranks(p)
    return float((ranks[label].sum() - ups * (ups + 1) / 2) / (ups * downs))


def _ranks(values: Floats) -> Floats:
    """1, 2, 3, …; equal values share the mean of their ranks."""
    order = np.argsort(values, kind="stable")
    _, first, counts = np.unique(values[order], return_index=True, return_counts=True)
    shared = np.repeat(first + (counts + 1) / 2, counts)
    ranks = np.empty(len(values))
    ranks[order] = shared
    return ranks


def slow(truth: ArrayLike) -> NDArray[np.bool_]:
    """Trials slower than the median: the positive ones of the fast/slow AUROC."""
    y = np.asarray(truth, dtype=np.float64).ravel()
    return y > np.median(y)


def fast_slow(truth: ArrayLike, guess: ArrayLike) -> float:
    """AUROC of telling slow trials from fast ones."""
    return auroc(slow(truth), guess)


# How sure is it? --------------------------------------------------------------------------------------------


def draws(subjects: ArrayLike, times: int, seed: int, fewest: int = FEWEST) -> list[NDArray[np.intp]]:
    """Row indices of `times` bootstrap samples in which whole subjects are drawn with replacement.

    None for fewer than five subjects: of two, half of all draws are one of them twice, and nobody knows from them how
    far others are.
    """
    _, number = np.unique(np.asarray(subjects), return_inverse=True)
    rows = [np.flatnonzero(number == each) for each in range(int(number.max()) + 1)] if number.size else []
    if len(rows) < fewest:
        return []
    generator = np.random.default_rng(seed)
    return [
        np.concatenate([rows[each] for each in generator.integers(len(rows), size=len(rows))]) for _ in range(times)
    ]


def bootstrap(
    metric: Metric, truth: ArrayLike, guess: ArrayLike, subjects: ArrayLike, *, times: int = 500, seed: int = 0,
    fewest: int = FEWEST,
) -> Floats:  # fmt: skip
    """The metric in each of `times` samples of subjects; undefined ones are left out."""
    y, p = pair(truth, guess)
    values = np.array([metric(y[rows], p[rows]) for rows in draws(subjects, times, seed, fewest)])
    kept: Floats = values[np.isfinite(values)]
    return kept


def interval(
    metric: Metric, truth: ArrayLike, guess: ArrayLike, subjects: ArrayLike, *, times: int = 500, seed: int = 0,
    fewest: int = FEWEST,
) -> tuple[float, float]:  # fmt: skip
    """The middle 95 % of `bootstrap`; NaN where too few samples define it."""
    values = bootstrap(metric, truth, guess, subjects, times=times, seed=seed, fewest=fewest)
    if len(values) < 20:
        return float("nan"), float("nan")
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def inside_noise(
    truth: ArrayLike, guess: ArrayLike, constant: ArrayLike, subjects: ArrayLike, *, times: int = 500, seed: int = 0
) -> bool:
    """Whether the gain over the constant, in the same subjects, is not clearly above zero (paired, 95 %)."""
    y, p = pair(truth, guess)
    _, c = pair(truth, np.broadcast_to(np.asarray(constant, dtype=np.float64), y.shape))
    gains = np.array([nrmse(y[rows], c[rows]) - nrmse(y[rows], p[rows]) for rows in draws(subjects, times, seed)])
    gains = gains[np.isfinite(gains)]
    return len(gains) < 20 or float(np.percentile(gains, 2.5)) <= 0.0


def calibrate(truth: ArrayLike, guess: ArrayLike, centre: float) -> tuple[float, float]:
    """(gain, bias) that shrink a guess towards `centre`: least squares, never turned round, never stretched."""
    y, p = pair(truth, guess)
    known = np.isfinite(y) & np.isfinite(p)
    y, p = y[known], p[known]
    variance = float(p.var()) if p.size > 2 else 0.0
    if variance <= 1e-12:
        return 0.0, centre
    slope = float(np.mean((p - p.mean()) * (y - y.mean())) / variance)
    slope = min(max(slope, 0.0), 1.0)
    return slope, centre - slope * float(p.mean())


def shrunk_nrmse(truth: ArrayLike, guess: ArrayLike) -> float:
    """What `nrmse` would be after the best shrinking: for choosing weights whose scale is corrected afterwards."""
    y, p = pair(truth, guess)
    gain, bias = calibrate(y, p, float(np.mean(y)))
    return nrmse(y, gain * p + bias)


def measured(truth: Any, guess: Any, subjects: Any, constant: float, *, auroc_too: bool = False) -> dict[str, Any]:
    """The metrics with their intervals, and whether the gain over the constant is more than luck."""
    found: dict[str, Any] = {}
    wanted: dict[str, Metric] = {"nrmse": nrmse, "r": pearson}
    if auroc_too:
        wanted["auroc"] = fast_slow
    for name, metric in wanted.items():
        low, high = interval(metric, truth, guess, subjects)
        found[name] = rounded(metric(truth, guess))
        found[f"{name}_low"], found[f"{name}_high"] = rounded(low), rounded(high)
    found["inside_noise"] = inside_noise(truth, guess, constant, subjects)
    return found | no_score(truth, subjects)


def no_score(truth: ArrayLike, subjects: ArrayLike) -> dict[str, str]:
    """{"no_nrmse": why}, where there is no nRMSE; nothing where there is one."""
    y = np.asarray(truth, dtype=np.float64).ravel()
    if varies(y):
        return {}
    people = counted(len(np.unique(np.asarray(subjects))), "test subject")
    return {"no_nrmse": f"{people} with one and the same label" if y.size else "no test subject has this label"}


def baseline_rows(truth: Any, subjects: Any, **guesses: Any) -> dict[str, float | None]:
    """nRMSE of each guess that never saw the EEG."""
    return {
        name: rounded(nrmse(truth, np.broadcast_to(np.asarray(guess, dtype=np.float64), truth.shape)))
        for name, guess in guesses.items()
    }


def mean_known(values: Iterable[float]) -> float:
    """The mean of those that are numbers; NaN if none is."""
    there = [each for each in values if np.isfinite(each)]
    return float(np.mean(there)) if there else float("nan")


def rounded(value: Any) -> float | None:
    """For JSON: four digits, and null for what is unknown."""
    number = float(value)
    return round(number, 4) if np.isfinite(number) else None
