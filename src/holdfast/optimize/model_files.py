"""Files of ONNX and OpenVINO that may come from anywhere: what would lead out of a bundle is refused.

    check_onnx(Path("model.onnx"))           # ValueError: weights in other files, operators of other libraries
    check_openvino(Path("model.xml"))        # ValueError: entities, paths, extensions, weights beyond model.bin

Our own bundles keep a model in one file, or in two of one name, so nothing that is needed is refused. Only the frame of
a file is looked at here; its engine reads it whole, with checks of its own. Neither package is needed for this.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})
"""Operators that ONNX Runtime has itself."""
_INSIDE = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""Where messages of ONNX's own format lie in each other, by the number of their field."""
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_DOMAIN = {"node": 7, "function": 10}
_OPSET = re.compile(r"opset\d{1,3}")
_LEADS_OUT = re.compile(r"^[/\\]|^[A-Za-z]:[/\\]|(^|[/\\])\.\.([/\\]|$)|://")
MOST_XML = 256 << 20


def check_onnx(path: Path) -> None:
    """All weights are in the file, and all operators are the engine's own."""
    with open(path, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ValueError(f"{path.name} is empty") from None
    with data:
        used: set[str] = set()
        own: set[str] = set()
        open_parts = [("model", 0, len(data))]
        while open_parts:
            kind, begin, end = open_parts.pop()
            for number, start, stop in _fields(data, begin, end):
                if kind == "tensor" and number in (_EXTERNAL_DATA, _DATA_LOCATION) and (stop < 0 or stop > start):
                    if number == _DATA_LOCATION and start == 0:
                        continue
                    raise ValueError(f"{path.name} keeps weights in other files, which a bundle does not")
                if number == _DOMAIN.get(kind):
                    (used if kind == "node" else own).add(bytes(data[start:stop]).decode("utf-8", "replace"))
                inside = _INSIDE[kind].get(number)
                if inside is not None and stop >= 0:
                    open_parts.append((inside, start, stop))
        foreign = sorted(used - own - DOMAINS)
        if foreign:
            raise ValueError(f"{path.name} needs operators of another library: {foreign[0][:100]}")


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each field of a message; for a number its value and -1."""
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at, end)
            yield number, value, -1
            continue
        if wire == 2:
            size, at = _varint(data, at, end)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("this is no ONNX file")
        if at + size > end:
            raise ValueError("this ONNX file is cut")
        if wire == 2:
            yield number, at, at + size
        at += size


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    found = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return found, at
    raise ValueError("this is no ONNX file")


def check_openvino(path: Path) -> None:
    """Layers of OpenVINO's own, and weights in the file beside it."""
    if path.stat().st_size > MOST_XML:
        raise ValueError(f"{path.name} is larger than {MOST_XML} bytes")
    text = path.read_bytes()
    if b"<!" in text.replace(b"<!--", b"") or text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"{path.name} defines entities, which a model does not")
    weights = path.with_suffix(".bin")
    size = weights.stat().st_size if weights.exists() else 0
    try:
        for element in ElementTree.fromstring(text).iter():
            wrong = _wrong(element, size)
            if wrong:
                raise ValueError(f"{path.name} {wrong}")
    except ElementTree.ParseError as error:
        raise ValueError(f"{path.name} is not XML: {error}") from None


def _wrong(element: ElementTree.Element, size: int) -> str:
    if element.tag == "layer" and not _OPSET.fullmatch(element.get("version", "opset1")):
        return f"needs an extension: {element.get('type', '')[:100]} of {element.get('version', '')[:100]}"
    if "weights_path" in element.tag or any("path" in name for name in element.attrib):
        return "names a path"
    if element.tag != "data":
        return ""
    if any(_LEADS_OUT.search(value) for value in element.attrib.values()):
        return "names a path"
    where = [element.get(name, "0") for name in ("offset", "size")]
    if not all(each.isascii() and each.isdigit() for each in where) or sum(map(int, where)) > size:
        return "has weights beyond the end of its file"
    return ""
