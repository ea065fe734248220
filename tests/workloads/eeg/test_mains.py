"""The notch is where the mains of the data are: as the sidecar says, else as the spectrum shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.workloads.eeg import bdf, cache, check, mains, prepare
from tests.workloads.eeg.sets import make_set, recording_of, stem, write_recording

HUM = 30e-6
RATE = 200
SECONDS = 40.0


def brain(*, hum: float = 0.0, rate: int = RATE, seed: int = 5) -> NDArray[np.float32]:
    """Noise that falls with frequency, as brains have it, with a hum of the mains on top."""
    rng = np.random.default_rng(seed)
    count = round(SECONDS * rate)
    frequencies = np.fft.rfftfreq(count, 1 / rate)
    shape = (4, len(frequencies))
    spectrum = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / np.maximum(frequencies, 1.0)
    signals = np.fft.irfft(spectrum, count, axis=1)
    signals *= 1e-5 / signals.std()
    if hum:
        signals += HUM * np.sin(2 * np.pi * hum * np.arange(count) / rate)
    return np.asarray(signals, dtype=np.float32)


def one(root: Path, *, hum: float, says: object = None, rate: int = RATE) -> Path:
    data = make_set(root, subjects=1, rate=rate, seconds=SECONDS)
    write_recording(data, "sub-01", brain(hum=hum, rate=rate), rate=rate)
    about = {"SamplingFrequency": rate} | ({} if says is None else {"PowerLineFrequency": says})
    Path(f"{stem(data, 'sub-01')}_eeg.json").write_text(json.dumps(about))
    return data


def left(signals: NDArray[np.float32], rate: float, at: float) -> float:
    """The amplitude at one frequency, by a plain sum over sine and cosine."""
    time = np.arange(signals.shape[-1]) / rate
    wave = np.exp(-2j * np.pi * at * time)
    return float(np.abs((signals * wave).mean(axis=-1)).mean() * 2)


@pytest.mark.parametrize(
    ("hum", "says", "told"),
    [
        (50.0, 50, "notch 50 Hz at 200 Hz (PowerLineFrequency)"),
        (50.0, "50", "notch 50 Hz at 200 Hz (PowerLineFrequency)"),
        (50.0, None, "notch 50 Hz at 200 Hz (measured in the spectrum)"),
        (50.0, "n/a", "notch 50 Hz at 200 Hz (measured in the spectrum)"),
        (60.0, None, "notch 60 Hz at 200 Hz (measured in the spectrum)"),
        (0.0, None, "no notch (no hum in the spectrum)"),
    ],
)
def test_the_hum_that_is_there_goes_and_the_output_says_how_it_is_known(
    tmp_path: Path, hum: float, says: object, told: str
) -> None:
    data = one(tmp_path / "data", hum=hum, says=says)
    options = {"kind": "challenge1", "rate": 200.0, "band": (0.5, 80.0), "bad": "keep", "workers": 1}
    report = prepare.prepare(data, tmp_path / "cache", **options)
    assert report.chain[0].startswith(told), report.chain
    if hum:
        windows = cache.open(report.folder).signals
        raw = bdf.open(recording_of(data, "sub-01")).read(range(4))
        assert left(raw.astype(np.float32), 200.0, hum) > 0.9 * HUM
        assert left(np.asarray(windows), 200.0, hum) < 0.1 * HUM


def test_a_notch_that_the_rate_cannot_hold_is_left_out_with_the_reason(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=1)
    Path(f"{stem(data, 'sub-01')}_eeg.json").write_text('{"PowerLineFrequency": 50}')
    report = prepare.prepare(data, tmp_path / "cache", kind="challenge1", workers=1)
    assert report.chain[0].startswith("no notch (50 Hz mains, but data at 100 Hz end at 50 Hz); band-pass")


def test_another_mains_frequency_in_the_sidecar_is_another_cache(tmp_path: Path) -> None:
    data = one(tmp_path / "data", hum=50.0, says=50)
    first = prepare.prepare(data, tmp_path / "cache", kind="challenge1", workers=1)
    one(tmp_path / "data", hum=50.0, says=60)
    with pytest.raises(prepare.OtherCache):
        prepare.prepare(data, tmp_path / "cache", kind="challenge1", workers=1)
    assert "50 Hz" in first.chain[0]


def test_a_sidecar_that_the_spectrum_contradicts_is_named(tmp_path: Path) -> None:
    data = one(tmp_path / "data", hum=50.0, says=60)
    said = "its sidecar says 60 Hz mains, its spectrum shows a hum at 50 Hz"
    found = {each.code: each.recordings for each in check.check(data, workers=1).findings}
    assert found["mains"] == {"sub-01_task-contrastChangeDetection": said}
    report = prepare.prepare(data, tmp_path / "cache", kind="challenge1", workers=1)
    assert report.chain[0].startswith("notch 60 Hz")
    assert any(said in line for line in report.lines())


@pytest.mark.parametrize("seed", range(8))
def test_noise_alone_is_no_hum(tmp_path: Path, seed: int) -> None:
    path = write_recording(tmp_path, "sub-01", brain(seed=seed), rate=RATE)
    assert mains.measured(bdf.open(path)) is None
