"""Band-pass, notch and resampling as one multiplication in the frequency domain, in double precision.

    chain = filters.plan(500, 100, band=(0.5, 45), notch=60)       # Impossible, with the reason, if it cannot be
    chain.apply(signals)                                           # (channels, n) at 500 Hz -> (channels, n / 5)
    chain.lines()                                                  # what it does, for people

The order is that of theory: the notch where its frequency still exists, which is before resampling, and resampling with
everything above the new Nyquist frequency gone. The taps are those that MNE designs by default (windowed sinc, Hamming,
zero phase; polyphase resampling), so the result is MNE's: but one transform and a shorter one back replace six.
At its ends a signal goes on as its mirror image, turned over; a zero-phase filter keeps that form, which is why one
padding for all filters gives the same numbers as one for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import UserError

Signals = NDArray[np.float64]
_LOBES = 10
"""Half the length of the filter that goes with resampling, in samples of the slower side."""


class Impossible(UserError):
    """A filter that cannot be: the message says why, the hint what can."""


@dataclass
class Chain:
    """What is done to every channel of recordings of one rate."""

    rate: float
    to: float
    band: tuple[float, float] | None
    notch: float | None
    taps: list[Signals] = field(repr=False)
    why: str = ""
    """How it is known that the notch is this one, or that there is none; empty where somebody asked for it."""
    _response: dict[int, tuple[NDArray[np.intp] | None, Signals]] = field(default_factory=dict, repr=False)

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.to).limit_denominator(10000) / Fraction(self.rate).limit_denominator(10000)

    def length(self, samples: int) -> int:
        """Samples that come out where this many go in."""
        return round(samples * self.ratio)

    @property
    def pad(self) -> int:
        """Samples before and after the signal, such that the output starts on a sample of its own."""
        reach = sum(len(taps) // 2 for taps in self.taps)
        if self.ratio != 1:
            reach += ceil(_LOBES * max(1.0, float(1 / self.ratio)))
        return -(-reach // self.ratio.denominator) * self.ratio.denominator

    def apply(self, signals: Signals) -> Signals:
        """Filter and resample along the last axis."""
        if not self.taps and self.ratio == 1:
            return signals
        samples, pad, down = signals.shape[-1], self.pad, self.ratio.denominator
        size = fast_size(-(-(samples + 2 * pad) // down)) * down
        spectrum = np.fft.rfft(_extended(signals, pad, size), axis=-1)
        new = int(size * self.ratio)
        places, gain = self._answer(size, new)
        if places is None:
            spectrum *= gain[0]
        else:
            spectrum = _folded(spectrum, size, places, gain)
        whole = np.fft.irfft(spectrum, new, axis=-1)
        start = int(pad * self.ratio)
        return whole[..., start : start + self.length(samples)]

    def _answer(self, size: int, new: int) -> tuple[NDArray[np.intp] | None, Signals]:
        """The gain of all filters together at each frequency of a transform of this size.

        Taking every n-th sample adds up the frequencies that look alike after it: `places` says which those are.
        """
        if size not in self._response:
            up, down = self.ratio.numerator, self.ratio.denominator
            gain = np.ones(size // 2 + 1)
            for taps in self.taps:
                gain *= _gain(taps, size)
            if self.ratio == 1:
                self._response = {size: (None, gain[None])}
            else:
                there = np.arange(new // 2 + 1) + new * np.arange(down)[:, None]  # of size * up frequencies
                smooth = _whole(_gain(smoothing_taps(up, down), size * up), size * up)[there] * up / down
                places = there % size
                # recordings of a set are mostly alike: one answer is enough to keep
                self._response = {size: (places, smooth * _whole(gain, size)[places])}
        return self._response[size]

    def lines(self) -> list[str]:
        """The chain in words, in the order of theory."""
        steps = []
        if self.notch is not None:
            steps.append(f"notch {self.notch:g} Hz at {self.rate:g} Hz" + (f" ({self.why})" if self.why else ""))
        elif self.why:
            steps.append(f"no notch ({self.why})")
        if self.band is not None:
            steps.append(f"band-pass {self.band[0]:g}-{self.band[1]:g} Hz")
        if self.ratio != 1:
            steps.append(f"resampled {self.rate:g} -> {self.to:g} Hz")
        return steps if self.taps or self.ratio != 1 else [*steps, f"as recorded, {self.rate:g} Hz"]


def plan(rate: float, to: float, *, band: tuple[float, float] | None, notch: float | None, why: str = "") -> Chain:
    """Design the filters for recordings at `rate`, or say why they cannot be."""
    if not (0 < rate < 1e6 and 0 < to < 1e6):
        raise Impossible(f"a sampling rate of {min(rate, to):g} Hz is not possible")
    half, half_out = rate / 2, to / 2
    taps = []
    if notch is not None:
        if not notch > 0 or notch + _notch_width(notch) >= half:
            raise Impossible(
                f"a notch at {notch:g} Hz is impossible in data at {rate:g} Hz",
                cause=f"such data hold nothing above {half:g} Hz, so there is nothing to take out",
                hints=["leave it out with `--notch none`", "filter the original recordings, before resampling"],
            )
        taps.append(notch_taps(rate, notch))
    if band is not None:
        low, high = band
        if not 0 < low < high:
            raise Impossible(f"a band from {low:g} to {high:g} Hz is impossible", cause="it has no inside")
        for edge, of in ((half, f"data at {rate:g} Hz"), (half_out, f"a cache at {to:g} Hz")):
            if high >= edge:
                raise Impossible(
                    f"a band up to {high:g} Hz is impossible in {of}",
                    cause=f"it holds nothing above {edge:g} Hz, and a filter needs some room below that",
                    hints=[f"end the band lower, as in `--band {low:g}-{edge * 0.9:g}`"],
                )
        taps.append(band_taps(rate, low, high, room=min(half, half_out)))
    return Chain(rate=rate, to=to, band=band, notch=notch, taps=taps, why=why)


# Design -----------------------------------------------------------------------------------------------------


def band_taps(rate: float, low: float, high: float, room: float | None = None) -> Signals:
    """A pass band with MNE's default transitions: a quarter of the edge, at least 2 Hz, as far as there is `room`.

    The room ends where frequencies end after resampling, so that nothing above that is left to fold back.
    """
    below = min(max(0.25 * low, 2.0), low)
    above = min(max(0.25 * high, 2.0), (rate / 2 if room is None else room) - high)
    return _difference(lowpass(rate, high + above / 2, above), lowpass(rate, low - below / 2, below))


def notch_taps(rate: float, frequency: float) -> Signals:
    """Everything but a narrow band, as MNE's notch_filter: 1/200 of the frequency, half a hertz to each side."""
    wide = _notch_width(frequency)
    low, high = (lowpass(rate, frequency + side * (wide - 0.25), 0.5) for side in (-1, 1))
    taps = low - high
    taps[len(taps) // 2] += 1
    return taps


def _notch_width(frequency: float) -> float:
    return frequency / 400 + 0.5


def lowpass(rate: float, cut: float, transition: float) -> Signals:
    """A windowed sinc: gain 1/2 at `cut`, and a transition of this width around it."""
    count = round(3.3 * rate / transition)
    count += 1 - count % 2
    at = np.arange(count) - count // 2
    taps = np.sinc(2 * cut / rate * at) * np.hamming(count)
    return np.asarray(taps / taps.sum())


def smoothing_taps(up: int, down: int) -> Signals:
    """What keeps frequencies apart that would become one: the filter of scipy's resample_poly, which MNE uses, too."""
    slower = max(up, down)
    at = np.arange(-_LOBES * slower, _LOBES * slower + 1)
    taps = np.sinc(at / slower) * np.kaiser(len(at), 5.0)
    return np.asarray(taps / taps.sum())


def _difference(one: Signals, other: Signals) -> Signals:
    """Two filters around the same middle, the shorter one with zeros at its ends."""
    size = max(len(one), len(other))
    wide = [np.pad(each, (size - len(each)) // 2) for each in (one, other)]
    return wide[0] - wide[1]


# Transforms -------------------------------------------------------------------------------------------------


def _extended(signals: Signals, pad: int, size: int) -> Signals:
    """The signal with its mirror image, turned over, on both sides; zeros where there is no more of it."""
    samples = signals.shape[-1]
    out = np.zeros((*signals.shape[:-1], size))
    out[..., pad : pad + samples] = signals
    reach = min(pad, samples - 1)
    if reach > 0:
        first, last = signals[..., :1], signals[..., -1:]
        out[..., pad - reach : pad] = 2 * first - signals[..., reach:0:-1]
        out[..., pad + samples : pad + samples + reach] = 2 * last - signals[..., -2 : -reach - 2 : -1]
    return out


def _gain(taps: Signals, size: int) -> Signals:
    """What a zero-phase filter does to the frequencies of a real transform of this size."""
    centred = np.zeros(size)
    half = len(taps) // 2
    centred[: half + 1], centred[-half:] = taps[half:], taps[:half]
    return np.asarray(np.fft.rfft(centred).real)


def _whole(half: Signals, size: int) -> Signals:
    """Both signs of the frequencies, from the ones that a real transform has."""
    return np.concatenate([half, half[..., (size - 1) // 2 : 0 : -1]], axis=-1)


def _folded(
    spectrum: NDArray[np.complex128], size: int, places: NDArray[np.intp], gain: Signals
) -> NDArray[np.complex128]:
    """The spectrum at the new rate: the sum of all frequencies that become the same one."""
    whole = np.concatenate([spectrum, spectrum[..., (size - 1) // 2 : 0 : -1].conj()], axis=-1)
    out = whole[..., places[0]] * gain[0]
    for row in range(1, len(places)):
        out += whole[..., places[row]] * gain[row]
    return np.asarray(out)


def fast_size(at_least: int) -> int:
    """The smallest size whose only prime factors are 2, 3 and 5: transforms of others are slow."""
    best = 1 << max(0, at_least - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            rest = -(-at_least // three)
            candidate = three * (1 << max(0, rest - 1).bit_length())
            if at_least <= candidate < best:
                best = candidate
            three *= 3
        five *= 5
    return best
