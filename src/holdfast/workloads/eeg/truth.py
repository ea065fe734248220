"""What is true in simulated data, and the signals that follow from it.

    subject = truth.draw_subject(seed=7, index=0)        # age, sex, four factors, response speed, brain rhythms
    trials = truth.draw_trials(subject, 24, rng)         # response times, sides, correctness
    truth.rest(subject, seconds=60, rate=100, rng=rng)   # (129, 6000) volts

Response time
    A positive wave over the parietal scalp builds up to a peak at the press; a sharper one over the hand area of the
    other side peaks just before it. Both are stronger in one trial than in another. Nothing else in the window
    knows the response time.
    The mean of a subject falls with age; the rest is drawn for each trial.

The four factors
    externalizing   less alpha (posterior, 8-12 Hz)                          and younger
    attention       more theta (frontal, 4-7 Hz)
    internalizing   alpha stronger on the right side of the forehead
    p_factor        more beta (central, 16-26 Hz)
    Each marker is the factor times its strength plus what is the subject's own, so that no score can be perfect.
    Age moves the alpha peak from 8 to 11 Hz and makes everything a little smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base import dataclass_json
from holdfast.workloads.eeg import net

Signals = NDArray[np.float32]

MARKER_STRENGTH = 0.8
"""Correlation of each factor with the logarithm of its band's amplitude: a perfect reader could get this."""
RESPONSE_MEAN, RESPONSE_SD, RESPONSE_LATEST = 1.6, 0.41, 2.45
SUBJECT_SHARE = 0.22
"""How much of the variance of response times lies between subjects (0.22 in the Healthy Brain Network)."""

_SOURCES = 16
_PARIETAL, _LEFT_HAND, _RIGHT_HAND = (0.0, -0.8, 0.55), (-0.6, 0.05, 0.75), (0.6, 0.05, 0.75)
_FRONTAL, _POSTERIOR, _CENTRAL = (0.0, 0.75, 0.6), (0.0, -0.95, 0.2), (0.0, 0.1, 0.95)
_FOREHEAD_LEFT, _FOREHEAD_RIGHT = (-0.55, 0.8, 0.25), (0.55, 0.8, 0.25)


@dataclass(frozen=True)
class SubjectTruth:
    """Everything that is true of one subject."""

    name: str
    release: str
    age: float
    sex: str
    p_factor: float
    attention: float
    internalizing: float
    externalizing: float
    response_mean: float
    alpha_peak: float
    alpha: float
    theta: float
    asymmetry: float
    beta: float
    background: float
    """Logarithms of amplitudes, relative to the usual one."""
    labelled: bool = True

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)


@dataclass(frozen=True)
class TrialTruth:
    """Seconds are from the stimulus."""

    side: str
    response_time: float | None
    pressed: str
    correct: bool
    extra_presses: tuple[float, ...]
    strength: float
    """Of its waves: brains do not do the same thing twice."""


def draw_subject(seed: int, index: int, release: str, labelled: bool = True) -> SubjectTruth:
    rng = np.random.default_rng([seed, 1, index])
    age = float(rng.uniform(5.5, 18))
    older = (age - 11.75) / 3.6  # standard deviations
    common = rng.standard_normal()  # what the factors have in common
    own = rng.standard_normal(4)
    factors = 0.35 * common + np.sqrt(1 - 0.35**2) * own
    factors[3] = 0.97 * factors[3] - 0.25 * older
    marker = MARKER_STRENGTH * factors + np.sqrt(1 - MARKER_STRENGTH**2) * rng.standard_normal(4)
    mean = RESPONSE_MEAN + RESPONSE_SD * np.sqrt(SUBJECT_SHARE) * (0.9 * rng.standard_normal() - 0.44 * older)
    letters = rng.choice(list("ABCDEFGHJKLMNPQRSTUVWXYZ"), 2)
    return SubjectTruth(
        name=f"sub-SIM{index:04d}{letters[0]}{letters[1]}",
        release=release,
        age=round(age, 4),
        sex=str(rng.choice(["F", "M"], p=[0.36, 0.64])),
        p_factor=round(float(factors[0]), 4),
        attention=round(float(factors[1]), 4),
        internalizing=round(float(factors[2]), 4),
        externalizing=round(float(factors[3]), 4),
        response_mean=float(mean),
        alpha_peak=float(np.clip(9.4 + 0.7 * older + 0.3 * rng.standard_normal(), 7.5, 11.5)),
        background=-0.12 * older + 0.1 * float(rng.standard_normal()),
        beta=0.5 * float(marker[0]),
        theta=0.5 * float(marker[1]),
        asymmetry=0.5 * float(marker[2]),
        alpha=-0.5 * float(marker[3]),
        labelled=labelled,
    )


