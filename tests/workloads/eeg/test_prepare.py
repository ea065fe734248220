"""From a data set to a cache: right windows, everything accounted for, whatever is wrong with data or moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.errors import UserError
from holdfast.workloads.eeg import bdf, cache, pool, prepare, recipe
from holdfast.workloads.eeg.filters import Impossible

from ...disks import fill, make_room, small_disk
from .sets import CHANNELS, TASK, TRIALS, make_set, recording_of, signals_of, spoil, stem, write_events, write_recording

SERVED: dict[str, Any] = {"band": None, "notch": None, "bad": "keep", "workers": 1}


def prepared(data: Path, folder: Path, kind: str = "challenge1", **options: Any) -> Any:
    return prepare.prepare(data, folder, kind=kind, **{**SERVED, **options})


# What is in it ----------------------------------------------------------------------------------------------


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
    report = prepared(data, tmp_path / "cache", band=(0.5, 45.0), notch="auto")
    whole = bdf.open(recording_of(data, "sub-01")).read(range(4))
    chain = recipe.Recipe("challenge1").chain(500)
    wanted = chain.apply(whole)[:, 450:650]
    wanted[3] = 0
    np.testing.assert_allclose(cache.open(report.folder).signals[0], wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
    assert report.chain == ["notch 60 Hz at 500 Hz; band-pass 0.5-45 Hz; resampled 500 -> 100 Hz"]


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
        (binary_events, "no stimuli", ""),
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
        ({"kind": "challenge1", "bad": "burn"}, "unknown way with bad channels `burn`"),
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


# The cache --------------------------------------------------------------------------------------------------


def test_the_same_again_is_found_and_not_made(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data")
    first = prepared(data, tmp_path / "cache")
    before = (first.folder / cache.SIGNALS).stat().st_mtime_ns
    again = prepared(data, tmp_path / "cache")
    assert again.reused and not first.reused
    assert again.lines() == first.lines()
    assert (first.folder / cache.SIGNALS).stat().st_mtime_ns == before


def other_content(data: Path) -> dict[str, Any]:
    write_recording(data, "sub-01", signals_of(77))
    return {}


def other_events(data: Path) -> dict[str, Any]:
    path = Path(f"{stem(data, 'sub-01')}_events.tsv")
    path.write_text(path.read_text().replace("5.5", "5.6"))
    return {}


def other_labels(data: Path) -> dict[str, Any]:
    path = data / "participants.tsv"
    path.write_text(path.read_text().replace("9.5", "9.6"))
    return {}


@pytest.mark.parametrize(
    "change",
    [other_content, other_events, other_labels, lambda data: {"band": (1.0, 40.0)}, lambda data: {"shift": 0.4}],
    ids=["content", "events", "labels", "band", "shift"],
)
def test_it_refuses_to_mix(tmp_path: Path, change: Callable[[Path], dict[str, Any]]) -> None:
    data = make_set(tmp_path / "data")
    first = prepared(data, tmp_path / "cache")
    options = change(data)
    with pytest.raises(prepare.OtherCache) as caught:
        prepared(data, tmp_path / "cache", **options)
    assert caught.value.hints[0] == "`--rebuild` makes it anew"
    anew = prepared(data, tmp_path / "cache", rebuild=True, **options)
    assert anew.key != first.key


def test_a_change_of_the_code_makes_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_set(tmp_path / "data")
    prepared(data, tmp_path / "cache")
    monkeypatch.setattr(recipe, "code_version", lambda: "another")
    with pytest.raises(prepare.OtherCache):
        prepared(data, tmp_path / "cache")


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data")
    target = tmp_path / "cache" / "challenge1-100hz"
    target.mkdir(parents=True)
    (target / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        prepared(data, tmp_path / "cache")
    assert (target / "thesis.tex").read_text() == "mine"


def test_two_processes_at_once(tmp_path: Path) -> None:
    from holdfast.workloads.eeg import locking

    data = make_set(tmp_path / "data")
    target = tmp_path / "cache" / "challenge1-100hz"
    target.mkdir(parents=True)
    with locking.held(target / "lock"), pytest.raises(UserError, match="another process is making the cache"):
        prepared(data, tmp_path / "cache")


def test_no_space_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    data = make_set(tmp_path / "data", task="RestingState")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(UserError, match=r"would need about 128 kB, 1\.0 kB are free"):
        prepared(data, tmp_path / "cache", "challenge2")


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))   # a file that cannot grow: what a full disk is to us
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from holdfast.errors import HoldfastError
from holdfast.workloads.eeg.prepare import prepare
try:
    prepare(sys.argv[1], sys.argv[2], kind="challenge1", band=None, notch=None, bad="keep", workers=1)
except HoldfastError as error:
    print(error.message, error.cause, error.saved, sep=chr(10))
"""


def test_a_disk_that_fills_up_leaves_what_can_be_gone_on_with(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=12)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(data), str(tmp_path / "cache")], capture_output=True, text=True, check=True
    )
    folder = tmp_path / "cache" / "challenge1-100hz"
    message, cause, saved = done.stdout.splitlines()
    assert message == f"no space is left for the cache in {folder}"
    assert (cause, saved) == ("File too large", "the recordings that were done stay")
    assert (folder / prepare.JOURNAL).read_bytes().count(b"\n") >= 2
    assert not (folder / cache.META).exists()
    with pytest.raises(UserError, match="no finished cache") as caught:
        cache.open(folder)
    assert "goes on where it was" in caught.value.hints[0]
    assert prepared(data, tmp_path / "cache").windows == 24


