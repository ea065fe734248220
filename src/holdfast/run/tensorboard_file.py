"""TensorBoard's event files, written without TensorBoard, TensorFlow or torch.

    events = EventFile(run / "tb")
    events.scalars(step=30, time=1794732394.9, values={"valid_loss": 0.0086})
    events.text(step=12, time=…, tag="faults", text="F002 the worker crashed")
    events.close()

A file is a row of records (length, checksum, data, checksum), each data a protocol buffer `Event`. A step that comes
again after a restore is not written twice; where steps were taken back because a device had computed them wrongly, the
file says so with a session start at that step, and TensorBoard drops what it had after it. So no curve goes back.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import struct
import time as clock
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from holdfast.base.folders import Folder

_numbers = itertools.count()


class EventFile:
    """One file in a folder of event files; made when the first record comes. Never raises for a full disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem: OSError | None = None
        """Why records are missing."""
        self._file: FileIO | None = None
        self._last: dict[str, int] = {}
        """The last step that was written of each tag."""

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Numbers of one step; those of a step that was written already are left out."""
        fresh = {tag: value for tag, value in values.items() if step > self._last.get(tag, -1)}
        if not fresh:
            return
        self._last.update(dict.fromkeys(fresh, step))
        body = b"".join(
            _field(1, _field(1, tag.encode("utf-8", "replace")) + _float(2, value)) for tag, value in fresh.items()
        )
        self._write(_event(time, step, _field(5, body)))

    def text(self, step: int, time: float, tag: str, text: str) -> None:
        """Words at a step: a fault, a move."""
        words = text.encode("utf-8", "replace")
        tensor = _varint_field(1, 7) + _field(2, _field(2, _varint_field(1, 1))) + _field(8, words)
        metadata = _field(1, _field(1, b"text"))
        value = _field(1, tag.encode("utf-8", "replace")) + _field(9, metadata) + _field(8, tensor)
        self._write(_event(time, step, _field(5, _field(1, value))))

    def taken_back(self, step: int, time: float) -> None:
        """What comes after this step does not count any more: it is computed again."""
        self._last = {tag: min(last, step) for tag, last in self._last.items()}
        start = _varint_field(1, 1)  # SessionLog.START: readers drop everything they had from this step on
        self._write(_event(time, step + 1, _field(7, start)))

    def known(self, tag: str, step: int) -> None:
        """An earlier file of this folder has this tag up to this step."""
        self._last[tag] = max(step, self._last.get(tag, -1))

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _write(self, event: bytes) -> None:
        """Whole records only: what a disk took in part ends a file, and the next record begins another."""
        try:
            self._put(self._file or self._open(), _record(event))
        except OSError as error:
            self.problem = error
            self.close()

    @staticmethod
    def _put(file: FileIO, record: bytes) -> None:
        if file.write(record) != len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self) -> FileIO:
        now = clock.time()
        # TensorBoard reads a folder in the order of its names: the tenth file of a second comes after the ninth.
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06d}"
        with Folder.at(self.folder, inner=1, make=True) as folder, folder.create(name) as file:
            self._file = FileIO(os.dup(file.fileno()), "wb")
        self._put(self._file, _record(_event(now, 0, _field(3, b"brain.Event:2"))))
        return self._file


# The format -----------------------------------------------------------------------------------------------


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _event(time: float, step: int, what: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", time) + _varint_field(2, step) + what


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _float(number: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(number << 3 | 5) + packed


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _table() -> list[int]:
    """Of CRC-32C, the polynomial of Castagnoli."""
    rows = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ 0x82F63B78 if byte & 1 else byte >> 1
        rows.append(byte)
    return rows


_TABLE = _table()


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
