"""The rows in the offline files of a W&B run, read without W&B's private modules.

    for row in history(path): row["_step"], row["loss"]

A `.wandb` file is a log in blocks of 32 KiB, as LevelDB has them: a header of seven bytes, then records of checksum,
length and kind. A record is whole, or comes in a first, some middle and a last piece. Each is a protocol buffer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.files import open_regular

BLOCK = 32768
_HEADER = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LONGEST = 64 << 20


def records(path: Path) -> Iterator[bytes]:
    """Whole records; a file that a killed process left ends where it is torn."""
    try:
        file = open_regular(path)
    except OSError:
        return
    with file:
        if file.read(_HEADER)[:4] != b":W&B":
            return
        whole = b""
        while (piece := _piece(file)) is not None:
            kind, data = piece
            whole = data if kind in (_FULL, _FIRST) else whole + data
            if len(whole) > _LONGEST:
                return
            if kind in (_FULL, _LAST):
                yield whole


def _piece(file: BinaryIO) -> tuple[int, bytes] | None:
    left = BLOCK - file.tell() % BLOCK
    if left < _HEADER:  # the rest of a block that is too short for a piece is empty
        file.seek(left, 1)
    head = file.read(_HEADER)
    if len(head) < _HEADER:
        return None
    _, length, kind = struct.unpack("<IHB", head)
    data = file.read(length)
    return (kind, data) if len(data) == length and _FULL <= kind <= _LAST else None


def history(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file. Nothing where W&B has another protocol than we know."""
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError:
        return
    for data in records(path):
        record = Record()
        try:
            record.ParseFromString(data)
            if record.HasField("history"):
                items = record.history.item
                yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        except Exception:  # protobuf has errors of its own for each of its implementations
            return
