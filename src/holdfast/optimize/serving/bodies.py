"""Requests and answers as bytes: JSON, .npy and .npz; nothing in them is unpickled, nothing larger than it says.

arrays = read(body, "application/x-npy", inputs)       # BadBody with a status and words
write([array], names, as_npy=True)                     # (bytes, content type)
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NPY, NPZ, JSON = "application/x-npy", "application/x-npz", "application/json"
_NPY_KINDS = (NPY, "application/octet-stream", "application/npy")


class BadBody(Exception):
    """A body that cannot be used."""

    def __init__(self, status: int, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.cause = status, message, cause


def read(body: bytes, kind: str, inputs: Sequence[dict[str, Any]], most: int) -> list[NDArray[Any]]:
    """The arrays of a request, in the order of the model's inputs."""
    kind = kind.partition(";")[0].strip().lower()
    if kind in _NPY_KINDS:
        if len(inputs) > 1:
            raise BadBody(415, f"the model takes {len(inputs)} inputs", f"send them as {NPZ} or JSON")
        return [_npy(body)]
    if kind == NPZ:
        return _npz(body, inputs, most)
    if kind in (JSON, ""):
        return _json(body, inputs)
    raise BadBody(415, f"a body of the type {kind[:100]} is not taken", f"send {JSON}, {NPY} or {NPZ}")


def _npy(data: bytes) -> NDArray[Any]:
    """One array. The header's claim is compared with what is there before any memory is taken for it."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = reader(file, max_header_size=4096)
    except Exception as error:  # numpy reads the header with Python's own tokenizer, which raises what it likes
        raise BadBody(400, "this is no .npy", str(error)[:200]) from None
    if dtype.hasobject or dtype.kind not in "fiub":
        raise BadBody(415, f"an array of {dtype} is not taken", "numbers are")
    if any(each < 0 for each in shape) or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise BadBody(
            400,
            "this .npy is cut or padded",
            f"its header says {shape} {dtype}, {len(data) - file.tell()} bytes follow",
        )
    found = np.frombuffer(data, dtype=dtype, offset=file.tell())
    return found.reshape(shape, order="F" if fortran else "C")


def _npz(data: bytes, inputs: Sequence[dict[str, Any]], most: int) -> list[NDArray[Any]]:
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
                    found.append(_npy(file.read(entry.file_size + 1)))
            return found
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise BadBody(400, "this is no .npz", str(error)[:200]) from None


def _json(data: bytes, inputs: Sequence[dict[str, Any]]) -> list[NDArray[Any]]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadBody(400, "this is no JSON", str(error)[:200]) from None
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


def write(outputs: Any, names: Sequence[str], *, as_npy: bool, rows: bool) -> tuple[bytes, str]:
    """Answers as the client sent its question: arrays for arrays, JSON for JSON; rows of boxes are always JSON."""
    if rows:
        return json.dumps({"rows": [each.tolist() for each in outputs]}).encode() + b"\n", JSON
    if not as_npy:
        data = {name: each.tolist() for name, each in zip(names, outputs, strict=True)}
        return json.dumps(data, allow_nan=False).encode() + b"\n", JSON
    file = io.BytesIO()
    if len(outputs) == 1:
        np.save(file, np.ascontiguousarray(outputs[0]))
        return file.getvalue(), NPY
    np.savez(file, **dict(zip(names, outputs, strict=True)))
    return file.getvalue(), NPZ
