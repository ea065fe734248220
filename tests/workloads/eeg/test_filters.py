"""One multiplication in the frequency domain against plain convolutions in double precision, and against MNE."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.workloads.eeg import filters

BAND = (0.5, 45.0)


def signal(samples: int, channels: int = 2) -> NDArray[np.float64]:
    rng = np.random.default_rng(3)
    drift = np.cumsum(rng.standard_normal((channels, samples)), axis=1)
    return (drift + 10 * np.sin(2 * np.pi * 60 * np.arange(samples) / 500)) * 1e-6


def plain(signals: NDArray[np.float64], chain: filters.Chain) -> NDArray[np.float64]:
    """What the chain means, written down: mirrored ends, a convolution for each filter, and every n-th sample."""
    up, down = chain.ratio.numerator, chain.ratio.denominator
    pad = chain.pad + 7 * down
    rows = []
    for row in signals:
        long = np.pad(row, pad, mode="reflect", reflect_type="odd")
        for taps in chain.taps:
            long = np.convolve(long, taps, mode="same")
        if chain.ratio != 1:
            stuffed = np.zeros(len(long) * up)
            stuffed[::up] = long
            long = up * np.convolve(stuffed, filters.smoothing_taps(up, down), mode="same")[::down]
        start = pad * up // down
        rows.append(long[start : start + chain.length(len(row))])
    return np.array(rows)


@pytest.mark.parametrize(
    ("rate", "to", "band", "notch"),
    [
        (500, 100, BAND, 60.0),
        (500, 100, None, None),
        (500, 500, BAND, 60.0),
        (256, 100, BAND, 60.0),
        (128, 100, BAND, None),
        (100, 100, BAND, None),
        (100, 128, BAND, None),
        (250, 100, (1.0, 30.0), 50.0),
    ],
)
def test_within_a_millionth_of_double_precision(
    rate: float, to: float, band: tuple[float, float] | None, notch: float | None
) -> None:
    chain = filters.plan(rate, to, band=band, notch=notch)
    signals = signal(9000)
    wanted, got = plain(signals, chain), chain.apply(signals)
    assert got.shape == wanted.shape
    # From the very first sample to the last; stored in single precision, which is where most of the error comes from.
    assert np.abs(got - wanted).max() <= 1e-12 * np.abs(wanted).max()
    assert np.abs(got.astype(np.float32) - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.long
def test_taps_and_result_are_those_of_mne() -> None:
    mne = pytest.importorskip("mne")
    for rate in (500.0, 100.0, 256.0):
        taps = mne.filter.create_filter(None, rate, 0.5, 45.0, verbose="error")
        np.testing.assert_allclose(filters.band_taps(rate, 0.5, 45.0), taps, atol=1e-14)
    signals = signal(20000)
    raw = mne.io.RawArray(signals.copy(), mne.create_info(2, 500.0, "eeg"), verbose="error")
    raw.notch_filter(60.0, verbose="error")
    raw.filter(0.5, 45.0, h_trans_bandwidth=5.0, verbose="error")
    raw.resample(100.0, method="polyphase", verbose="error")
    got, theirs = filters.plan(500, 100, band=BAND, notch=60.0).apply(signals), raw.get_data()
    # MNE pads once more before it resamples, which shows in the first and last tenth of a second.
    assert np.abs(got - theirs)[:, 50:-50].max() <= 1e-10 * np.abs(theirs).max()


def test_nothing_to_do_changes_nothing() -> None:
    chain = filters.plan(100, 100, band=None, notch=None)
    signals = signal(300)
    assert chain.apply(signals) is signals
    assert chain.lines() == ["as recorded, 100 Hz"]


@pytest.mark.parametrize("samples", [1, 2, 50, 700])
def test_a_recording_shorter_than_the_filter(samples: int) -> None:
    chain = filters.plan(500, 100, band=BAND, notch=60.0)
    out = chain.apply(signal(samples))
    assert out.shape == (2, chain.length(samples))
    assert np.isfinite(out).all()


def test_hum_goes_and_the_brain_stays() -> None:
    time = np.arange(20000) / 500
    hum, alpha = np.sin(2 * np.pi * 60 * time)[None], np.sin(2 * np.pi * 10 * time)[None]
    chain = filters.plan(500, 100, band=BAND, notch=60.0)
    assert np.abs(chain.apply(hum)[:, 400:-400]).max() < 1e-4
    np.testing.assert_allclose(chain.apply(alpha)[0, 400:-400], alpha[0, ::5][400:-400], atol=5e-3)


@pytest.mark.parametrize(
    ("rate", "to", "band", "notch", "message", "cause"),
    [
        (100, 100, BAND, 60.0, "a notch at 60 Hz is impossible in data at 100 Hz", "nothing above 50 Hz"),
        (500, 100, (0.5, 50.0), None, "a band up to 50 Hz is impossible in a cache at 100 Hz", "nothing above 50 Hz"),
        (80, 80, BAND, None, "a band up to 45 Hz is impossible in data at 80 Hz", "nothing above 40 Hz"),
        (500, 100, (45.0, 0.5), None, "a band from 45 to 0.5 Hz is impossible", "no inside"),
        (500, 100, (0.0, 45.0), None, "a band from 0 to 45 Hz is impossible", "no inside"),
        (0, 100, None, None, "a sampling rate of 0 Hz is not possible", None),
    ],
)
def test_impossible_filters_are_refused_with_the_reason(
    rate: float, to: float, band: tuple[float, float] | None, notch: float | None, message: str, cause: str | None
) -> None:
    with pytest.raises(filters.Impossible) as caught:
        filters.plan(rate, to, band=band, notch=notch)
    assert message in caught.value.message
    assert cause is None or cause in str(caught.value.cause)


@pytest.mark.parametrize("at_least", [1, 2, 7, 11, 13, 97, 31415, 157000])
def test_sizes_of_transforms(at_least: int) -> None:
    size = filters.fast_size(at_least)
    assert at_least <= size < 2 * at_least + 1
    for prime in (2, 3, 5):
        while size % prime == 0:
            size //= prime
    assert size == 1
