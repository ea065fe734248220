"""EEGLAB's .set files: read with scipy, and written as the Healthy Brain Network has them, in one file.

source = eeglab.open(path)                            # DataFault, with words, if it cannot be read
eeglab.write(path, signals, rate=500, channels=names, events=[(1.0, "left_target", "8", "n/a")])
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base import files
from holdfast.workloads.eeg import matlab
from holdfast.workloads.eeg.faults import DataFault


class EeglabSource:
    """Signals in microvolts, channels by samples; in memory, or mapped where they have a file of their own."""

    def __init__(self, data: NDArray[Any], rate: float, channels: list[str]) -> None:
        self._data = data
        self.rate, self.channels = rate, channels
        self.samples = int(data.shape[1])

    def read(self, channels: Sequence[int], start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
        block = np.empty((len(channels), (self.samples if stop is None else min(stop, self.samples)) - start))
        for row, channel in enumerate(channels):
            np.multiply(self._data[channel, start:stop], 1e-6, out=block[row])
        return block


def open(path: str | os.PathLike[str]) -> EeglabSource:
    """Read a .set file; signals in an .fdt file beside it are mapped."""
    path = Path(path)
    fields = _load(path)
    rate, count, points = (_number(fields.get(name), name) for name in ("srate", "nbchan", "pnts"))
    trials = _number(fields.get("trials", 1), "trials")
    if trials > 1:
        raise DataFault("unsupported", "it holds epochs, not a continuous recording")
    data = fields.get("data")
    shape = (int(count), int(points))
    if not 0 < rate < 1e6 or min(shape) < 1:
        raise DataFault("unreadable", f"its header says {shape[0]} channels and {shape[1]} samples at {rate:g} Hz")
    if isinstance(data, str):
        signals = _beside(path, data, shape)
    else:
        signals = np.atleast_2d(np.asarray(data))
        if signals.shape != shape or signals.dtype.kind != "f":
            raise DataFault("truncated", f"its header says {shape}, its data are {signals.dtype} {signals.shape}")
    return EeglabSource(signals, rate, _names(fields.get("chanlocs"), shape[0]))


def events(path: str | os.PathLike[str], rate: float) -> list[tuple[float, float, str]]:
    """Onset in seconds, duration or NaN, and type of every event that the file itself holds."""
    held = _load(Path(path)).get("event")
    if isinstance(held, dict):  # MATLAB 7.3: a column for each field
        count = len(np.atleast_1d(held.get("latency", [])))
        rows = [{name: np.atleast_1d(held[name])[i] for name in held} for i in range(count)]
    else:
        structs = np.atleast_1d(np.asarray(held if held is not None else [], dtype=object))
        rows = [{name: getattr(each, name, None) for name in ("latency", "type", "duration")} for each in structs]
    found = []
    for row in rows:
        latency, duration = (_float(row.get(name)) for name in ("latency", "duration"))
        found.append(((latency - 1) / rate, duration / rate if duration > 0 else float("nan"), str(row.get("type"))))
    return found


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _load(path: Path) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise DataFault("unsupported", ".set needs scipy: pip install 'holdfast[eeg]'") from None
    matlab.check_size(path)
    with files.open_regular(path) as file:
        head = file.read(128)
        if len(head) < 128:
            raise DataFault("truncated", f"{len(head)} bytes are less than a header")
        if head.startswith(b"MATLAB 7.3"):
            return _load_hdf(path)
        file.seek(0)
        try:
            stored = loadmat(file, squeeze_me=True, struct_as_record=False, chars_as_strings=True)
        except Exception as error:  # scipy raises many things on bytes that are not what they should be
            raise DataFault(*_reading(path, error)) from error
    whole = stored.get("EEG")
    if whole is not None and hasattr(whole, "_fieldnames"):
        return {name: getattr(whole, name) for name in whole._fieldnames}
    return dict(stored)  # written with `pop_saveset(..., 'version', ...)`: the fields stand at the top


def _reading(path: Path, error: Exception) -> tuple[str, str]:
    if isinstance(error, MemoryError):
        return "too large", "it claims more than there is memory"
    text = f"{type(error).__name__}: {error}"[:200]
    cut = isinstance(error, (EOFError,)) or any(word in text for word in ("read", "end of", "truncated", "incomplete"))
    return ("truncated" if cut else "unreadable"), text


def _load_hdf(path: Path) -> dict[str, Any]:
    """Version 7.3 is HDF5, which MNE reads through pymatreader."""
    try:
        from pymatreader import read_mat
    except ImportError:
        raise DataFault("unsupported", "a MATLAB 7.3 file needs pymatreader: pip install 'holdfast[eeg]'") from None
    try:
        stored = read_mat(str(path))
    except Exception as error:
        raise DataFault("unreadable", f"{type(error).__name__}: {error}"[:200]) from error
    whole = stored.get("EEG", stored)
    return dict(whole)


def _beside(path: Path, name: str, shape: tuple[int, int]) -> NDArray[Any]:
    """An .fdt file: float32, one sample of all channels after the other. Only a name is taken from the header."""
    beside = path.with_name(Path(name.replace("\\", "/")).name)
    if not beside.exists():  # EEGLAB keeps the old name inside when files are renamed
        beside = path.with_suffix(".fdt")
    with files.open_regular(beside) as file:
        there = os.fstat(file.fileno()).st_size
    wanted = 4 * shape[0] * shape[1]
    if there < wanted:
        raise DataFault("truncated", f"{beside.name} has {there} bytes, its header promises {wanted}")
    return np.memmap(beside, dtype="<f4", mode="r", shape=(shape[1], shape[0])).T


def _names(places: Any, count: int) -> list[str]:
    if isinstance(places, dict):
        labels = places.get("labels", [])
    else:
        labels = [getattr(each, "labels", "") for each in np.atleast_1d(np.asarray(places, dtype=object))]
    names = [str(label).strip() for label in np.atleast_1d(np.asarray(labels, dtype=object))]
    if len(names) != count or not all(names):
        return [f"E{i + 1}" for i in range(count)]
    return names


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataFault("unreadable", f"its field {name} is {str(value)[:40]!r}") from None


# Writing ----------------------------------------------------------------------------------------------------


def write(
    path: str | os.PathLike[str],
    signals: NDArray[np.floating[Any]],
    *,
    rate: int,
    channels: Sequence[str],
    events: Sequence[tuple[float, str, str, str]] = (),
) -> None:
    """Volts as a .set file with its signals inside."""
    try:
        from scipy.io import savemat
    except ImportError:
        from holdfast.base.errors import UserError

        raise UserError(".set files need scipy", hints=["pip install 'holdfast[eeg]'"]) from None
    count, samples = signals.shape
    places = np.zeros(count, dtype=[("labels", object), ("type", object)])
    places["labels"], places["type"] = list(channels), "EEG"
    happened = np.zeros(len(events), dtype=[("latency", object), ("type", object), ("duration", object)])
    for row, (onset, value, _, _) in enumerate(events):
        happened[row] = (onset * rate + 1, value, 0.0)
    fields = {
        "setname": "SIMULATED",
        "nbchan": float(count),
        "trials": 1.0,
        "pnts": float(samples),
        "srate": float(rate),
        "xmin": 0.0,
        "xmax": (samples - 1) / rate,
        "ref": "Cz",
        "chanlocs": places,
        "event": happened,
        "data": (np.asarray(signals) * np.float32(1e6)).astype(np.float32),
        "icawinv": np.empty(0),
        "icasphere": np.empty(0),
        "icaweights": np.empty(0),
        "epoch": np.empty(0),
    }
    savemat(path, {"EEG": fields}, appendmat=False, format="5", do_compression=False)
