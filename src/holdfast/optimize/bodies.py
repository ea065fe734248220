"""Requests and answers as bytes: JSON, .npy and .npz; nothing in them is unpickled, nothing larger than it says.

arrays = read(body, "application/x-npy", inputs, most)   # BadBody with a status and words
write([array], names, "application/x-npy", rows=False)   # (bytes, content type)
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NPY, NPZ, JSON = "application/x-npy", "application/x-npz", "application/json"
_NPY_KINDS = (NPY, "application/octet-stream", "application/npy")


class BadBody(Exception):
    """A body that cannot be used."""

    def __init__(self, status: int, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.cause = status, message, cause


def read(body: bytes | bytearray, kind: str, inputs: Sequence[dict[str, Any]], most: int) -> list[NDArray[Any]]:
    """The arrays of a request, in the order of the model's inputs."""
    kind = _plain(kind)
    if kind in _NPY_KINDS:
        return npys(body, len(inputs))
    if kind == NPZ:
        return _npz(body, inputs, most)
    if kind in (JSON, ""):
        return _json(body, inputs)
    raise BadBody(415, f"a body of the type {kind[:100]} is not accepted", f"send {JSON}, {NPY} or {NPZ}")


def is_npy(kind: str) -> bool:
    """Whether an answer to a question of this kind is written as .npy."""
    return _plain(kind) not in (JSON, "", NPZ)


def _plain(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    bytes: int


_headers: dict[bytes, _Header] = {}
"""Headers that were read before: every request of a client has the same ones."""
_MOST_HEADERS, _LONGEST = 256, 4096


def npys(data: bytes | bytearray, count: int) -> list[NDArray[Any]]:
    """So many arrays, one after the other, as repeated `np.save` leaves them in a file."""
    found, at = [], 0
    for _ in range(count):
        header, start = _header(data, at)
        at = start + header.bytes
        if at > len(data):
            raise _cut(header, len(data) - start)
        flat = np.frombuffer(data, header.dtype, header.bytes // header.dtype.itemsize, start)
        found.append(flat.reshape(header.shape, order="F" if header.fortran else "C"))
    if at != len(data):
        raise BadBody(
            400, "more follows than the model takes", f"{count} .npy are taken, {len(data) - at} bytes follow"
        )
    return found


def _cut(header: _Header, there: int) -> BadBody:
    told = f"its header says {header.shape} {header.dtype}, {there} bytes follow"
    return BadBody(400, "this .npy is cut or padded", told)


def _header(data: bytes | bytearray, at: int) -> tuple[_Header, int]:
    """What an array claims to be, and where its numbers begin. No memory is taken for what it claims."""
    length = int.from_bytes(data[at + 8 : at + 10], "little") if data[at + 6 : at + 7] == b"\x01" else -1
    if 0 <= length <= _LONGEST:
        known = _headers.get(bytes(data[at : at + 10 + length]))
        if known is not None:
            return known, at + 10 + length
    file = io.BytesIO(data)
    file.seek(at)
    try:
        version = np.lib.format.read_magic(file)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = reader(file, max_header_size=_LONGEST)
    except Exception as error:  # numpy reads the header with Python's own tokenizer, which raises what it likes
        raise BadBody(400, "this is no .npy", str(error)[:200]) from None
    if dtype.hasobject or dtype.kind not in "fiub" or not dtype.itemsize:
        raise BadBody(415, f"an array of {dtype} is not accepted", "numbers are")
    header = _Header(shape, fortran, dtype, math.prod(shape) * dtype.itemsize)
    if any(each < 0 for each in shape):
        raise _cut(header, len(data) - file.tell())
    if length >= 0:
        if len(_headers) >= _MOST_HEADERS:
            _headers.clear()
        _headers[bytes(data[at : file.tell()])] = header
    return header, file.tell()


def _npz(data: bytes | bytearray, inputs: Sequence[dict[str, Any]], most: int) -> list[NDArray[Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > 64 or sum(each.file_size for each in entries) > most:
                raise BadBody(413, "what is in this .npz is too large")
            names = {each.filename.removesuffix(".npy"): each for each in entries}
            missing = [each["name"] for each in inputs if each["name"] not in names]
            if missing:
                raise BadBody(422, f"`{missing[0]}` is missing", f"there are {', '.join(sorted(names))[:200]}")
            found = []
            for each in inputs:
                entry = names[each["name"]]
                with archive.open(entry) as file:
                    found += npys(file.read(entry.file_size + 1), 1)
            return found
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise BadBody(400, "this is no .npz", str(error)[:200]) from None


def _json(data: bytes | bytearray, inputs: Sequence[dict[str, Any]]) -> list[NDArray[Any]]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadBody(400, "this is not JSON", str(error)[:200]) from None
    names = [each["name"] for each in inputs]
    if isinstance(said, dict) and "inputs" in said and "inputs" not in names:
        said = said["inputs"]
    if isinstance(said, dict):
        missing = [name for name in names if name not in said]
        if missing:
            raise BadBody(422, f"`{missing[0]}` is missing", f"the model takes {', '.join(names)}")
        lists = [said[name] for name in names]
    elif isinstance(said, list) and len(names) == 1:
        lists = [said]
    else:
        raise BadBody(422, "the inputs are missing", f'send {{"{names[0]}": [...]}}')
    found = []
    for name, each in zip(names, lists, strict=True):
        try:
            array = np.array(each)
        except (ValueError, TypeError, OverflowError):
            raise BadBody(422, f"`{name}` is no array", "its rows are of different lengths") from None
        if array.dtype.kind not in "fiub":
            raise BadBody(422, f"`{name}` does not hold numbers alone")
        found.append(array)
    return found


def write(outputs: Any, names: Sequence[str], kind: str, *, rows: bool) -> tuple[bytes, str]:
    """Answers as the client sent its question: arrays for arrays, JSON for JSON; rows of boxes are always JSON."""
    if rows:
        return json.dumps({"rows": [each.tolist() for each in outputs]}).encode() + b"\n", JSON
    kind = _plain(kind)
    if kind in (JSON, ""):
        data = {name: each.tolist() for name, each in zip(names, outputs, strict=True)}
        return json.dumps(data, allow_nan=False).encode() + b"\n", JSON
    if kind != NPZ:
        return b"".join(_saved(each) for each in outputs), NPY
    file = io.BytesIO()
    np.savez(file, **dict(zip(names, outputs, strict=True)))
    return file.getvalue(), NPZ


_saved_headers: dict[tuple[tuple[int, ...], str], bytes] = {}


def _saved(array: NDArray[Any]) -> bytes:
    """What np.save writes."""
    key = (array.shape, array.dtype.str)
    header = _saved_headers.get(key)
    if header is None:
        file = io.BytesIO()
        about = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(file, about)
        header = file.getvalue()
        if len(_saved_headers) >= _MOST_HEADERS:
            _saved_headers.clear()
        _saved_headers[key] = header
    return header + array.tobytes()
