"""Small BIDS data sets, made in a moment: four channels, a minute, and whatever is to be wrong with them.

root = make_set(tmp_path / "data", subjects=3)
spoil(root, "sub-02", cut=0.5)                       # a file that ends in its middle
write_events(root, "sub-01", [(1.0, "n/a", "contrastTrial_start"), ...])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.workloads.eeg import bdf

CHANNELS = ("E1", "E2", "E3", "Cz")
TASK = "contrastChangeDetection"
Row = tuple[Any, ...]

TRIALS: list[Row] = [
    (2.0, "n/a", "contrastTrial_start", "n/a"),
    (4.0, "n/a", "left_target", "n/a"),
    (5.5, "n/a", "left_buttonPress", "smiley_face"),
    (5.9, "n/a", "left_buttonPress", "non_target"),
    (8.0, "n/a", "contrastTrial_start", "n/a"),
    (10.0, "n/a", "right_target", "n/a"),
    (10.9, "n/a", "left_buttonPress", "sad_face"),
    (14.0, "n/a", "contrastTrial_start", "n/a"),
    (16.0, "n/a", "right_target", "n/a"),
]
"""Three trials: 1.5 s and right, 0.9 s and wrong, no press."""


def signals_of(number: int, *, seconds: float = 20.0, rate: int = 100, channels: int = 4) -> NDArray[np.float32]:
    rng = np.random.default_rng(number)
    signals = rng.standard_normal((channels, round(seconds * rate)), dtype=np.float32) * np.float32(1e-5)
    signals[-1] = 0
    return signals


def make_set(
    root: Path,
    *,
    subjects: int = 2,
    task: str = TASK,
    rate: int = 100,
    seconds: float = 20.0,
    channels: Sequence[str] = CHANNELS,
    events: Sequence[Row] | None = TRIALS,
    labels: bool = True,
) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "dataset_description.json").write_text(json.dumps({"Name": "small", "BIDSVersion": "1.9.0"}))
    lines = ["participant_id\trelease_number\tsex\tage\tp_factor\tattention\tinternalizing\texternalizing"]
    for number in range(1, subjects + 1):
        name = f"sub-{number:02d}"
        factors = "0.1\t0.2\t0.3\t0.4" if labels else "n/a\tn/a\tn/a\tn/a"
        lines.append(f"{name}\tR{number}\tF\t{8 + number}.5\t{factors}")
        signals = signals_of(number, seconds=seconds, rate=rate, channels=len(channels))
        write_recording(root, name, signals, task=task, rate=rate, channels=channels)
        if events is not None:
            write_events(root, name, events, task=task)
    (root / "participants.tsv").write_text("\n".join(lines) + "\n")
    return root


def stem(root: Path, subject: str, task: str = TASK) -> Path:
    return root / subject / "eeg" / f"{subject}_task-{task}"


def recording_of(root: Path, subject: str, task: str = TASK) -> Path:
    return Path(f"{stem(root, subject, task)}_eeg.bdf")


def write_recording(
    root: Path,
    subject: str,
    signals: NDArray[np.float32],
    *,
    task: str = TASK,
    rate: int = 100,
    channels: Sequence[str] = CHANNELS,
) -> Path:
    path = recording_of(root, subject, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    bdf.write(path, signals, rate=rate, channels=channels)
    about = {"SamplingFrequency": rate, "RecordingDuration": signals.shape[1] / rate}
    Path(f"{stem(root, subject, task)}_eeg.json").write_text(json.dumps(about))
    return path


def write_events(root: Path, subject: str, rows: Sequence[Row], *, task: str = TASK) -> Path:
    path = Path(f"{stem(root, subject, task)}_events.tsv")
    lines = ["onset\tduration\tvalue\tfeedback", *("\t".join(str(cell) for cell in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_channels(root: Path, subject: str, names: Sequence[str] = CHANNELS, *, task: str = TASK) -> Path:
    path = Path(f"{stem(root, subject, task)}_channels.tsv")
    path.write_text("\n".join(["name\ttype\tunits", *(f"{name}\tEEG\tuV" for name in names)]) + "\n")
    return path


def spoil(root: Path, subject: str, *, cut: float, task: str = TASK) -> Path:
    """Cut a recording off after a share of its bytes."""
    path = recording_of(root, subject, task)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * cut)])
    return path
