"""What is wrong with data or cannot be asked for is named, and the rest is used."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import cache, pool, prepare
from holdfast.workloads.eeg.filters import Impossible
from tests.workloads.eeg.preparing import SERVED, prepared
from tests.workloads.eeg.sets import (
    CHANNELS,
    TASK,
    TRIALS,
    make_set,
    recording_of,
    signals_of,
    spoil,
    stem,
    write_events,
    write_recording,
)

# What is wrong with data ------------------------------------------------------------------------------------


def no_events(root: Path) -> None:
    Path(f"{stem(root, 'sub-02')}_events.tsv").unlink()


def empty_events(root: Path) -> None:
    write_events(root, "sub-02", [])


def no_stimuli(root: Path) -> None:
    write_events(root, "sub-02", [(1.0, "n/a", "contrastTrial_start"), (2.0, "n/a", "left_buttonPress")])


def other_channels(root: Path) -> None:
    write_recording(root, "sub-02", signals_of(2, channels=2), channels=("E1", "Cz"))


def not_a_recording(root: Path) -> None:
    recording_of(root, "sub-02").write_bytes(b"\x00\x01nonsense" * 100)


def binary_events(root: Path) -> None:
    Path(f"{stem(root, 'sub-02')}_events.tsv").write_bytes(bytes(range(256)))


def a_folder_instead(root: Path) -> None:
    recording_of(root, "sub-02").unlink()
    recording_of(root, "sub-02").mkdir()


def a_link(root: Path) -> None:
    path = recording_of(root, "sub-02")
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("damage", "reason", "detail"),
    [
        (lambda root: spoil(root, "sub-02", cut=0.5), "truncated", "the header promises 20 records, the file holds 9."),
        (lambda root: spoil(root, "sub-02", cut=0.01), "truncated", "bytes are less than a header"),
        (lambda root: spoil(root, "sub-02", cut=0.03), "truncated", "ends inside its header"),
        (not_a_recording, "unreadable", "does not begin like an EDF or BDF file"),
        (a_folder_instead, "unreadable", "a folder, not a file"),
        (a_link, "unreadable", "a link, not a file"),
        (no_events, "no events", "no events.tsv stands beside it"),
        (empty_events, "no events", "has no rows"),
        (no_stimuli, "no stimuli", "none of its 2 events is one of left_target, right_target"),
        (binary_events, "broken table", "its header has no column `onset`"),
        (other_channels, "channel count", "it has 2 channels, and not E2, E3"),
    ],
)
def test_one_bad_recording_is_named_and_the_rest_is_used(
    tmp_path: Path, damage: Callable[[Path], Any], reason: str, detail: str
) -> None:
    data = make_set(tmp_path / "data", subjects=3)
    damage(data)
    report = prepared(data, tmp_path / "cache")
    assert report.left_out == {reason: [f"sub-02_task-{TASK}"]}
    assert detail in report.outcomes[1].detail
    assert len(cache.open(report.folder)) == report.windows == 4


def test_every_byte_of_a_header_may_be_wrong(tmp_path: Path) -> None:
    """Whatever a header says, it is a recording or a fault with words."""
    path = make_set(tmp_path / "data", subjects=1) and recording_of(tmp_path / "data", "sub-01")
    good, rng = path.read_bytes(), np.random.default_rng(0)
    from holdfast.workloads.eeg import reading
    from holdfast.workloads.eeg.faults import DataFault

    faults = 0
    for _ in range(300):
        raw = bytearray(good)
        at = int(rng.integers(0, 256 * 5))
        raw[at : at + 4] = rng.bytes(4)
        path.write_bytes(raw)
        try:
            source = reading.open(path)
            source.read(range(len(source.channels)), 0, min(10, source.samples))
        except DataFault:
            faults += 1
    assert faults > 20


@pytest.mark.parametrize("cut", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_set_file(tmp_path: Path, cut: float) -> None:
    pytest.importorskip("scipy")
    from holdfast.workloads.eeg import eeglab

    data = make_set(tmp_path / "data", subjects=1)
    path = Path(f"{stem(data, 'sub-02')}_eeg.set")
    path.parent.mkdir(parents=True)
    write_events(data, "sub-02", TRIALS)
    eeglab.write(path, signals_of(2), rate=100, channels=CHANNELS)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * cut)])
    report = prepared(data, tmp_path / "cache")
    assert report.outcomes[1].left_out in ("truncated", "unreadable")
    assert report.outcomes[1].detail
    assert report.windows == 2


def edf(path: Path, signals: Any, rate: int = 100) -> None:
    """The 16-bit sister of BDF, by hand."""
    count, records = len(signals), signals.shape[1] // rate
    fields = [(CHANNELS, 16), ([""] * count, 80), (["uV"] * count, 8), ([-200] * count, 8), ([200] * count, 8)]
    fields += [([-32768] * count, 8), ([32767] * count, 8), ([""] * count, 80), ([rate] * count, 8), ([""] * count, 32)]
    head = [("0", 8), ("", 80), ("", 80), ("01.01.25", 8), ("00.00.00", 8), (256 * (count + 1), 8), ("", 44)]
    head += [(records, 8), (1, 8), (count, 4)]
    text = "".join(str(value).ljust(size) for value, size in head)
    text += "".join(str(value).ljust(size) for values, size in fields for value in values)
    digital = np.rint(signals * 1e6 / 200 * 32767).astype("<i2").reshape(count, records, rate)
    path.write_bytes(text.encode() + digital.transpose(1, 0, 2).tobytes())


def test_edf_files_and_a_truncated_one(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data")
    for subject, number in (("sub-01", 1), ("sub-02", 2)):
        recording_of(data, subject).unlink()
        edf(recording_of(data, subject).with_suffix(".edf"), signals_of(number))
    path = recording_of(data, "sub-02").with_suffix(".edf")
    path.write_bytes(path.read_bytes()[:-3000])
    report = prepared(data, tmp_path / "cache")
    assert report.left_out == {"truncated": [f"sub-02_task-{TASK}"]}
    wanted = signals_of(1)[:, 450:650]
    np.testing.assert_allclose(cache.open(report.folder).signals[0], wanted, atol=1e-8)


def test_subjects_without_labels_are_left_out_of_challenge2_only(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", labels=False, task="RestingState")
    report = prepared(data, tmp_path / "cache", "challenge2")
    assert (report.windows, list(report.left_out)) == (0, ["no label"])
    assert len(cache.open(report.folder)) == 0
    assert prepared(data, tmp_path / "cache", "pretrain").windows == 20


def test_a_set_without_a_table_of_subjects(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data")
    (data / "participants.tsv").unlink()
    windows = cache.open(prepared(data, tmp_path / "cache").folder)
    assert np.isnan(windows.table["age"]).all()
    assert set(windows.table["sex"].tolist()) == {""}


def test_samples_that_are_not_finite(tmp_path: Path) -> None:
    """A window with NaN in it is dropped; a channel that is nothing else is bad, and the others stay."""
    scipy = pytest.importorskip("scipy")
    assert scipy
    from holdfast.workloads.eeg import eeglab

    data = make_set(tmp_path / "data", subjects=1)
    signals = signals_of(1)
    signals[0, 500] = np.nan  # inside the first window
    signals[1] = np.nan
    recording_of(data, "sub-01").unlink()
    eeglab.write(f"{stem(data, 'sub-01')}_eeg.set", signals, rate=100, channels=CHANNELS)
    report = prepared(data, tmp_path / "cache", band=(0.5, 45.0), bad="zero")
    assert report.drops == {"no response": 1, "not finite": 1}
    assert report.outcomes[0].bad_channels == {"E2": "not finite"}
    assert np.isfinite(cache.open(report.folder).signals).all()


def test_bad_channels_are_found_and_the_reference_is_none(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=1, channels=("E1", "E2", "E3", "E4", "E5", "Cz"))
    signals = signals_of(1, channels=6)
    signals[1] = 0
    signals[2] *= 100
    write_recording(data, "sub-01", signals, channels=("E1", "E2", "E3", "E4", "E5", "Cz"))
    report = prepared(data, tmp_path / "zero", band=(0.5, 45.0), bad="zero")
    assert report.outcomes[0].bad_channels == {"E2": "flat", "E3": "noisy"}
    assert np.abs(cache.open(report.folder).signals[:, [1, 2]]).max() == 0
    filled = cache.open(prepared(data, tmp_path / "filled", band=(0.5, 45.0), bad="interpolate").folder)
    assert 1e-7 < filled.signals[0, 1].std() < 1e-4
    kept = cache.open(prepared(data, tmp_path / "kept", bad="keep").folder)
    assert kept.signals[0, 2].std() > 1e-4


def test_interpolation_gives_back_what_a_smooth_head_has() -> None:
    from holdfast.workloads.eeg import channels, net

    rng = np.random.default_rng(0)
    sources = rng.standard_normal((3, 100))
    maps = np.array([net.near(place, 0.7) for place in ((0, 0.7, 0.7), (0.6, -0.4, 0.6), (-0.6, -0.4, 0.6))])
    signals = (maps.T @ sources).astype(np.float32)
    spoilt = signals.copy()
    spoilt[[10, 60]] = 99
    channels.repair(spoilt, net.names(), {net.names()[10]: "flat", net.names()[60]: "flat"}, "interpolate")
    assert np.abs(spoilt - signals).max() < 0.02 * np.abs(signals).max()


@pytest.mark.all
def test_a_recording_that_ends_its_reader(tmp_path: Path) -> None:
    """A file that kills the process which reads it costs that file."""
    told = dict(pool.ordered(_deadly, list(range(4)), workers=2))
    assert isinstance(told.pop(1), pool.Died)
    assert told == {number: number * 2 for number in (0, 2, 3)}


def _deadly(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * 2


# What is asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "challenge3"}, "unknown kind of windows `challenge3`"),
        ({"kind": "challenge1", "notch": 60.0}, "a notch at 60 Hz is impossible in data at 100 Hz"),
        ({"kind": "challenge1", "band": (0.5, 50.0)}, "a band up to 50 Hz is impossible"),
        ({"kind": "challenge1", "channels": ("E1", "E99")}, "no recording has a channel `E99`"),
        ({"kind": "challenge1", "bad": "burn"}, "unknown treatment of bad channels `burn`"),
        ({"kind": "challenge1", "size": -1.0}, "is impossible"),
        ({"kind": "challenge2"}, "has no recordings for challenge2"),
        ({"kind": "events"}, "no events were named"),
    ],
)
def test_requests_that_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    data = make_set(tmp_path / "data")
    with pytest.raises(UserError) as caught:
        prepare.prepare(data, tmp_path / "cache", **{**SERVED, **options})
    assert message in caught.value.message


def test_no_bids_set(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(UserError, match="is not a BIDS data set"):
        prepared(tmp_path / "photos", tmp_path / "cache")
    with pytest.raises(UserError, match="there is no folder"):
        prepared(tmp_path / "nowhere", tmp_path / "cache")


def test_a_filter_that_only_some_recordings_can_have(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=1)
    write_recording(data, "sub-02", signals_of(2, rate=500), rate=500)
    write_events(
        data, "sub-02", [(2.0, 0, "contrastTrial_start"), (4.0, 0, "left_target"), (5.0, 0, "left_buttonPress")]
    )
    report = prepared(data, tmp_path / "cache", notch=60.0)
    assert report.left_out == {"sampling rate": [f"sub-01_task-{TASK}"]}
    assert report.windows == 1
    assert issubclass(Impossible, UserError)


def test_several_sets_in_one_folder(tmp_path: Path) -> None:
    make_set(tmp_path / "all" / "R1", subjects=1)
    make_set(tmp_path / "all" / "R5", subjects=2)
    assert prepared(tmp_path / "all", tmp_path / "cache").windows == 4  # sub-01 is in both; a name counts once
