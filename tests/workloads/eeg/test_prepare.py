"""From a data set to a cache: the right windows, and everything accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.workloads.eeg import bdf, cache, mains, prepare, recipe
from tests.workloads.eeg.preparing import prepared
from tests.workloads.eeg.sets import (
    CHANNELS,
    TASK,
    make_set,
    recording_of,
    signals_of,
    spoil,
    stem,
    write_events,
    write_recording,
)


def test_windows_as_served_are_slices_of_the_recording(tmp_path: Path) -> None:
    report = prepared(make_set(tmp_path / "data"), tmp_path / "cache")
    windows = cache.open(report.folder)
    assert report.folder == tmp_path / "cache" / "challenge1-100hz"
    assert (len(windows), windows.kind, windows.rate, windows.channels) == (4, "challenge1", 100.0, list(CHANNELS))
    assert (windows.simulated, windows.samples) == (False, 200)
    whole = bdf.open(recording_of(tmp_path / "data", "sub-02")).read(range(4))
    np.testing.assert_allclose(windows.signals[2], whole[:, 450:650], atol=1e-12)
    assert windows.row(2) == {
        "recording": f"sub-02_task-{TASK}",
        "subject": "sub-02",
        "release": "R2",
        "task": TASK,
        "kind": "challenge1",
        "event": "left_target",
        "sex": "F",
        "onset": 4.0,
        "response_time": 1.5,
        "correct": 1.0,
        "age": 10.5,
        "p_factor": 0.1,
        "attention": 0.2,
        "internalizing": 0.3,
        "externalizing": 0.4,
    }
    assert windows.table["response_time"] == pytest.approx([1.5, 0.9, 1.5, 0.9])
    assert report.drops == {"no response": 2}
    assert [each.drops for each in report.outcomes] == [{"no response": 1}] * 2


def test_filtered_windows_are_slices_of_the_filtered_recording(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", rate=500, subjects=1)
    Path(f"{stem(data, 'sub-01')}_eeg.json").write_text('{"PowerLineFrequency": 60}')
    report = prepared(data, tmp_path / "cache", band=(0.5, 45.0), notch="auto")
    whole = bdf.open(recording_of(data, "sub-01")).read(range(4))
    chain = recipe.Recipe("challenge1").chain(500, mains.Mains(60.0, mains.KEY))
    wanted = chain.apply(whole)[:, 450:650]
    wanted[3] = 0
    np.testing.assert_allclose(cache.open(report.folder).signals[0], wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
    assert report.chain == ["notch 60 Hz at 500 Hz (PowerLineFrequency); band-pass 0.5-45 Hz; resampled 500 -> 100 Hz"]


def test_challenge2_and_pretraining(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", task="RestingState")
    rest = cache.open(prepared(data, tmp_path / "cache", "challenge2").folder)
    assert rest.signals.shape == (18, 4, 400)
    assert rest.table["onset"][:3].tolist() == [0.0, 2.0, 4.0]
    assert np.isnan(rest.table["response_time"]).all()
    every = cache.open(prepared(data, tmp_path / "cache", "pretrain", tasks=("*",)).folder)
    assert every.signals.shape == (20, 4, 200)


def test_windows_around_events(tmp_path: Path) -> None:
    rows = [(1.0, "n/a", "stim_1", ""), (2.0, "n/a", "stim_2", ""), (0.05, "n/a", "stim_2", "")]
    data = make_set(tmp_path / "data", subjects=1, task="P300", events=rows)
    options = {"values": ("stim_*",), "shift": -0.1, "size": 0.9}
    report = prepared(data, tmp_path / "cache", "events", **options)
    assert cache.open(report.folder).table["event"].tolist() == ["stim_1", "stim_2"]
    assert report.drops == {"before the start": 1}


def test_channels_by_name_in_the_order_they_were_named(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=1)
    windows = cache.open(prepared(data, tmp_path / "cache", channels=("E3", "E1")).folder)
    whole = bdf.open(recording_of(data, "sub-01")).read([2, 0])
    np.testing.assert_allclose(windows.signals[0], whole[:, 450:650], atol=1e-12)


def test_rates_may_be_mixed(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=1)
    write_recording(data, "sub-02", signals_of(2, rate=256), rate=256)
    write_events(
        data, "sub-02", [(2.0, "n/a", "contrastTrial_start"), (4.0, 0, "left_target"), (5.0, 0, "left_buttonPress")]
    )
    report = prepared(data, tmp_path / "cache")
    assert [each.windows for each in report.outcomes] == [2, 1]
    assert report.chain == ["as recorded, 100 Hz", "resampled 256 -> 100 Hz"]


def test_the_report_is_kept_beside_the_windows(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=3)
    spoil(data, "sub-02", cut=0.5)
    report = prepared(data, tmp_path / "cache")
    kept = json.loads((report.folder / prepare.REPORT).read_text())
    assert kept == json.loads(json.dumps(report.to_json()))
    assert report.lines() == [
        "challenge1 · 4 windows of 2 s x 4 channels at 100 Hz · 2 of 3 recordings",
        "  done       as recorded, 100 Hz",
        "  windows    0.5 to 2.5 s after the stimulus, chosen from 6 response times (95 % are 0.90 to 1.50 s, "
        "half below 1.20 s)",
        "",
        "Windows left out",
        f"  2  no response  in sub-01_task-{TASK}, sub-03_task-{TASK}",
        "",
        "Recordings left out",
        f"  1  truncated  sub-02_task-{TASK}",
        f"                {report.outcomes[1].detail}",
    ]
