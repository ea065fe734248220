"""What in a data set would break other tools, or be left out here: found before it costs a night.

    checked = check.check("data")
    for finding in checked.findings:
        print(finding.title, finding.recordings)
    check.prove(checked)              # lets braindecode say it itself, in a process of its own

A fault of the data is named as one, with its recording: an exception in a windower must never look like a fault of
a device. Nothing in a data set makes this raise; what cannot be read is a finding.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base import interpreter
from holdfast.base.human import count, counted
from holdfast.workloads.eeg import bids, mains, pool, reading, sidecars, windowing
from holdfast.workloads.eeg.bids import DataSet, Event, Recording
from holdfast.workloads.eeg.faults import REASONS, DataFault

BREAKS, CHANGES, LEAVES_OUT = "breaks", "changes", "leaves out"
"""Levels: other tools raise; they give something else than is meant, without a word; something cannot be used."""
_NAMED = 3


@dataclass
class Finding:
    """One thing that is wrong, where, and what follows from it."""

    code: str
    level: str
    title: str
    others: str
    """What braindecode, mne or mne-bids do with it."""
    ours: str
    """What `holdfast eeg prepare` does."""
    recordings: dict[str, str] = field(default_factory=dict)
    """Names, each with what was seen in it."""
    proof: dict[str, str] = field(default_factory=dict)
    """What the others really said, and about which recording, where that was tried."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "proof": self.proof or None}

    def lines(self, *, everything: bool = False) -> list[str]:
        sign = {BREAKS: "[✗]", CHANGES: "[!]", LEAVES_OUT: "[!]"}[self.level]
        shown = list(self.recordings.items())[: None if everything else _NAMED]
        what = "file" if any(name.endswith(".tsv") for name in self.recordings) else "recording"
        lines = [f"{sign} {self.title} · {counted(len(self.recordings), what)}"]
        lines += [f"      {name}: {what}" if what else f"      {name}" for name, what in shown]
        if len(self.recordings) > len(shown):
            lines.append(f"      and {count(len(self.recordings) - len(shown))} more; `-v` names all")
        lines.append(f"    others    {self.others}")
        if self.proof:
            lines += [f"    tried     {self.proof['call']}", f"              {self.proof['said']}"]
        lines.append(f"    holdfast  {self.ours}")
        return lines


KINDS: dict[str, tuple[str, str, str, str]] = {
    "zero-durations": (
        BREAKS,
        "events without a duration (n/a, 0)",
        "create_windows_from_events without a window size raises `arange: cannot compute length`: it takes the size "
        "from the first event, which is 0",
        "never looks at durations; sizes are always given",
    ),
    "empty-durations": (
        BREAKS,
        "events whose duration is empty",
        "mne-bids raises `could not convert string to float: ''` for the recording",
        "never looks at durations",
    ),
    "mixed-durations": (
        CHANGES,
        "stimuli with and without a duration in one recording",
        "create_windows_from_events gives some trials more windows than others, without a word",
        "one window for each trial",
    ),
    "no-onset": (
        BREAKS,
        "events whose onset is no number",
        "mne raises `cannot convert float NaN to integer`; eegdash raises for the whole set",
        "leaves those trials out and counts them",
    ),
    "past-the-end": (
        BREAKS,
        "a stimulus so late that its window ends after the recording",
        'create_windows_from_events raises `"trial_stop_offset_samples" too large` and aborts the whole set',
        "leaves that window out and counts it",
    ),
    "too-short": (
        BREAKS,
        "recordings shorter than a window of 4 s",
        "create_fixed_length_windows raises for the whole set",
        "leaves them out of windows of fixed length",
    ),
    "unreadable": (
        BREAKS,
        "files that cannot be read",
        "mne raises when the file is opened, or reads less than there should be",
        "leaves them out and names them; the rest of the set is used",
    ),
    "channels": (
        BREAKS,
        "recordings with other channels than the rest",
        "batches cannot be stacked: `each element in list of batch should be of equal size`",
        "leaves them out, or takes the channels that were asked for by name",
    ),
    "twice": (
        CHANGES,
        "recordings that are in several sets below this folder",
        "a subject may be in training and validation at once, without a word",
        "takes the first, and no other",
    ),
    "rates": (
        CHANGES,
        "recordings at another sampling rate than most",
        "windows of a number of samples last shorter or longer in them",
        "brings all of them to the rate of the cache",
    ),
    "broken-json": (
        BREAKS,
        "sidecars that are no json",
        "mne-bids raises JSONDecodeError for the recording",
        "does without: header and spectrum say what the sidecar would",
    ),
    "missing-json": (
        CHANGES,
        "recordings without a sidecar (eeg.json)",
        "mne-bids warns, and knows no mains frequency",
        "does without: header and spectrum say what the sidecar would",
    ),
    "broken-table": (
        BREAKS,
        "tables (tsv) that are broken, or not separated by tabs",
        "mne-bids raises KeyError or ValueError for the recording; without a word it does without channels.tsv",
        "leaves the recording out of windows at events; does without channels.tsv; labels need participants.tsv",
    ),
    "missing-table": (
        CHANGES,
        "recordings without their events.tsv or channels.tsv, or a set without participants.tsv",
        "mne-bids warns; there are no events to cut at, no marks of bad channels, no labels",
        "leaves recordings without events out of windows at events; takes channels from the header",
    ),
    "rates-disagree": (
        CHANGES,
        "sampling rates that disagree between header and sidecar",
        "mne-bids takes the header's without a word; who reads the sidecar has other windows",
        "takes the header's and says so: if the sidecar is right, correct the header first",
    ),
    "duplicate-events": (
        BREAKS,
        "events that stand there twice",
        "mne.Epochs raises `Event time samples were not unique`; braindecode cuts the same window twice",
        "counts them once",
    ),
    "renamed-channels": (
        BREAKS,
        "channels that channels.tsv calls otherwise than the recording",
        "mne-bids raises `Channel mismatch`",
        "takes the names of the header; where the tables of most recordings are wrong, `--channels` has to name them",
    ),
    "mains": (
        CHANGES,
        "a hum at another frequency than the sidecar's PowerLineFrequency",
        "a notch at the frequency of the sidecar leaves the hum in",
        "takes the sidecar's and says so; `--notch 50` or `--notch 60` decides otherwise",
    ),
    "no-stimuli": (
        LEAVES_OUT,
        "recordings of the task without a stimulus, or without events",
        "keep_only_recordings_with is needed, or create_windows_from_events raises",
        "leaves them out of challenge1",
    ),
    "no-response": (
        LEAVES_OUT,
        "trials in which nothing was pressed",
        "their target is NaN, and so is the loss",
        "leaves those trials out and counts them",
    ),
    "no-label": (
        LEAVES_OUT,
        "subjects without their four factors",
        "their target is NaN, and so is the loss",
        "leaves them out of challenge2",
    ),
    "low-rate": (
        BREAKS,
        "recordings in which a notch at the mains frequency is impossible",
        "mne raises `h_freq must be less than the Nyquist frequency`",
        "skips the notch there; refuses it, with the reason, if it was asked for by name",
    ),
}


