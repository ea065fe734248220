"""The frequency of the mains in a recording: what its sidecar says, else what its spectrum shows.

    found = mains.of(recording, source)
    found.frequency, found.basis        # 50.0, "PowerLineFrequency"; None where there is no hum to take out
    mains.measured(source)              # 60.0 if a hum stands out of the spectrum there, None if none does

A sidecar counts before the spectrum. Where both speak and disagree, `found.doubt` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.base import files
from holdfast.workloads.eeg import bids
from holdfast.workloads.eeg.bids import Recording
from holdfast.workloads.eeg.faults import DataFault
from holdfast.workloads.eeg.reading import Source

KEY = "PowerLineFrequency"
CANDIDATES = (50.0, 60.0)
STANDS_OUT = 5.0
"""Times the power of the frequencies beside it: a spectrum without a hum has peaks of about twice."""
_SECONDS, _PIECE_S, _CHANNELS = 60.0, 4.0, 8
_FEWEST = 4
"""Pieces of a spectrum; fewer have peaks by chance."""


@dataclass(frozen=True, slots=True)
class Mains:
    """The frequency to take out, and how it is known."""

    frequency: float | None
    basis: str
    doubt: str = ""


def stated(sidecar: dict[str, object]) -> float | None:
    """What the sidecar says; None where it says nothing that can be a mains frequency."""
    said = sidecar.get(KEY)
    number = bids.number(said) if isinstance(said, str) else files.number(said)
    return number if 40.0 <= number <= 70.0 else None


def of(recording: Recording, source: Source) -> Mains:
    """The mains of a recording."""
    said, seen = stated(recording.sidecar), measured(source)
    if said is not None:
        other = seen is not None and abs(seen - said) > 1.0
        doubt = f"its sidecar says {said:g} Hz mains, its spectrum shows a hum at {seen:g} Hz" if other else ""
        return Mains(said, KEY, doubt)
    if seen is not None:
        return Mains(seen, "measured in the spectrum")
    if can_hold(source.rate, CANDIDATES[0]):
        return Mains(None, "no hum in the spectrum")
    return Mains(None, f"data at {source.rate:g} Hz hold no mains frequency")


def can_hold(rate: float, frequency: float) -> bool:
    """Whether recordings at this rate hold the frequency, with some room above it."""
    return rate / 2 > frequency + 1.5


def measured(source: Source) -> float | None:
    """The mains frequency whose hum stands out most, or None."""
    asked = [each for each in CANDIDATES if can_hold(source.rate, each)]
    if not asked:
        return None
    try:
        power, frequencies = _spectrum(source)
    except DataFault:
        return None
    if not len(power):
        return None
    ratios = [_prominence(power, frequencies, each) for each in asked]
    best = int(np.argmax(ratios))
    return asked[best] if ratios[best] > STANDS_OUT else None


def _spectrum(source: Source) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Power of some channels, the median over pieces of the middle minute; no rows where there is too little of it."""
    size = round(_PIECE_S * source.rate)
    count = min(source.samples, round(_SECONDS * source.rate))
    start = (source.samples - count) // 2
    channels = np.unique(np.linspace(0, len(source.channels) - 1, _CHANNELS).astype(int)).tolist()
    signals = source.read(channels, start, start + count)
    places = range(0, count - size + 1, max(1, size // 2))
    frequencies = np.asarray(np.fft.rfftfreq(size, 1 / source.rate))
    if len(places) < _FEWEST:
        return np.empty((0, len(frequencies))), frequencies
    pieces = np.stack([signals[:, place : place + size] for place in places], axis=1)
    pieces = np.nan_to_num(pieces - pieces.mean(axis=-1, keepdims=True), posinf=0.0, neginf=0.0)
    power = np.median(np.abs(np.fft.rfft(pieces * np.hanning(size), axis=-1)) ** 2, axis=1)
    return power[power.max(axis=1) > 0], frequencies


def _prominence(power: NDArray[np.float64], frequencies: NDArray[np.float64], at: float) -> float:
    """How far the power there is above that beside it, in the channel in the middle."""
    away = np.abs(frequencies - at)
    beside = np.median(power[:, (away > 1.5) & (away < 5.0)], axis=1)
    peak = power[:, away <= 0.5].max(axis=1)
    return float(np.median(peak / np.maximum(beside, 1e-300)))