SLOWLY = """
import sys, time
from holdfast.workloads.eeg import making
from holdfast.workloads.eeg.prepare import prepare
make = making.make
def slow(*args):
    time.sleep(0.05)
    return make(*args)
making.make = slow
prepare(sys.argv[1], sys.argv[2], kind="challenge1", band=None, notch=None, bad="keep", workers=1)
"""


def test_a_full_disk_and_then_room(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=12)
    with small_disk(tmp_path / "disk", "1m") as disk:
        prepared(data, disk / "first")
        fill(disk)
        with pytest.raises(UserError, match="no space is left for the cache") as caught:
            prepared(data, disk / "cache")
        assert caught.value.cause == "No space left on device"
        make_room(disk)
        assert prepared(data, disk / "cache").windows == 24


def test_killed_again_and_again_it_becomes_the_same_cache(tmp_path: Path) -> None:
    """kill -9 at any moment; the bytes are those of a cache that was made in peace."""
    data = make_set(tmp_path / "data", subjects=14)
    peace = prepared(data, tmp_path / "peace")
    folder, kills = tmp_path / "war" / "challenge1-100hz", 0
    journal = folder / prepare.JOURNAL
    for least in (2, 5, 9):
        child = subprocess.Popen([sys.executable, "-c", SLOWLY, str(data), str(tmp_path / "war")])
        try:
            end = time.monotonic() + 60
            while child.poll() is None and time.monotonic() < end:
                if journal.exists() and journal.read_bytes().count(b"\n") >= least:
                    break
                time.sleep(0.005)
            child.kill()
        finally:
            kills += child.wait() == -signal.SIGKILL
    assert kills == 3
    with journal.open("ab") as file:
        file.write(b'{"recording": "torn')
    with (folder / cache.SIGNALS).open("ab") as file:
        file.write(b"half a window")
    done = journal.read_bytes().count(b"\n")
    assert done >= 9
    war = prepared(data, tmp_path / "war")
    assert war.key == peace.key
    for name in (cache.SIGNALS, cache.TABLE):
        assert (war.folder / name).read_bytes() == (peace.folder / name).read_bytes()
    assert not (folder / prepare.BUILDING).exists() and not journal.exists()


@pytest.mark.parametrize("band", [None, (0.5, 45.0)])
def test_several_processes_make_the_same_bytes(tmp_path: Path, band: tuple[float, float] | None) -> None:
    data = make_set(tmp_path / "data", subjects=5)
    spoil(data, "sub-03", cut=0.5)
    numbers = (1, 2, 3) if band else (1, 2)
    one, *others = (prepared(data, tmp_path / f"by-{each}", workers=each, band=band) for each in numbers)
    for other in others:
        assert other.key == one.key
        for name in (cache.SIGNALS, cache.TABLE, cache.META, prepare.REPORT):
            mine, theirs = ((each.folder / name).read_bytes() for each in (one, other))
            assert mine.replace(str(one.folder).encode(), str(other.folder).encode()) == theirs


def test_the_report_is_kept_beside_the_windows(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=3)
    spoil(data, "sub-02", cut=0.5)
    report = prepared(data, tmp_path / "cache")
    kept = json.loads((report.folder / prepare.REPORT).read_text())
    assert kept == json.loads(json.dumps(report.to_json()))
    assert report.lines() == [
        "challenge1 · 4 windows of 2 s x 4 channels at 100 Hz · 2 of 3 recordings",
        "  done       as recorded, 100 Hz",
        "",
        "Windows left out",
        f"  2  no response  in sub-01_task-{TASK}, sub-03_task-{TASK}",
        "",
        "Recordings left out",
        f"  1  truncated  sub-02_task-{TASK}",
        f"                {report.outcomes[1].detail}",
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda each: each.name)
def test_a_command_that_is_ended_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    psutil = pytest.importorskip("psutil")
    data = make_set(tmp_path / "data", subjects=1, seconds=200, rate=500)
    for subject in range(2, 62):  # the same again under other names: enough work to be ended in its middle
        for path in (data / "sub-01" / "eeg").iterdir():
            other = data / f"sub-{subject:02d}" / "eeg" / path.name.replace("sub-01", f"sub-{subject:02d}")
            other.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, other)
    words = ["eeg", "prepare", str(data), str(tmp_path / "cache"), "--kind", "challenge1", "--workers", "2"]
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    journal = tmp_path / "cache" / "challenge1-100hz" / prepare.JOURNAL
    try:
        end = time.monotonic() + 60
        while not (journal.exists() and journal.stat().st_size) and time.monotonic() < end:
            time.sleep(0.02)
        others = psutil.Process(child.pid).children(recursive=True)
        assert len(others) >= 2
        os.killpg(child.pid, number) if number == signal.SIGINT else child.kill()  # a terminal tells the whole group
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    _, left = psutil.wait_procs(others, timeout=30)
    assert left == []
    if number == signal.SIGINT:
        assert child.returncode == 130
        assert "Traceback" not in err
        assert err.splitlines()[-1] == "the same command goes on where it was"


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
