"""What is in every real recording and does not come from a brain: blinks, jumps, mains hum, bad channels.

bad = artefacts.add(signals, rate, rng)      # in place; the names of the channels that are bad all the way
"""

from __future__ import annotations

import numpy as np

from holdfast.workloads.eeg import net
from holdfast.workloads.eeg.truth import Signals, refer


def add(signals: Signals, rate: float, rng: np.random.Generator) -> list[str]:
    _blinks(signals, rate, rng)
    _jump(signals, rate, rng)
    if rate > 130:  # what is above half the rate cannot be in the data
        _hum(signals, rate, rng)
    return _bad_channels(signals, rng)


def _blinks(signals: Signals, rate: float, rng: np.random.Generator) -> None:
    """A quarter of a second, a tenth of a millivolt, over the eyes; one every eight seconds or so."""
    count, wide = rng.poisson(signals.shape[1] / rate / 8), round(0.4 * rate)
    shape = np.exp(-0.5 * ((np.arange(wide) / rate - 0.2) / 0.07) ** 2)
    wave = refer(np.outer(net.near((0.0, 0.95, -0.1), 0.4), shape).astype(np.float32))
    for start in rng.integers(0, max(1, signals.shape[1] - wide), count):
        part = signals[:, start : start + wide]
        part += np.float32(rng.uniform(60e-6, 140e-6)) * wave[:, : part.shape[1]]


def _jump(signals: Signals, rate: float, rng: np.random.Generator) -> None:
    """An electrode that loses its contact for a second: as far as an amplifier goes."""
    reference = net.names().index(net.REFERENCE)
    for _ in range(rng.poisson(signals.shape[1] / rate / 60)):
        channel, start = int(rng.integers(0, reference)), int(rng.integers(0, signals.shape[1]))
        signals[channel, start : start + round(rate)] += np.float32(rng.choice([-1, 1]) * rng.uniform(1e-3, 1e-2))


def _hum(signals: Signals, rate: float, rng: np.random.Generator) -> None:
    reference = net.names().index(net.REFERENCE)
    strength = np.asarray(rng.uniform(0.5e-6, 4e-6, signals.shape[0]), dtype=np.float32)
    strength[reference] = 0
    wave = np.asarray(np.sin(2 * np.pi * 60 / rate * np.arange(signals.shape[1])), dtype=np.float32)
    signals += strength[:, None] * wave


def _bad_channels(signals: Signals, rng: np.random.Generator) -> list[str]:
    """None to three: one in three of them is dead, the others are noise."""
    names = net.names()
    chosen = rng.choice(len(names) - 1, int(rng.integers(0, 4)), replace=False)
    for channel in chosen:
        if rng.random() < 1 / 3:
            signals[channel] = 0
        else:
            signals[channel] += rng.standard_normal(signals.shape[1], dtype=np.float32) * np.float32(3e-4)
    return [names[int(channel)] for channel in sorted(chosen)]
