"""A recording that is not in a BIDS data set, made part of one: copied, with the tables that its own header gives.

    adopt.adopt("eeglab_data.set", "data", subject="01", task="square")
    holdfast eeg prepare data cache --kind challenge1 --trial '' --stimulus square --response rt --tasks square

The file itself is not changed. EEGLAB's events are read here; those of other formats with MNE.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from pathlib import Path

from holdfast import __version__
from holdfast.base.errors import UserError
from holdfast.workloads.eeg import bids, eeglab, reading
from holdfast.workloads.eeg.faults import DataFault


def adopt(file: str | os.PathLike[str], folder: str | os.PathLike[str], *, subject: str, task: str) -> Path:
    """Copy a recording into the BIDS set in `folder`, which is made if there is none; returns the copy."""
    source, root = Path(file), Path(folder)
    for word in (subject, task):
        if not re.fullmatch(r"[A-Za-z0-9]+", word):
            raise UserError(f"`{word}` cannot be part of a BIDS name", hints=["letters and digits only"])
    try:
        recording = reading.open(source)
        events = _events(source, recording.rate)
    except DataFault as fault:
        raise UserError(f"{source} cannot be read", cause=str(fault)) from fault
    name = f"sub-{subject}_task-{task}"
    target = root / f"sub-{subject}" / "eeg" / f"{name}_eeg{source.suffix.lower()}"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if source.with_suffix(".fdt").exists():
        shutil.copyfile(source.with_suffix(".fdt"), target.with_suffix(".fdt"))
    rows = [(onset, duration, value) for onset, duration, value in events]
    bids.write_table(target.with_name(f"{name}_events.tsv"), ("onset", "duration", "value"), rows)
    channels = [(each, "EEG", "uV") for each in recording.channels]
    bids.write_table(target.with_name(f"{name}_channels.tsv"), ("name", "type", "units"), channels)
    sidecar = {
        "TaskName": task,
        "SamplingFrequency": recording.rate,
        "EEGChannelCount": len(recording.channels),
        "RecordingDuration": recording.samples / recording.rate,
    }
    bids.write_json(target.with_name(f"{name}_eeg.json"), sidecar)
    _describe(root)
    return target


def _describe(root: Path) -> None:
    if not (root / bids.DESCRIPTION).exists():
        made = [{"Name": "holdfast eeg adopt", "Version": __version__}]
        bids.write_json(root / bids.DESCRIPTION, {"Name": root.name, "BIDSVersion": "1.9.0", "GeneratedBy": made})
    people = sorted(each.name for each in root.glob("sub-*") if each.is_dir())
    bids.write_table(root / "participants.tsv", ("participant_id",), [(each,) for each in people])


def _events(path: Path, rate: float) -> list[tuple[float, float, str]]:
    if path.suffix.lower() == ".set":
        return eeglab.events(path, rate)
    try:
        import mne
    except ImportError:
        return []
    notes = mne.io.read_raw(path, preload=False, verbose="error").annotations
    return [(float(each["onset"]), float(each["duration"]) or math.nan, str(each["description"])) for each in notes]
