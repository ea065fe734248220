"""BDF and EDF files: read block by block without loading them, and written.

    recording = bdf.open(path)                            # DataFault, with words, if it is not what its header says
    recording.rate, recording.channels, recording.samples
    recording.read([0, 5], 100, 300)                      # (2, 200) float64 volts
    bdf.write(path, signals, rate=100, channels=names)    # 24 bits, 31 nV a step

Both formats hold records of a second or so, in each the samples of one channel after the other; 16 bits in EDF,
24 in BDF. A header is 256 bytes of text and 256 more a channel.
"""

from __future__ import annotations

import builtins
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base import files
from holdfast.workloads.eeg.faults import DataFault

_VOLTS = {"uv": 1e-6, "µv": 1e-6, "mv": 1e-3, "nv": 1e-9, "v": 1.0, "": 1e-6}
_NOT_SIGNALS = ("edf annotations", "bdf annotations", "status", "trigger")
_REACH = 262144
"""Microvolts that a 24-bit file of ours reaches on both sides of zero: 31 nV a step."""


class BdfRecording:
    """A file whose header was understood and whose size is as it says."""

    def __init__(
        self,
        path: Path,
        *,
        rate: float,
        channels: list[str],
        samples: int,
        record: tuple[int, int, int],
        places: NDArray[np.int64],
        scale: NDArray[np.float64],
        shift: NDArray[np.float64],
        start: int,
    ) -> None:
        self.path, self.rate, self.channels, self.samples = path, rate, channels, samples
        self._records, self._record_bytes, self._width = record
        self._each = samples // max(1, self._records)
        self._places, self._scale, self._shift, self._start = places, scale, shift, start

    def read(self, channels: Sequence[int], start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
        """Some channels from sample `start` up to `stop`, in volts."""
        channels = list(channels)
        stop = self.samples if stop is None else min(stop, self.samples)
        first, last = start // self._each, -(-stop // self._each)
        raw = np.memmap(
            self.path,
            dtype=np.uint8,
            mode="r",
            offset=self._start + first * self._record_bytes,
            shape=(last - first, self._record_bytes),
        )
        wide = self._each * self._width
        out = np.empty((len(channels), stop - start))
        row = 0
        while row < len(channels):
            count = self._together(channels, row, wide)
            at = int(self._places[channels[row]])
            values = _integers(raw[:, at : at + count * wide], count, self._width)
            np.multiply(
                values[:, start - first * self._each :][:, : stop - start],
                self._scale[channels[row : row + count], None],
                out=out[row : row + count],
            )
            out[row : row + count] += self._shift[channels[row : row + count], None]
            row += count
        return out

    def _together(self, channels: Sequence[int], row: int, wide: int) -> int:
        """How many of the channels from here on stand side by side in the file."""
        places = self._places[channels[row:]]
        apart = np.flatnonzero(np.diff(places) != wide)
        return int(apart[0]) + 1 if len(apart) else len(places)


def open(path: str | os.PathLike[str]) -> BdfRecording:
    """Read the header and compare it with the file."""
    path = Path(path)
    with files.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(256)
        if len(head) < 256:
            raise DataFault("truncated", f"{size} bytes are less than a header")
        width = 3 if head[:8] == b"\xffBIOSEMI" else 2
        if width == 2 and head[:8].strip() != b"0":
            raise DataFault("unreadable", "it does not begin like an EDF or BDF file")
        count = _whole(head[252:256], "number of channels")
        if not 0 < count <= 4096:
            raise DataFault("unreadable", f"the header says {count} channels")
        more = file.read(256 * count)
    if len(more) < 256 * count:
        raise DataFault("truncated", "the file ends inside its header")
    fields = _fields(more, count)
    start, records = _whole(head[184:192], "size of the header"), _whole(head[236:244], "number of records")
    seconds = _real(head[244:252], "duration of a record")
    each = [_whole(text, "samples of a record") for text in fields[8]]
    record_bytes = sum(each) * width
    if start < 256 * (count + 1) or record_bytes <= 0 or seconds <= 0 or min(each) < 0:
        raise DataFault("unreadable", "the header contradicts itself")
    there = (size - start) // record_bytes
    if records < 0:  # a recorder that was switched off before it could write the number
        records = there
    if there < records:
        held = max(0.0, (size - start) / record_bytes)
        raise DataFault("truncated", f"the header promises {records} records, the file holds {held:.1f}")
    return _recording(path, fields, each, (records, record_bytes, width), seconds, start)


def _recording(
    path: Path,
    fields: list[list[bytes]],
    each: list[int],
    record: tuple[int, int, int],
    seconds: float,
    start: int,
) -> BdfRecording:
    labels = [text.decode("latin-1").strip() for text in fields[0]]
    signals = [i for i, label in enumerate(labels) if label.lower() not in _NOT_SIGNALS and each[i] > 0]
    if not signals:
        raise DataFault("unreadable", "the file holds no signals")
    usual = Counter(each[i] for i in signals).most_common(1)[0][0]
    kept = [i for i in signals if each[i] == usual]  # channels at another rate (a microphone) are not EEG
    places = np.cumsum([0, *each])[kept] * record[2]
    low, high = (np.array([_real(fields[k][i], "physical range") for i in kept]) for k in (3, 4))
    bottom, top = (np.array([_real(fields[k][i], "digital range") for i in kept]) for k in (5, 6))
    if np.any(top == bottom):
        raise DataFault("unreadable", "a channel has no digital range")
    volts = np.array([_VOLTS.get(fields[2][i].decode("latin-1").strip().lower(), 1.0) for i in kept])
    gain = (high - low) / (top - bottom)
    return BdfRecording(
        path,
        rate=usual / seconds,
        channels=[labels[i] for i in kept],
        samples=record[0] * usual,
        record=record,
        places=places,
        scale=gain * volts,
        shift=(low - bottom * gain) * volts,
        start=start,
    )


def _fields(text: bytes, count: int) -> list[list[bytes]]:
    sizes, at, fields = (16, 80, 8, 8, 8, 8, 8, 80, 8, 32), 0, []
    for size in sizes:
        fields.append([text[at + i * size : at + (i + 1) * size] for i in range(count)])
        at += size * count
    return fields


def _whole(text: bytes, what: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise DataFault("unreadable", f"{what} in the header is {text!r}") from None


def _real(text: bytes, what: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        raise DataFault("unreadable", f"{what} in the header is {text!r}") from None
    if not abs(value) < 1e12:
        raise DataFault("unreadable", f"{what} in the header is {value}")
    return value


def _integers(raw: NDArray[np.uint8], count: int, width: int) -> NDArray[np.int32] | NDArray[np.int16]:
    """Little-endian integers of two or three bytes, a row for each channel, the records one after the other."""
    records, each = raw.shape[0], raw.shape[1] // (count * width)
    if width == 2:
        short = np.ascontiguousarray(raw).view("<i2").reshape(records, count, each)
        return np.ascontiguousarray(short.transpose(1, 0, 2)).reshape(count, -1)
    wide = np.zeros((count, records, each, 4), np.uint8)
    wide[..., 1:] = raw.reshape(records, count, each, 3).transpose(1, 0, 2, 3)
    values: NDArray[np.int32] = wide.view("<i4").reshape(count, -1)
    values >>= 8  # the shift brings the sign down
    return values


# Writing ----------------------------------------------------------------------------------------------------


def write(
    path: str | os.PathLike[str],
    signals: NDArray[np.floating[Any]],
    *,
    rate: int,
    channels: Sequence[str],
    about: str = "",
) -> None:
    """Volts as a BDF file in records of one second; a last one that is not full is filled up with its last value."""
    count, samples = signals.shape
    records = -(-samples // rate)
    head = [b"\xffBIOSEMI", about.encode("ascii", "replace")[:80].ljust(80), b"holdfast".ljust(80)]
    head += [b"01.01.25", b"00.00.00", _text(256 * (count + 1), 8), b"24BIT".ljust(44)]
    head += [_text(records, 8), _text(1, 8), _text(count, 4)]
    for values, size in (
        (list(channels), 16),
        (["simulated"] * count, 80),
        (["uV"] * count, 8),
        ([-_REACH] * count, 8),
        ([_REACH] * count, 8),
        ([-8388608] * count, 8),
        ([8388607] * count, 8),
        (["HP:DC"] * count, 80),
        ([rate] * count, 8),
        ([""] * count, 32),
    ):
        head += [_text(value, size) for value in values]
    gain = (8388607 + 8388608) / (2 * _REACH)
    digital = np.empty((records, count, rate), "<i4")
    for row in range(count):
        whole = np.empty(records * rate)
        whole[:samples], whole[samples:] = signals[row], signals[row, -1]
        whole *= 1e6 * gain
        whole -= 0.5
        digital[:, row] = np.clip(np.rint(whole, out=whole), -8388608, 8388607).reshape(records, rate)
    body = digital.view(np.uint8).reshape(records, count, rate, 4)[..., :3]
    with builtins.open(path, "wb") as file:
        file.write(b"".join(head))
        file.write(np.ascontiguousarray(body).data)


def _text(value: object, size: int) -> bytes:
    return str(value).encode("ascii", "replace")[:size].ljust(size)
