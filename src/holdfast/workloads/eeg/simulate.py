"""A data set that looks like the Healthy Brain Network, with known truth. It is simulated and says so everywhere.

    simulate.write("data", subjects=60, seed=7)                     # 100 Hz, BDF
    simulate.write("data", subjects=4, seed=7, rate=500, format="set")
    truth = simulate.truth("data")                                  # what every subject and trial really is

What makes real data hard is in it, too: durations that are `n/a`, presses too many and too few, breaks and boundaries,
a flat Cz, blinks, jumps, bad channels, files that are too short, labels that are missing. The same seed gives the same
bytes, however many processes write them. `holdfast.workloads.eeg.truth` says what the signals are made of.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import __version__
from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.workloads.eeg import artefacts, bdf, bids, net, pool
from holdfast.workloads.eeg import truth as model

TRUTH = "simulated_truth.json"
RELEASES = ("R1", "R2", "R3", "R5")
COLUMNS = (
    "participant_id",
    "release_number",
    "sex",
    "age",
    "ehq_total",
    "commercial_use",
    "full_pheno",
    *bids.FACTORS,
    "RestingState",
    "contrastChangeDetection_1",
    "contrastChangeDetection_2",
)


def write(
    folder: str | os.PathLike[str],
    *,
    subjects: int = 20,
    seed: int = 0,
    rate: int = 100,
    format: str = "bdf",
    releases: Sequence[str] = RELEASES,
    runs: int = 1,
    trials: int = 24,
    rest_seconds: float = 60.0,
    brisk: bool = False,
    flaws: bool = True,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a BIDS set of `subjects` with `runs` of the task and one of rest each; returns its folder.

    `brisk` leaves out the waiting between trials, `flaws` puts in what is wrong with real data.
    """
    root = Path(folder)
    _refuse(root, subjects, rate, format)
    root.mkdir(parents=True, exist_ok=True)
    people = [_person(seed, i, releases[i % len(releases)], flaws) for i in range(subjects)]
    _write_top(root, people, seed=seed, rate=rate)
    work = functools.partial(
        _write_subject,
        root,
        seed=seed,
        rate=rate,
        format=format,
        runs=runs,
        trials=trials,
        rest_seconds=rest_seconds,
        brisk=brisk,
        flaws=flaws,
    )
    told: list[dict[str, Any]] = []
    for done, (_, each) in enumerate(pool.ordered(work, list(enumerate(people)), workers), 1):
        if isinstance(each, pool.Died):
            raise UserError("a process that simulated was ended", cause="memory, most likely", hints=["`--workers 1`"])
        told.append(each)
        if progress is not None:
            progress(done, len(people))
    files.write_json(root / TRUTH, {"simulated": True, "seed": seed, "rate": rate, "subjects": told}, durable=False)
    return root