def draw_trials(subject: SubjectTruth, count: int, rng: np.random.Generator) -> list[TrialTruth]:
    spread = RESPONSE_SD * np.sqrt(1 - SUBJECT_SHARE)
    found = []
    for _ in range(count):
        side = str(rng.choice(["left", "right"]))
        time = subject.response_mean + spread * (rng.gamma(4.0) - 4.0) / 2.0  # skewed, as people are
        time = round(float(np.clip(time, 0.35, RESPONSE_LATEST)), 3)
        missed, wrong = rng.random() < 0.05, rng.random() < 0.1
        more = rng.random() < 0.08
        extra = tuple(np.round(time + np.sort(rng.uniform(0.15, 1.2, rng.integers(1, 4))), 3)) if more else ()
        pressed = side if not wrong else {"left": "right", "right": "left"}[side]
        strength = float(np.exp(0.4 * rng.standard_normal()))
        found.append(TrialTruth(side, None if missed else time, pressed, not wrong, () if missed else extra, strength))
    return found


# Signals ----------------------------------------------------------------------------------------------------


def rest(subject: SubjectTruth, samples: int, rate: float, rng: np.random.Generator) -> Signals:
    """A brain that does nothing in particular, in volts, referred to Cz, which is flat."""
    frequencies = np.asarray(np.fft.rfftfreq(samples, 1 / rate), dtype=np.float64)
    spectra, maps = _spectra(subject, frequencies), _maps()
    shape = (len(spectra), len(frequencies))
    drawn = rng.standard_normal(shape, dtype=np.float32) + 1j * rng.standard_normal(shape, dtype=np.float32)
    sources = np.fft.irfft(drawn * spectra, samples, axis=-1).astype(np.float32)
    signals = maps.T.astype(np.float32) @ sources
    signals += rng.standard_normal(signals.shape, dtype=np.float32) * np.float32(2e-6)
    return refer(signals)


def _spectra(subject: SubjectTruth, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """The amplitude of each source at each frequency; one unit is a microvolt of the whole source."""
    ground = 1 / np.maximum(frequencies, 0.5) ** 0.9
    ground *= frequencies >= 0.5
    ground /= 1 + (frequencies / 48) ** 24  # recorders cut off what is above
    rows = [ground * 6.0 * np.exp(subject.background) / _unit(ground)] * _SOURCES
    for centre, width, microvolts in (
        (subject.alpha_peak, 0.9, 9.0 * np.exp(subject.alpha)),
        (5.5, 0.9, 7.0 * np.exp(subject.theta)),
        (subject.alpha_peak, 0.9, 6.0 * np.exp(-subject.asymmetry)),
        (subject.alpha_peak, 0.9, 6.0 * np.exp(subject.asymmetry)),
        (21.0, 2.5, 3.5 * np.exp(subject.beta)),
    ):
        peak = np.exp(-0.5 * ((frequencies - centre) / width) ** 2)
        rows.append(peak * microvolts / _unit(peak))
    size = 2 * (len(frequencies) - 1)
    return np.array(rows) * (1e-6 * size / 2)


def _unit(spectrum: NDArray[np.float64]) -> float:
    """What makes the source of this spectrum have a standard deviation of one."""
    return float(np.sqrt(np.sum(spectrum**2)))


def _maps() -> NDArray[np.float64]:
    """How strongly each electrode sees each source: random places for the background, known ones for the rhythms."""
    rng = np.random.default_rng(129)  # the same head for everybody
    places = rng.standard_normal((_SOURCES, 3))
    places[:, 2] = np.abs(places[:, 2]) - 0.2
    ground = [net.near((float(x), float(y), float(z)), 0.55) for x, y, z in places]
    rhythms = [
        net.near(_POSTERIOR, 0.6),
        net.near(_FRONTAL, 0.45),
        net.near(_FOREHEAD_LEFT, 0.35),
        net.near(_FOREHEAD_RIGHT, 0.35),
        net.near(_CENTRAL, 0.7),
    ]
    return np.array([*ground, *rhythms])


def add_response(signals: Signals, rate: float, stimulus: float, trial: TrialTruth) -> None:
    """What the brain does between a stimulus and a press, added in place. `stimulus` is its second."""
    if trial.response_time is None:
        return
    first = round(stimulus * rate)
    time = (np.arange(min(signals.shape[1] - first, round(3.2 * rate))) / rate).astype(np.float64)
    since = time - trial.response_time
    parietal = 9e-6 * trial.strength * np.exp(np.where(since < 0, since / 0.3, -since / 0.15))
    hand = -9e-6 * trial.strength * np.exp(-0.5 * ((since + 0.03) / 0.06) ** 2)
    over = _RIGHT_HAND if trial.pressed == "left" else _LEFT_HAND
    early = 5e-6 * np.exp(-0.5 * ((time - 0.17) / 0.04) ** 2)
    wave = np.outer(net.near(_PARIETAL, 0.5), parietal) + np.outer(net.near(over, 0.35), hand)
    wave += np.outer(net.near(_POSTERIOR, 0.5), early)
    signals[:, first : first + len(time)] += refer(wave.astype(np.float32))


def refer(signals: Signals) -> Signals:
    """Every electrode against Cz, as the net records it."""
    reference = net.names().index(net.REFERENCE)
    signals -= signals[reference].copy()
    return signals
