"""Simulated data: known truth, the same bytes for the same seed, readable by others, and never taken for real."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import bdf, bids, cache, net, prepare, simulate, truth
from holdfast.workloads.eeg.demo import demo_data

from .sets import make_set

SMALL: dict[str, Any] = {"subjects": 3, "seed": 4, "trials": 5, "rest_seconds": 12.0, "brisk": True, "workers": 1}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate.write(tmp_path_factory.mktemp("simulated") / "data", **SMALL)


def everything(root: Path) -> dict[str, bytes]:
    return {str(each.relative_to(root)): each.read_bytes() for each in sorted(root.rglob("*")) if each.is_file()}


@pytest.mark.all
def test_the_same_seed_gives_the_same_bytes_however_many_write_them(small: Path, tmp_path: Path) -> None:
    assert everything(simulate.write(tmp_path / "again", **{**SMALL, "workers": 2})) == everything(small)


def test_another_seed_gives_others(small: Path, tmp_path: Path) -> None:
    other = everything(simulate.write(tmp_path / "other", **{**SMALL, "seed": 5, "subjects": 1}))
    assert not set(other.values()) & {body for name, body in everything(small).items() if name.endswith(".bdf")}


def test_it_says_everywhere_that_it_is_simulated(small: Path, tmp_path: Path) -> None:
    dataset = bids.look(small)
    assert dataset.simulated and dataset.name.startswith("SIMULATED")
    assert "no signal and no subject here is real" in (small / "README").read_text()
    assert all(each.sidecar["Simulated"] is True for each in dataset.recordings)
    assert all(each.subject.startswith("sub-SIM") for each in dataset.recordings)
    assert dataset.recordings[0].path.read_bytes()[8:17] == b"SIMULATED"
    report = prepare.prepare(small, tmp_path / "cache", kind="challenge1", workers=1)
    assert report.lines()[0].startswith("SIMULATED · ")
    assert cache.open(report.folder).simulated


def test_it_looks_like_the_healthy_brain_network(small: Path) -> None:
    dataset = bids.look(small)
    assert len(dataset.recordings) == 6
    task = next(each for each in dataset.recordings if each.task == "contrastChangeDetection")
    source = bdf.open(task.path)
    assert (source.rate, source.channels) == (100.0, [*(f"E{i}" for i in range(1, 129)), "Cz"])
    events = bids.events(task)
    assert {each.cell for each in events} == {"n/a"}
    assert {"contrastTrial_start", "left_target", "right_target", "boundary", "break cnt", "9999"} <= {
        each.value for each in events
    }
    signals = source.read(range(129))
    assert np.ptp(signals[128]) == 0  # Cz
    spread = np.median(signals.std(axis=1))
    assert 5e-6 < spread < 60e-6  # volts, as brains have them
    subject = dataset.subject(task.subject)
    assert subject.release and subject.age and set(subject.factors) == set(bids.FACTORS)


@pytest.mark.all
def test_flaws_are_in_it(tmp_path: Path) -> None:
    """Missing labels, files that are too short, windows past the end, presses too many and too few, bad channels."""
    root = simulate.write(tmp_path / "data", **{**SMALL, "subjects": 12, "trials": 8})
    known = bids.look(root)
    assert [name for name, each in known.subjects.items() if not each.factors] == [known.recordings[14].subject]
    task = prepare.prepare(root, tmp_path / "cache", kind="challenge1", band=None, workers=1)
    assert {"no response", "past the end"} <= set(task.drops)
    rest = prepare.prepare(root, tmp_path / "cache", kind="challenge2", band=None, workers=1)
    assert rest.drops == {"too short": 1}
    assert list(rest.left_out) == ["no label"]
    bad = {kind for each in [*task.outcomes, *rest.outcomes] for kind in each.bad_channels.values()}
    assert bad == {"marked bad"}
    pressed = [each.value for each in bids.events(known.recordings[1]) if each.value.endswith("_buttonPress")]
    assert pressed


def test_without_flaws(tmp_path: Path) -> None:
    root = simulate.write(tmp_path / "data", **{**SMALL, "subjects": 1, "flaws": False})
    told = simulate.truth(root)["subjects"][0]["recordings"]
    assert all(each["bad_channels"] == [] for each in told.values())


@pytest.mark.all
def test_truth_is_in_the_events_and_in_the_signals(small: Path) -> None:
    """The average over trials, lined up at the press, has its peak there."""
    subject = truth.draw_subject(1, 0, "R1")
    rng = np.random.default_rng(0)
    drawn = [each for each in truth.draw_trials(subject, 60, rng) if each.response_time is not None]
    pressed = []
    seen = net.near((0.0, -0.8, 0.55), 0.3)
    for each in drawn:
        signals = truth.rest(subject, 400, 100, rng)
        truth.add_response(signals, 100, 0.5, each)
        at = round((0.5 + (each.response_time or 0)) * 100)
        pressed.append((seen @ signals)[at - 50 : at + 50])
    mean = np.mean([each for each in pressed if len(each) == 100], axis=0)
    assert abs(int(np.argmax(mean)) - 50) <= 10
    for each in simulate.truth(small)["subjects"]:
        for name, facts in each["recordings"].items():
            recording = next(found for found in bids.look(small).recordings if found.name == name)
            targets = [event.onset for event in bids.events(recording) if event.value.endswith("_target")]
            assert targets == pytest.approx([row["stimulus"] for row in facts["trials"]])


def test_response_times_are_like_those_of_people() -> None:
    people = [truth.draw_subject(2, i, "R1") for i in range(150)]
    rng = np.random.default_rng(0)
    times = [[t.response_time for t in truth.draw_trials(each, 20, rng) if t.response_time] for each in people]
    every = np.concatenate([np.array(row) for row in times])
    assert every.mean() == pytest.approx(1.6, abs=0.08)
    assert every.std() == pytest.approx(0.41, abs=0.06)
    assert every.min() >= 0.35 and every.max() < 2.5
    between = np.var([np.mean(row) for row in times]) / every.var()
    assert 0.12 < between < 0.40
    ages = [each.age for each in people]
    assert np.corrcoef(ages, [np.mean(row) for row in times])[0, 1] < -0.1
    assert np.corrcoef(ages, [each.externalizing for each in people])[0, 1] < -0.05


@pytest.mark.all
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "place", "band"),
    [
        ("externalizing", (0.0, -0.95, 0.2), (7.0, 12.5)),
        ("attention", (0.0, 0.75, 0.6), (4.0, 7.0)),
        ("p_factor", (0.3, 0.1, 0.9), (16.0, 26.0)),
    ],
)
def test_factors_are_in_the_spectrum(name: str, place: tuple[float, float, float], band: tuple[float, float]) -> None:
    people = [truth.draw_subject(3, i, "R1") for i in range(60)]
    seen = net.near(place, 0.3)
    frequencies = np.fft.rfftfreq(1500, 0.01)
    inside = (frequencies >= band[0]) & (frequencies <= band[1])
    power = []
    for number, each in enumerate(people):
        signal = seen @ truth.rest(each, 1500, 100, np.random.default_rng(number))
        power.append(np.log(np.mean(np.abs(np.fft.rfft(signal))[inside] ** 2)))
    r = np.corrcoef(power, [getattr(each, name) for each in people])[0, 1]
    assert abs(r) > 0.3
    assert (r < 0) == (name == "externalizing")


@pytest.mark.parametrize("format", ["bdf", "set"])
def test_mne_reads_the_same_signals(tmp_path: Path, format: str) -> None:
    mne = pytest.importorskip("mne")
    pytest.importorskip("scipy")
    from holdfast.workloads.eeg import reading

    root = simulate.write(
        tmp_path / "data", **{**SMALL, "subjects": 1, "format": format, "rate": 500 if format == "set" else 100}
    )
    for recording in bids.look(root).recordings:
        raw = mne.io.read_raw(recording.path, preload=True, verbose="error")
        source = reading.open(recording.path)
        ours = source.read(range(len(source.channels)))
        assert (source.rate, source.channels) == (raw.info["sfreq"], raw.ch_names)
        np.testing.assert_allclose(ours, raw.get_data(), atol=1e-12)


def test_real_data_are_never_written_over(tmp_path: Path) -> None:
    real = make_set(tmp_path / "real")
    before = everything(real)
    with pytest.raises(UserError, match="holds no simulated data set"):
        simulate.write(real, **SMALL)
    assert everything(real) == before


def test_what_cannot_be_simulated(tmp_path: Path) -> None:
    for options in ({"format": "mp3"}, {"rate": 10}, {"subjects": 0}):
        with pytest.raises(UserError):
            simulate.write(tmp_path / "data", **{**SMALL, **options})
    with pytest.raises(UserError, match="has no simulated_truth"):
        simulate.truth(make_set(tmp_path / "real"))


@pytest.mark.all
def test_the_demo_is_made_once_and_again_when_it_has_to_be(tmp_path: Path) -> None:
    sizes = {"subjects": 2, "trials": 3, "rest_seconds": 9.0, "workers": 1}
    told: list[str] = []
    assert list(demo_data(tmp_path, 1, kinds=["pretrain"], **sizes)) == ["pretrain"]
    assert [each.name for each in (tmp_path / "cache").glob("*-100hz")] == ["pretrain-100hz"], "what was asked for"
    shutil.rmtree(tmp_path)
    windows = demo_data(tmp_path, 1, progress=lambda done, total, what: told.append(what), **sizes)
    assert sorted(windows) == ["challenge1", "challenge2", "pretrain"]
    assert all(each.simulated and len(each) for each in windows.values())
    assert "simulating" in told
    keys = {kind: each.key for kind, each in windows.items()}
    told.clear()
    again = demo_data(tmp_path, 1, progress=lambda done, total, what: told.append(what), **sizes)
    assert {kind: each.key for kind, each in again.items()} == keys
    assert told == []
    meta = again["challenge1"].folder / cache.META
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "key": "of an older holdfast"}))
    assert demo_data(tmp_path, 1, **sizes)["challenge1"].key == keys["challenge1"]
    assert demo_data(tmp_path, 2, **sizes)["challenge1"].key != keys["challenge1"]
