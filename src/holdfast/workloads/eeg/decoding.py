"""Within-subject decoding: which of two events was it? A check on real recordings that needs no labels of people.

    rows = within_subject(windows)       # windows of the kind "events"
    rows[0]                              # {"subject": "sub-N001", "auroc": 0.71, "auroc_low": 0.66, ...}

A linear discriminant with shrinkage on the averaged signal, trained on some recordings of a subject and tried on the
others (or on stretches of time, where there are fewer than three), so that neighbouring trials are never on both
sides. The interval draws whole recordings, or stretches. The rarer event is the positive one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import scores

STRETCHES = 8
RATE = 25.0
"""Hertz that the signal is averaged down to: evoked potentials are slow."""
Floats = NDArray[np.float64]


def within_subject(windows: Any, *, task: str = "") -> list[dict[str, Any]]:
    """One row for each subject that saw two kinds of events often enough."""
    table = windows.table
    wanted = np.ones(len(windows), dtype=bool) if not task else table["task"] == task
    rows = []
    for subject in sorted(set(table["subject"][wanted].tolist())):
        mine = np.flatnonzero(wanted & (table["subject"] == subject))
        names, counts = np.unique(table["event"][mine], return_counts=True)
        order = np.argsort(-counts, kind="stable")[:2]
        if len(names) < 2 or counts[order].min() < 2 * STRETCHES:
            continue
        often, rare = names[order]
        mine = mine[np.isin(table["event"][mine], [often, rare])]
        label = table["event"][mine] == rare
        group = groups(table["recording"][mine], table["onset"][mine])
        said = cross_validated(features(windows.batch(mine), windows.rate), label, group)
        low, high = scores.interval(lambda y, p: scores.auroc(y > 0.5, p), label.astype(float), said, group, fewest=3)
        rows.append(
            {
                "subject": subject,
                "events": [str(often), str(rare)],
                "windows": len(mine),
                "groups": len(set(group.tolist())),
                "auroc": scores.rounded(scores.auroc(label, said)),
                "auroc_low": scores.rounded(low),
                "auroc_high": scores.rounded(high),
                "simulated": bool(windows.simulated),
            }
        )
    if not rows:
        raise UserError(
            f"nothing can be decoded in {windows.folder}",
            cause=f"no subject has two kinds of events with {2 * STRETCHES} windows each",
            hints=["prepare windows around events: `holdfast eeg prepare … --kind events --events stim_1,stim_2`"],
        )
    return rows


def features(signals: NDArray[np.float32], rate: float) -> Floats:
    """Averaged in time, in units of each channel's own spread, and flat."""
    step = max(1, round(rate / RATE))
    steps = signals.shape[2] // step
    x = np.nan_to_num(signals[:, :, : steps * step].astype(np.float64))
    x = x.reshape(len(x), x.shape[1], steps, step).mean(axis=3)
    x -= np.median(x, axis=2, keepdims=True)
    spread = np.median(np.abs(x), axis=(0, 2)) * 1.4826
    scaled = np.where(spread[:, None] > 0, x / np.where(spread > 0, spread, 1.0)[:, None], 0.0)
    flat: Floats = np.clip(scaled, -8.0, 8.0).reshape(len(x), -1)
    return flat


def groups(recordings: Any, onsets: Any) -> NDArray[np.int64]:
    """The recording of each window; stretches of time where there are fewer than three recordings."""
    names, number = np.unique(recordings, return_inverse=True)
    if len(names) >= 3:
        return number.astype(np.int64)
    order = np.lexsort((onsets, number))
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.arange(len(order)) * STRETCHES // len(order)
    return found


def cross_validated(x: Floats, label: NDArray[np.bool_], group: NDArray[np.int64]) -> Floats:
    """What a discriminant trained on all other groups says about each window."""
    said = np.zeros(len(x))
    for each in np.unique(group):
        out = group == each
        weights, bias = discriminant(x[~out], label[~out])
        said[out] = x[out] @ weights + bias
    return said


def discriminant(x: Floats, label: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Linear discriminant analysis with a covariance that is shrunk towards a round one."""
    if label.all() or not label.any():
        return np.zeros(x.shape[1]), 0.0
    one, other = x[label].mean(axis=0), x[~label].mean(axis=0)
    centred = np.where(label[:, None], x - one, x - other)
    count, width = centred.shape
    covariance = centred.T @ centred / count
    # Ledoit and Wolf, 2004: as much of the round one as the sampling error of this one asks for.
    mean = np.trace(covariance) / width
    distance = float(((covariance - mean * np.eye(width)) ** 2).sum())
    squares = float(((centred**2).sum(axis=1) ** 2).sum() / count - (covariance**2).sum()) / count
    share = min(1.0, max(0.0, squares / distance)) if distance > 0 else 1.0
    round_one = (1 - share) * covariance + (share * mean + 1e-9) * np.eye(width)
    weights = np.linalg.solve(round_one, one - other)
    return weights, float(-weights @ (one + other) / 2)


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """In words."""
    told = []
    for row in rows:
        bounds = "" if row["auroc_low"] is None else f" [{row['auroc_low']:.3f}, {row['auroc_high']:.3f}]"
        often, rare = row["events"]
        word = "SIMULATED " if row["simulated"] else ""
        told.append(
            f"{row['subject']}: {rare} from {often}, AUROC {row['auroc']:.3f}{bounds} "
            f"({word}{row['windows']} windows, {row['groups']} groups)"
        )
    return told
