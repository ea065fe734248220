"""What braindecode says to a recording that the check has named; run as a process, since it imports half of science.

    echo '{"zero-durations": ["….bdf", "…_events.tsv"]}' | python -m holdfast.workloads.eeg.proof

The last line it prints is JSON: for each of them the call, and what was raised.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.workloads.eeg import bids
from holdfast.workloads.eeg.bids import Event, Recording
from holdfast.workloads.eeg.faults import DataFault


def main() -> int:
    wanted = json.loads(sys.stdin.read())
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers = {}
    with contextlib.redirect_stdout(sys.stderr):
        for code, (path, events) in wanted.items():
            answers[code] = _CALLS[code](Path(path), Path(events) if events else None)
    print(json.dumps(answers))
    return 0


def _zero_durations(path: Path, events: Path | None) -> dict[str, str]:
    from braindecode.preprocessing import create_windows_from_events

    dataset, names = _dataset(path, events)
    mapping = {name: number for number, name in enumerate(names)}
    return _said(
        "create_windows_from_events(dataset, mapping=…)", lambda: create_windows_from_events(dataset, mapping=mapping)
    )


def _past_the_end(path: Path, events: Path | None) -> dict[str, str]:
    from braindecode.preprocessing import create_windows_from_events

    dataset, names = _dataset(path, events)
    rate = dataset.datasets[0].raw.info["sfreq"]
    sizes = {
        "trial_start_offset_samples": int(0.5 * rate),
        "trial_stop_offset_samples": int(2.5 * rate),
        "window_size_samples": int(2 * rate),
        "window_stride_samples": int(rate),
    }
    mapping = {name: number for number, name in enumerate(names)}
    call = ", ".join(f"{name}={value}" for name, value in sizes.items())
    return _said(
        f"create_windows_from_events(dataset, mapping=…, {call})",
        lambda: create_windows_from_events(dataset, mapping=mapping, **sizes),
    )


def _too_short(path: Path, events: Path | None) -> dict[str, str]:
    from braindecode.preprocessing import create_fixed_length_windows

    dataset, _ = _dataset(path, events)
    rate = dataset.datasets[0].raw.info["sfreq"]
    sizes = {"window_size_samples": int(4 * rate), "window_stride_samples": int(2 * rate)}
    call = ", ".join(f"{name}={value}" for name, value in sizes.items())
    return _said(
        f"create_fixed_length_windows(dataset, {call})",
        lambda: create_fixed_length_windows(dataset, drop_last_window=True, **sizes),
    )


_CALLS: dict[str, Callable[[Path, Path | None], dict[str, str]]] = {
    "zero-durations": _zero_durations,
    "past-the-end": _past_the_end,
    "too-short": _too_short,
}


def _dataset(path: Path, events: Path | None) -> tuple[Any, list[str]]:
    """The recording as braindecode has it, with durations as mne-bids reads them: n/a is 0."""
    import mne
    from braindecode.datasets import BaseConcatDataset, RawDataset

    raw = mne.io.read_raw(path, preload=False, verbose="error")
    rows = [each for each in _events(path, events) if each.onset == each.onset]
    stimuli = [each for each in rows if each.value.endswith("_target")] or rows
    durations = [each.duration if each.duration > 0 else 0.0 for each in stimuli]
    raw.set_annotations(mne.Annotations([each.onset for each in stimuli], durations, [each.value for each in stimuli]))
    return BaseConcatDataset([RawDataset(raw)]), sorted({each.value for each in stimuli})


def _events(path: Path, events: Path | None) -> list[Event]:
    recording = Recording(path, path.stem, "", "", "", path.parent, events, None)
    try:
        return bids.events(recording)
    except DataFault:
        return []


def _said(call: str, action: Callable[[], Any]) -> dict[str, str]:
    try:
        action()
    except Exception as error:  # whatever it is, it is what the user would have seen
        first = str(error).strip().splitlines()
        return {"call": call, "said": f"{type(error).__name__}: {first[0] if first else ''}"[:300]}
    return {"call": call, "said": "nothing: it went through"}


if __name__ == "__main__":
    raise SystemExit(main())