def truth(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What `write` kept: every subject with all that is true of it, and the trials of each recording."""
    data = files.read_json(Path(folder) / TRUTH)
    if data is None:
        raise UserError(f"{folder} has no {TRUTH}", cause="it was not written by `holdfast eeg simulate`")
    return data


def _refuse(root: Path, subjects: int, rate: int, format: str) -> None:
    if format not in ("bdf", "set"):
        raise UserError(f"unknown format `{format}`", hints=["formats are `bdf` and `set`"])
    if rate < 100 or subjects < 1:
        raise UserError(f"{subjects} subjects at {rate} Hz cannot be simulated", hints=["1 or more, at 100 Hz or more"])
    description = files.read_json(root / bids.DESCRIPTION)
    if root.is_dir() and any(root.iterdir()) and not (description and bids.is_simulated(description)):
        raise UserError(
            f"{root} is not empty and holds no simulated data set",
            cause="simulated files must never stand among real ones",
            hints=["name a new folder"],
        )


def _person(seed: int, index: int, release: str, flaws: bool) -> model.SubjectTruth:
    return model.draw_subject(seed, index, release, labelled=not (flaws and index % 13 == 7))


def _write_top(root: Path, people: list[model.SubjectTruth], *, seed: int, rate: int) -> None:
    bids.write_json(
        root / bids.DESCRIPTION,
        {
            "Name": f"SIMULATED EEG, seed {seed}: not recorded from anybody",
            "BIDSVersion": "1.9.0",
            "License": "CC0",
            "DatasetType": "raw",
            "GeneratedBy": [{"Name": "holdfast eeg simulate", "Version": __version__, "Description": f"{rate} Hz"}],
        },
    )
    (root / "README").write_text(
        "Simulated data: no signal and no subject here is real.\n"
        f"{TRUTH} says what is true of each; `holdfast eeg simulate --help` how it was made.\n",
        encoding="utf-8",
    )
    rows = []
    for each in people:
        factors = [getattr(each, name) if each.labelled else None for name in bids.FACTORS]
        rows.append([each.name, each.release, each.sex, each.age, None, "No", "Yes", *factors, *["available"] * 3])
    bids.write_table(root / "participants.tsv", COLUMNS, rows)


# One subject ------------------------------------------------------------------------------------------------


def _write_subject(
    root: Path,
    numbered: tuple[int, model.SubjectTruth],
    *,
    seed: int,
    rate: int,
    format: str,
    runs: int,
    trials: int,
    rest_seconds: float,
    brisk: bool,
    flaws: bool,
) -> dict[str, Any]:
    index, subject = numbered
    folder = root / subject.name / "eeg"
    folder.mkdir(parents=True, exist_ok=True)
    recordings: dict[str, Any] = {}
    for run in range(runs + 1):  # the last one is rest
        rng = np.random.default_rng([seed, 2, index, run])
        resting = run == runs
        if resting:
            name, events, drawn = f"{subject.name}_task-RestingState", _rest_events(rest_seconds), []
            seconds = rest_seconds
            if flaws and index % 17 == 11:
                seconds = 1.5  # shorter than a window
        else:
            name = f"{subject.name}_task-contrastChangeDetection_run-{run + 1}"
            drawn = model.draw_trials(subject, trials, rng)
            events, starts, seconds = _task_events(drawn, rng, brisk=brisk, flaws=flaws)
        samples = round(seconds * rate)
        signals = model.rest(subject, samples, rate, rng)
        for trial, start in zip(drawn, starts if drawn else [], strict=True):
            model.add_response(signals, rate, start, trial)
        bad = artefacts.add(signals, rate, rng) if flaws else []
        _write_recording(folder / name, signals, events, rate=rate, format=format, resting=resting, bad=bad)
        recordings[name] = {
            "bad_channels": bad,
            "trials": [
                {"stimulus": start, "response_time": trial.response_time}
                for trial, start in zip(drawn, starts if drawn else [], strict=True)
            ],
        }
    return {**subject.to_json(), "recordings": recordings}


def _rest_events(seconds: float) -> list[tuple[float, str, str, str]]:
    events = [(0.0, "resting_start", "90", "n/a")]
    at, closed = 3.0, False
    while at < seconds - 5:
        events.append(
            (at, "instructed_toCloseEyes" if closed else "instructed_toOpenEyes", "30" if closed else "20", "n/a")
        )
        at, closed = at + (40 if closed else 20), not closed
    return events


def _task_events(
    drawn: list[model.TrialTruth], rng: np.random.Generator, *, brisk: bool, flaws: bool
) -> tuple[list[tuple[float, str, str, str]], list[float], float]:
    """The table, the second of each stimulus, and how long the recording is."""
    events = [(0.0, "break cnt", "break cnt", "n/a"), (1.0, "contrastChangeB1_start", "94", "n/a")]
    at, starts = 2.0, []
    for number, trial in enumerate(drawn):
        stimulus = round(at + (0.2 if brisk else 2.8 + float(rng.choice([0, 1.6, 3.2]))), 3)
        starts.append(stimulus)
        events.append((at, "contrastTrial_start", "5", "n/a"))
        events.append((stimulus, f"{trial.side}_target", "8" if trial.side == "left" else "9", "n/a"))
        if trial.response_time is not None:
            code, face = ("12", "13")[trial.pressed == "right"], "smiley_face" if trial.correct else "sad_face"
            events.append((round(stimulus + trial.response_time, 3), f"{trial.pressed}_buttonPress", code, face))
            for extra in trial.extra_presses:
                events.append((round(stimulus + extra, 3), f"{trial.pressed}_buttonPress", code, "non_target"))
        at = round(stimulus + (2.6 if brisk else 2.4 + 0.2 * float(rng.integers(0, 3))), 3)
        if flaws and number == len(drawn) // 2:  # a break, where the recording was cut
            events += [(at, "boundary", "boundary", "n/a"), (round(at + 0.1, 3), "9999", "9999", "n/a")]
            at = round(at + 0.5, 3)
    # A recording may end inside of its last trial.
    tail = 1.0 if flaws and rng.random() < 0.2 else 3.0
    return sorted(events, key=lambda each: each[0]), starts, float(np.ceil(starts[-1] + tail))


def _write_recording(
    stem: Path,
    signals: model.Signals,
    events: list[tuple[float, str, str, str]],
    *,
    rate: int,
    format: str,
    resting: bool,
    bad: list[str],
) -> None:
    names = net.names()
    path = stem.with_name(f"{stem.name}_eeg.{format}")
    if format == "bdf":
        bdf.write(path, signals, rate=rate, channels=names, about="SIMULATED")
    else:
        from holdfast.workloads.eeg import eeglab

        eeglab.write(path, signals, rate=rate, channels=names, events=events)
    header = ("onset", "duration", "sample", "value", "event_code", *(() if resting else ("feedback",)))
    rows = [
        (onset, None, round(onset * rate), value, code, *(() if resting else (face,)))
        for onset, value, code, face in events
    ]
    bids.write_table(stem.with_name(f"{stem.name}_events.tsv"), header, rows)
    status = ["bad" if name in bad else "good" for name in names]
    channel_rows = [(name, "EEG", "uV", one) for name, one in zip(names, status, strict=True)]
    bids.write_table(stem.with_name(f"{stem.name}_channels.tsv"), ("name", "type", "units", "status"), channel_rows)
    sidecar = {
        "TaskName": "RestingState" if resting else "contrastChangeDetection",
        "SamplingFrequency": rate,
        "EEGReference": "Cz",
        "EEGChannelCount": len(names),
        "PowerLineFrequency": 60,
        "RecordingType": "continuous",
        "RecordingDuration": signals.shape[1] / rate,
        "SoftwareFilters": "n/a",
        "Simulated": True,
    }
    stem.with_name(f"{stem.name}_eeg.json").write_text(json.dumps(sidecar, indent=2) + "\n", encoding="utf-8")
