"""How large a MATLAB file becomes when it is read, found out before it is: without that, 4 MB may fill any memory.

check_size(path)            # DataFault "too large", or "unreadable" for what leads out of the file

Version 5 keeps variables as compressed parts: each is inflated here a piece at a time and forgotten. Version 7.3 is
HDF5, which says the size of everything; its links to other files are refused.
"""

from __future__ import annotations

import importlib
import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.data_files import open_file, room_for
from holdfast.base.human import size
from holdfast.workloads.eeg.faults import DataFault

_HEADER, _COMPRESSED = 128, 15
_PIECE = 1 << 20
_DEEPEST = 32


def check_size(path: Path) -> None:
    """Nothing, or a DataFault."""
    with open_file(path) as file:
        packed = os.fstat(file.fileno()).st_size
        most = room_for(packed)
        head = file.read(_HEADER)
        if head.startswith(b"MATLAB 7.3"):
            _check_hdf(path, packed, most)
        elif len(head) == _HEADER:
            order = "<" if head[126:128] == b"IM" else ">"
            _check_parts(file, order, packed, most)


def _check_parts(file: BinaryIO, order: str, packed: int, most: int) -> None:
    """What the compressed parts become, together. Parts that are not compressed are no larger than the file."""
    whole = 0
    while len(tag := file.read(8)) == 8:
        kind, length = struct.unpack(f"{order}II", tag)
        begin = file.tell()
        if kind == _COMPRESSED:
            whole += _inflated(file, min(length, packed - begin), most - whole)
            if whole > most:
                raise _too_large(packed, whole)
        file.seek(begin + length)


def _inflated(file: BinaryIO, length: int, most: int) -> int:
    """Bytes that a part becomes; no more than just above `most` are made."""
    machine, count, rest = zlib.decompressobj(), 0, b""
    while count <= most and not machine.eof:
        if not rest:
            rest = file.read(min(_PIECE, length))
            length -= len(rest)
            if not rest:
                break
        try:
            count += len(machine.decompress(rest, _PIECE))
        except zlib.error:  # the reader says what is wrong with it
            break
        rest = machine.unconsumed_tail
    return count


def _check_hdf(path: Path, packed: int, most: int) -> None:
    try:
        h5py: Any = importlib.import_module("h5py")
    except ImportError:  # the reader needs it too, and says so
        return
    try:
        with h5py.File(path, "r") as file:
            whole = _size_below(file, h5py, set(), 0)
    except DataFault:
        raise
    except Exception as error:  # a library that reads anything raises anything
        raise DataFault("unreadable", f"{type(error).__name__}: {error}"[:200]) from error
    if whole > most:
        raise _too_large(packed, whole)


def _size_below(group: Any, h5py: Any, been: set[int], deep: int) -> int:
    """Bytes of everything below a group, once, as they will be in memory."""
    if deep > _DEEPEST:
        raise DataFault("unreadable", "it is nested too deeply")
    whole = 0
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise DataFault("unreadable", f"{name!r} in it is a link to another file, {str(link.filename)[:80]!r}")
        item = group.get(name)
        if item is None or (address := h5py.h5o.get_info(item.id).addr) in been:
            continue
        been.add(address)
        if isinstance(item, h5py.Group):
            whole += _size_below(item, h5py, been, deep + 1)
        elif isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise DataFault("unreadable", f"{name!r} in it keeps its values in another file")
            whole += int(item.size or 0) * item.dtype.itemsize
    return whole


def _too_large(packed: int, whole: int) -> DataFault:
    return DataFault("too large", f"its {size(packed)} unpack to {size(whole)} or more: that is no recording")
