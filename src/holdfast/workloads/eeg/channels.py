"""Channels that cannot be used as they are: found, and set to zero or filled in from their neighbours.

    bad = channels.judge(signals, names, marked={"E12"})       # {"E12": "marked bad", "E57": "flat"}
    channels.repair(signals, names, bad, how="zero")           # in place; "interpolate" and "keep" are the others

Cz is what the net refers to and is flat in every recording: that is no fault.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.workloads.eeg import net

HOW = ("zero", "interpolate", "keep")
FLAT = 1e-8
"""Volts: less movement than this is none."""
NOISY = 6.0
"""Times the usual standard deviation of the channels of a recording."""

_LOOKED_AT = 2000
"""Samples of a channel that are enough to judge it."""

Signals = NDArray[np.float32]


def judge(signals: Signals, names: Sequence[str], marked: Collection[str] = ()) -> dict[str, str]:
    """What is wrong with which channel of a filtered recording."""
    spread = _spread(signals)
    usual = float(np.median(spread[spread > FLAT])) if np.any(spread > FLAT) else 0.0
    found: dict[str, str] = {}
    for name, each in zip(names, spread, strict=True):
        if not np.isfinite(each):
            found[name] = "not finite"
        elif name in marked:
            found[name] = "marked bad"
        elif each <= FLAT:
            if name != net.REFERENCE:
                found[name] = "flat"
        elif each > NOISY * usual:
            found[name] = "noisy"
    return found


def _spread(signals: Signals) -> NDArray[np.float64]:
    """How far each channel moves, whatever a few jumps do: its middle half, as a standard deviation."""
    few = signals[:, :: max(1, signals.shape[1] // _LOOKED_AT)]
    quarters = (few.shape[1] // 4, 3 * few.shape[1] // 4)
    ranked = np.partition(few, quarters, axis=1)
    return np.asarray(ranked[:, quarters[1]] - ranked[:, quarters[0]], dtype=np.float64) / 1.349


def repair(signals: Signals, names: Sequence[str], bad: Collection[str], how: str = "zero") -> None:
    """Set bad channels to zero, or to what their neighbours say; what is not finite never stays."""
    rows = [i for i, name in enumerate(names) if name in bad]
    if not rows or how == "keep":
        np.nan_to_num(signals, copy=False)
        return
    if how == "interpolate":
        weights = _weights(names, rows)
        if weights is not None:
            good = [i for i in range(len(names)) if i not in rows]
            signals[rows] = weights @ signals[good]
            return
    signals[rows] = 0


def _weights(names: Sequence[str], rows: list[int]) -> NDArray[np.float32] | None:
    """Spherical splines (Perrin and others 1989); None where it is not known where an electrode sits."""
    places = dict(zip(net.names(), net.positions(), strict=True))
    if not all(name in places for name in names) or len(rows) > len(names) // 2:
        return None
    at = np.array([places[name] for name in names])
    good = [i for i in range(len(names)) if i not in rows]
    among, across = _spline(at[good] @ at[good].T), _spline(at[rows] @ at[good].T)
    count = len(good)
    system = np.ones((count + 1, count + 1))
    system[:count, :count] = among + 1e-5 * np.eye(count)
    system[count, count] = 0
    answer = np.hstack([across, np.ones((len(rows), 1))]) @ np.linalg.pinv(system)[:, :count]
    return np.asarray(answer, dtype=np.float32)


def _spline(cosine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over n of (2n + 1) / (n (n + 1))^4 P_n(cosine) / 4 pi."""
    orders = np.arange(1, 51)
    factors = np.concatenate([[0], (2 * orders + 1) / (orders * (orders + 1)) ** 4.0]) / (4 * np.pi)
    return np.asarray(np.polynomial.legendre.legval(np.clip(cosine, -1, 1), factors))
