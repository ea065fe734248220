"""What a linear model gets from the same windows and folds: the least that a network has to beat.

time = linear.time_samples(signals, rate)        # (windows, features): averages of 100 ms
power = linear.band_power(signals, rate)         # logarithms of the power in five bands
linear.ridge(train_x, train_y, test_x, groups)   # how strong the ridge is, is chosen on held-out groups
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.workloads.eeg.splits import in_order

Floats = NDArray[np.float64]
BANDS = ((1.0, 4.0), (4.0, 8.0), (8.0, 13.0), (13.0, 30.0), (30.0, 45.0))
_STEP_S = 0.1
_CLIP = 5.0
_STRENGTHS = np.logspace(-2, 5, 15)
_INNER = 3
_MOST = 3000
"""Windows that a ridge is fitted on."""


def baselines(windows: Any, train: Any, wanted: ArrayLike, asked: Any) -> dict[str, Floats]:
    """What ridge regressions on the same windows say: on the course of the channels, and on their rhythms."""
    known, groups = np.asarray(train)[_some(len(train))], windows.table["subject"]
    y = np.asarray(wanted, dtype=np.float64)[_some(len(train))]
    found = {}
    for name, features in (("ridge_time", time_samples), ("ridge_power", band_power)):
        both = features(windows.batch(np.concatenate([known, asked])), windows.rate)
        x, ask = both[: len(known)], both[len(known) :]
        said = ridge(x, y, ask, groups[known])
        found[name] = said if y.ndim == 2 else said[:, 0]
    return found


def _some(count: int) -> NDArray[np.intp]:
    """All rows, or as many as are solved in seconds."""
    return np.unique(np.linspace(0, count - 1, min(count, _MOST)).astype(np.intp))


def time_samples(signals: NDArray[Any], rate: float) -> Floats:
    """The course of each channel, averaged over 100 ms; artefacts are clipped, so that they do not set the scale."""
    step = max(1, round(_STEP_S * rate))
    count = signals.shape[2] // step
    cut = np.asarray(signals[:, :, : count * step], dtype=np.float64)
    cut = cut - np.median(cut, axis=2, keepdims=True)
    usual = np.median(np.abs(cut), axis=(0, 2), keepdims=True) * 1.4826
    cut = np.clip(cut / np.where(usual > 0, usual, np.inf), -_CLIP, _CLIP)
    return np.asarray(cut.reshape(len(cut), cut.shape[1], count, step).mean(axis=3).reshape(len(cut), -1))


def band_power(signals: NDArray[Any], rate: float) -> Floats:
    """The logarithm of the power of each channel in each band that the rate can hold."""
    frequencies = np.fft.rfftfreq(signals.shape[2], 1 / rate)
    power = np.abs(np.fft.rfft(signals * np.hanning(signals.shape[2]), axis=2)) ** 2
    found = []
    for low, high in BANDS:
        inside = (frequencies >= low) & (frequencies < high)
        if inside.any():
            found.append(np.log(power[:, :, inside].mean(axis=2) + 1e-20))
    return np.concatenate(found, axis=1)


def ridge(train: ArrayLike, wanted: ArrayLike, asked: ArrayLike, groups: NDArray[Any]) -> Floats:
    """Ridge regression of one or more columns; its strength is the best on groups that it was not fitted on."""
    x, ask = np.asarray(train, dtype=np.float64), np.asarray(asked, dtype=np.float64)
    y = np.asarray(wanted, dtype=np.float64)
    y = y[:, None] if y.ndim == 1 else y
    places = {name: number % _INNER for number, name in enumerate(in_order(groups))}
    fold = np.array([places[each] for each in groups.tolist()])
    errors = np.zeros(len(_STRENGTHS))
    for number in range(min(_INNER, len(places))):
        inside, outside = fold != number, fold == number
        if inside.any() and outside.any():
            said = _answers(x[inside], y[inside], x[outside], _STRENGTHS)
            errors += np.square(said - y[outside]).sum(axis=(1, 2))
    return np.asarray(_answers(x, y, ask, _STRENGTHS[[int(np.argmin(errors))]])[0])


def _answers(x: Floats, y: Floats, ask: Floats, strengths: Floats) -> Floats:
    """Answers for each strength, (strengths, rows, columns): one decomposition for all of them."""
    centre, spread = x.mean(axis=0), x.std(axis=0)
    spread = np.where(spread > 1e-12 * max(1e-30, float(spread.max())), spread, np.inf)
    x, ask = (x - centre) / spread, (ask - centre) / spread
    mean = y.mean(axis=0)
    values, vectors = np.linalg.eigh(x @ x.T)
    inside, across = vectors.T @ (y - mean), (ask @ x.T) @ vectors
    values = np.maximum(values, 0.0)
    return np.stack(
        [across @ (inside / (values + strength * x.shape[1] / 100)[:, None]) + mean for strength in strengths]
    )