@dataclass
class Checked:
    """Everything that was found in one data set."""

    dataset: DataSet
    findings: list[Finding]

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.dataset.root),
            "name": self.dataset.name,
            "simulated": self.dataset.simulated,
            "recordings": len(self.dataset.recordings),
            "subjects": len({each.subject for each in self.dataset.recordings}),
            "findings": [each.to_json() for each in self.findings],
            "breaks": any(each.level == BREAKS for each in self.findings),
        }


def check(
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Checked:
    """Look at every recording: its header, its events, its subject."""
    dataset = bids.look(folder)
    findings = {code: Finding(code, *words) for code, words in KINDS.items()}
    seen: dict[str, dict[str, Any]] = {}
    look = functools.partial(_look)
    for number, (recording, what) in enumerate(pool.ordered(look, dataset.recordings, workers), 1):
        if isinstance(what, pool.Died):
            what = {"faults": {"unreadable": "the process that read it was ended"}}
        seen[recording.name] = what
        for code, detail in what["faults"].items():
            findings[code].recordings[recording.name] = detail
        if not dataset.subject(recording.subject).factors and _is_known_set(dataset):
            findings["no-label"].recordings[recording.name] = recording.subject
        if progress is not None:
            progress(number, len(dataset.recordings), recording.name)
    findings["twice"].recordings.update(dict.fromkeys(dataset.twice, ""))
    _participants(dataset, findings)
    _compare(seen, findings)
    order = {BREAKS: 0, CHANGES: 1, LEAVES_OUT: 2}
    found = sorted((each for each in findings.values() if each.recordings), key=lambda each: order[each.level])
    return Checked(dataset, found)


def _is_known_set(dataset: DataSet) -> bool:
    """Factors are missing only where some subject has them."""
    return any(each.factors for each in dataset.subjects.values())


def _participants(dataset: DataSet, findings: dict[str, Finding]) -> None:
    for folder in dataset.sets:
        path = folder / bids.PARTICIPANTS
        if not path.exists():
            findings["missing-table"].recordings[str(path)] = "it is not there"
        elif fault := sidecars.table_fault(path, "participant_id"):
            findings["broken-table"].recordings[str(path)] = fault


def _look(recording: Recording) -> dict[str, Any]:
    """Everything that one recording alone can tell."""
    faults: dict[str, str] = {}
    found: dict[str, Any] = {"faults": faults}
    seconds = math.nan
    source = None
    try:
        source = reading.open(recording.path)
    except DataFault as fault:
        faults["unreadable"] = f"{fault.reason}: {fault.detail or REASONS.get(fault.reason, '')}"
    faults.update(sidecars.faults(recording, source))
    if source is not None:
        found.update(rate=source.rate, channels=list(source.channels))
        seconds = source.samples / source.rate
        if seconds < 4:
            faults["too-short"] = f"{seconds:.1f} s"
        line = mains.stated(recording.sidecar) or mains.CANDIDATES[-1]
        if not mains.can_hold(source.rate, line):
            faults["low-rate"] = f"{source.rate:g} Hz, mains {line:g} Hz"
        if doubt := mains.of(recording, source).doubt:
            faults["mains"] = doubt
    try:
        events, again = bids.once(bids.events(recording))
        if again:
            faults["duplicate-events"] = counted(again, "event")
    except DataFault as fault:
        events = []
        if recording.task == "contrastChangeDetection" and fault.reason == "no events":
            faults["no-stimuli"] = str(fault)
    faults.update({**_event_faults(events, recording.task, seconds), **faults})
    return found


def _event_faults(events: Sequence[Event], task: str, seconds: float) -> dict[str, str]:
    faults: dict[str, str] = {}
    without = [each for each in events if not each.duration > 0]
    empty = [each for each in events if each.cell == ""]
    lost = [each for each in events if math.isnan(each.onset)]
    if without:
        cells = ", ".join(sorted({each.cell or "empty" for each in without})[:3])
        faults["zero-durations"] = f"{len(without)} of {len(events)} events: {cells}"
    if empty:
        faults["empty-durations"] = counted(len(empty), "event")
    if lost:
        faults["no-onset"] = ", ".join(f"{each.value} at {each.extra.get('onset')!r}" for each in lost[:3])
    names = windowing.Names()
    stimuli = [each for each in events if windowing.is_one(each, names.stimulus)]
    if 0 < sum(1 for each in stimuli if each.duration > 0) < len(stimuli):
        faults["mixed-durations"] = f"{len(stimuli)} stimuli"
    if task == "contrastChangeDetection" and events and not stimuli:
        faults["no-stimuli"] = f"{counted(len(events), 'event')}, none of them a target"
    late = [each for each in stimuli if each.onset + 2.5 > seconds]
    if late:
        faults["past-the-end"] = f"a stimulus at {late[-1].onset:g} s of {seconds:g} s"
    trials, _ = windowing.trials(events, names)
    silent = sum(1 for each in trials if each.stimulus and not each.response)
    if silent:
        faults["no-response"] = f"{silent} of {len(trials)} trials"
    return faults


def _compare(seen: dict[str, dict[str, Any]], findings: dict[str, Finding]) -> None:
    """What only shows beside the others."""
    readable = {name: what for name, what in seen.items() if "rate" in what}
    if not readable:
        return
    usual = Counter(tuple(what["channels"]) for what in readable.values()).most_common(1)[0][0]
    rate = Counter(what["rate"] for what in readable.values()).most_common(1)[0][0]
    for name, what in readable.items():
        if set(what["channels"]) != set(usual):
            findings["channels"].recordings[name] = f"{len(what['channels'])} channels, most have {len(usual)}"
        if what["rate"] != rate:
            findings["rates"].recordings[name] = f"{what['rate']:g} Hz, most are at {rate:g} Hz"


# Let them say it themselves ---------------------------------------------------------------------------------


def prove(checked: Checked, *, timeout: float = 600.0) -> None:
    """Try the calls of braindecode that would break, on one recording each, in a process of its own."""
    by_name = {each.name: each for each in checked.dataset.recordings}
    wanted = {}
    for finding in checked.findings:
        if finding.code in ("zero-durations", "past-the-end", "too-short"):
            name = _best_example(finding, by_name)
            events = by_name[name].events
            wanted[finding.code] = [str(by_name[name].path), str(events) if events else ""]
    if not wanted:
        return
    command = interpreter.module("holdfast.workloads.eeg.proof")
    try:
        told = subprocess.run(command, input=json.dumps(wanted), capture_output=True, text=True, timeout=timeout)
        answers = json.loads(told.stdout.splitlines()[-1]) if told.returncode == 0 else {}
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        answers = {}
    for finding in checked.findings:
        if finding.code in answers:
            finding.proof = {"recording": Path(wanted[finding.code][0]).name, **answers[finding.code]}


def _best_example(finding: Finding, by_name: dict[str, Recording]) -> str:
    """A recording of the task says it best; others have no stimuli to cut at."""
    names = list(finding.recordings)
    return next((name for name in names if by_name[name].task == "contrastChangeDetection"), names[0])
