"""The signals of a recording, whatever format they are in.

    source = reading.open(path)                     # DataFault, with words, if it cannot be
    source.rate, source.channels, source.samples
    source.read([0, 1], 0, 1000)                    # volts, float64

BDF and EDF are read here, block by block; EEGLAB's .set with scipy; the rest with MNE, which is imported only then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.base.data_files import open_file, read_file
from holdfast.workloads.eeg import bdf
from holdfast.workloads.eeg.faults import DataFault

_MOST_HEADER = 4 << 20


class Source(Protocol):
    """A recording that can be read in parts."""

    rate: float
    channels: list[str]
    samples: int

    def read(self, channels: Sequence[int], start: int = 0, stop: int | None = None) -> NDArray[np.float64]: ...


def open(path: Path) -> Source:
    """Open a recording; every fault of its content is a DataFault."""
    try:
        with open_file(path):  # a pipe or a device is refused before a library waits for it
            source = _open(path)
    except MemoryError:
        raise DataFault("too large", "it claims more than there is memory") from None
    except OSError as error:
        reason = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
        raise DataFault(
            reason, f"{os.path.basename(str(error.filename or path))}: {error.strerror or error}"
        ) from error
    if source.samples < 1 or not source.channels:
        raise DataFault("too short", "it holds no samples")
    return source


def _open(path: Path) -> Source:
    suffix = path.suffix.lower()
    if suffix in (".bdf", ".edf"):
        return bdf.open(path)
    if suffix == ".set":
        from holdfast.workloads.eeg import eeglab

        return eeglab.open(path)
    return _with_mne(path)


class MneSource:
    """What MNE has read."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.rate = float(raw.info["sfreq"])
        self._picks = [i for i, kind in enumerate(raw.get_channel_types()) if kind == "eeg"]
        self.channels = [raw.ch_names[i] for i in self._picks]
        self.samples = int(raw.n_times)

    def read(self, channels: Sequence[int], start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
        picks = [self._picks[i] for i in channels]
        return np.asarray(self._raw.get_data(picks=picks, start=start, stop=stop), dtype=np.float64)


_NAMED = re.compile(r"^\s*(?:DataFile|MarkerFile)\s*=(.*)$", re.IGNORECASE | re.MULTILINE)


def _check_beside(path: Path) -> None:
    """BrainVision keeps signals and markers in files that its header names: beside it, and nowhere else."""
    text = read_file(path, _MOST_HEADER).decode("latin-1")
    for given in _NAMED.findall(text):
        name = given.strip()
        if name and (name in (".", "..") or "/" in name or "\\" in name):
            raise DataFault("unreadable", f"its header names {name[:100]!r}, which is not beside it")
        if name and (beside := path.with_name(name.replace("$b", path.stem))).exists():
            if beside.is_symlink():
                raise DataFault("unreadable", f"{beside.name} is a link")
            open_file(beside).close()


def _with_mne(path: Path) -> Source:
    try:
        import mne
    except ImportError:
        raise DataFault("unsupported", f"{path.suffix} needs mne: pip install 'holdfast[eeg]'") from None
    if path.suffix.lower() == ".vhdr":
        _check_beside(path)
    try:
        return MneSource(mne.io.read_raw(path, preload=False, verbose="error"))
    except OSError:
        raise
    except Exception as error:  # a reader of formats that anybody writes raises anything
        raise DataFault("unreadable", f"{type(error).__name__}: {error}"[:300]) from error
