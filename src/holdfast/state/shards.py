"""Snapshots of ranks that share one state out among themselves: put together, and cut for any number of ranks.

    parts_of(payload)               # {"index": 1, "count": 4, "names": [...]}, {} for a state that is whole
    whole = put_together(payloads)  # one snapshot of each part, in their order: a state as one process would have it
    cut(whole, index=0, count=3, names=names)  # what the first of three ranks holds

Parts lie along the first axis, as FSDP2 makes them: the bytes of one follow those of the part before. Everything else
in a snapshot (numbers, buffers, the optimizer's step) is the same in all ranks, and is taken from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from holdfast.state.layout import (
    META,
    Buffer,
    Spec,
    build_header,
    capacity_for,
    dump_json,
    parse_header,
    place,
    read_meta,
)

SHARED_OUT = "shared_out"
"""In the meta: which tensors are parts, and which part of how many they are."""


class PartsDiffer(ValueError):
    """These snapshots are not the parts of one state."""


def parts_of(payload: Buffer) -> dict[str, Any]:
    """Which part a snapshot is; {} if it is whole, or nothing."""
    if not len(payload):
        return {}
    found = read_meta(payload).get(SHARED_OUT)
    return found if isinstance(found, dict) else {}


def put_together(payloads: Sequence[Buffer]) -> bytearray:
    """The whole state; `payloads` has one snapshot of each part, the first part first."""
    opened = [parse_header(payload) for payload in payloads]
    by_name = [{entry.name: entry for entry in entries} for entries, _ in opened]
    meta = read_meta(payloads[0])
    names = set(meta.get(SHARED_OUT, {}).get("names", ()))
    rows = [set(each) for each in by_name]
    if any(names - each for each in rows):
        raise PartsDiffer("a part lacks tensors that another one has")
    meta[SHARED_OUT] = {"index": 0, "count": 1, "names": sorted(names)}
    specs = []
    for entry in opened[0][0]:
        shape = entry.shape
        if entry.name in names:
            shape = (sum(each[entry.name].shape[0] for each in by_name), *entry.shape[1:])
        specs.append((entry.name, entry.dtype, shape))

    def pieces(name: str) -> Iterator[memoryview]:
        for (_, start), known, payload in zip(opened, by_name, payloads, strict=True):
            entry = known[name]
            yield memoryview(payload).cast("B")[start + entry.start : start + entry.stop]
            if name not in names:
                return

    return _written(specs, meta, pieces)


def cut(whole: Buffer, *, index: int, count: int, names: Iterable[str]) -> bytearray:
    """The part that one of `count` ranks holds: of the tensors with these names, as many rows as torch gives it."""
    entries, start = parse_header(whole)
    view = memoryview(whole).cast("B")
    meta = read_meta(whole)
    names = set(names)
    meta[SHARED_OUT] = {"index": index, "count": count, "names": sorted(names)}
    spans: dict[str, tuple[int, int]] = {}
    specs = []
    for entry in entries:
        shape, spans[entry.name] = entry.shape, (entry.start, entry.stop)
        if entry.name in names:
            first, last = rows_of(entry.shape[0], index=index, count=count)
            row = (entry.stop - entry.start) // max(1, entry.shape[0])
            shape = (last - first, *entry.shape[1:])
            spans[entry.name] = (entry.start + first * row, entry.start + last * row)
        specs.append((entry.name, entry.dtype, shape))

    def pieces(name: str) -> Iterator[memoryview]:
        first, last = spans[name]
        yield view[start + first : start + last]

    return _written(specs, meta, pieces)


def rows_of(rows: int, *, index: int, count: int) -> tuple[int, int]:
    """The rows of one part: all have the same number but for the last ones, as torch.chunk has it."""
    each = -(-rows // count)
    return min(rows, index * each), min(rows, (index + 1) * each)


def _written(specs: Sequence[Spec], meta: dict[str, Any], pieces: Callable[[str], Iterator[memoryview]]) -> bytearray:
    text = dump_json(meta).encode()
    room = capacity_for(len(text))
    specs = [(name, dtype, (room,) if name == META else shape) for name, dtype, shape in specs]
    entries = place(specs)
    made = bytearray(build_header(entries))
    for entry in entries:
        if entry.name == META:
            made += text.ljust(room)
        else:
            for piece in pieces(entry.name):
                made += piece
    return made
