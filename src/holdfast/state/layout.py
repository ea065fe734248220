"""Where each tensor lies in a snapshot: a safetensors header, built and read without torch.

    layout = plan([("model.weight", "F32", (4, 3))], meta_capacity=16384)
    slot[: layout.data_start] = layout.header                  # then the tensors, entry by entry
    slot[layout.span("holdfast.meta")] = layout.pack_meta(meta)

    entries, data_start = parse_header(slot)                   # any reader, any safetensors file
    header, ranges = weights_only(slot)                        # the keeper: a file with the modules alone
    weights_sha256(slot)                                       # the same for a snapshot and for that file

The bytes are a valid safetensors file at every moment: tensors lie back to back, ordered by falling element
size, so each is aligned to its own element. Two entries are reserved. `holdfast.meta` holds everything that
is not a tensor as JSON text, padded with blanks; `holdfast.loss` holds the loss and a finite flag, which
travel with the state because reading them at each step would stall the device.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from holdfast.state import pages

META = "holdfast.meta"
LOSS = "holdfast.loss"
NO_LOSS = -3.4028234663852886e38
"""In place of a loss where there is none: the lowest number there is. A loss may be NaN, or infinite."""
RESERVED = "holdfast"
"""No protected object may have this name: its entries would mix with ours."""

MODULE = "module"
"""The kind, in the meta's `parts`, whose tensors are model weights."""

META_CAPACITY = 16 * 1024
"""Bytes kept for the meta at least. Padding is rewritten at each step, so this is small."""

ALIGN = 64
MAX_HEADER = 100_000_000
"""The limit of the official parser; a longer header is damage, not a model."""

SIZES: Mapping[str, int] = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "BOOL": 1, "U8": 1, "I8": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
}  # fmt: skip
"""Bytes per element of every safetensors dtype we can meet."""

Buffer = Any
"""Anything with the buffer protocol: bytes, mmap, a memoryview of shared memory."""
Shape = tuple[int, ...]
Spec = tuple[str, str, Shape]
"""(name, dtype, shape): what is known of a tensor before it has a place."""


class BadHeader(ValueError):
    """These bytes are not a snapshot or a safetensors file: cut short, overwritten, or something else."""


class MetaTooLong(ValueError):
    """The meta outgrew its place. Plan again with `meta_capacity=error.needed` or more."""

    def __init__(self, needed: int, capacity: int) -> None:
        super().__init__(f"the meta needs {needed} bytes, the layout keeps {capacity}")
        self.needed = needed
        self.capacity = capacity


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in the file. `start` and `stop` count from the end of the header, as safetensors does."""

    name: str
    dtype: str
    shape: Shape
    start: int
    stop: int

    @property
    def spec(self) -> Spec:
        return self.name, self.dtype, self.shape


@dataclass(frozen=True)
class Layout:
    """The place of every entry. `live` and `extra` are those asked for, each in file order."""

    entries: tuple[Entry, ...]
    live: tuple[Entry, ...]
    extra: tuple[Entry, ...]
    header: bytes

    @property
    def data_start(self) -> int:
        return len(self.header)

    @property
    def data_bytes(self) -> int:
        return self.entries[-1].stop if self.entries else 0

    @property
    def total_bytes(self) -> int:
        """What a slot must hold."""
        return self.data_start + self.data_bytes

    @property
    def meta_capacity(self) -> int:
        return self.by_name[META].shape[0]

    @cached_property
    def by_name(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    def span(self, name: str) -> slice:
        """Where `name` lies in the whole buffer, header included."""
        entry = self.by_name[name]
        return slice(self.data_start + entry.start, self.data_start + entry.stop)

    def pack_meta(self, meta: Mapping[str, Any] | str) -> bytes:
        """The meta as the bytes of its entry. A string is taken as JSON text."""
        data = (meta if isinstance(meta, str) else dump_json(meta)).encode()
        if len(data) > self.meta_capacity:
            raise MetaTooLong(len(data), self.meta_capacity)
        return data.ljust(self.meta_capacity)


def dump_json(value: Any) -> str:
    """Compact JSON. Non-finite numbers raise: the state spells them in a way every parser takes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def capacity_for(meta_bytes: int) -> int:
    """How much to keep for a meta that is `meta_bytes` long now: it may double before the next plan."""
    pages = -(-(2 * meta_bytes + 4096) // 4096)
    return max(META_CAPACITY, pages * 4096)


def plan(live: Iterable[Spec], *, extra: Iterable[Spec] = (), meta_capacity: int = META_CAPACITY) -> Layout:
    """Give each tensor a place. Within one element size the given order is kept."""
    groups = [(0, spec) for spec in live]
    groups += [(1, spec) for spec in extra]
    groups += [(2, (LOSS, "F32", (3,))), (2, (META, "U8", (meta_capacity,)))]
    groups.sort(key=lambda item: -SIZES[item[1][1]])
    entries = place(spec for _, spec in groups)
    chosen = [[e for (which, _), e in zip(groups, entries, strict=True) if which == want] for want in (0, 1)]
    return Layout(tuple(entries), tuple(chosen[0]), tuple(chosen[1]), build_header(entries))


def place(specs: Iterable[Spec]) -> list[Entry]:
    """Back to back, in the order given."""
    entries, start = [], 0
    for name, dtype, shape in specs:
        stop = start + SIZES[dtype] * math.prod(shape)
        entries.append(Entry(name, dtype, shape, start, stop))
        start = stop
    return entries


def build_header(entries: Iterable[Entry], metadata: Mapping[str, str] | None = None) -> bytes:
    """An 8-byte length and JSON, padded with blanks so that the data starts at a multiple of 64."""
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for entry in entries:
        if entry.name in table:
            raise ValueError(f"two tensors are named {entry.name!r}")
        offsets = [entry.start, entry.stop]
        table[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
    text = dump_json(table).encode()
    length = -(-(8 + len(text)) // ALIGN) * ALIGN - 8
    return struct.pack("<Q", length) + text.ljust(length)


def parse_header(buffer: Buffer) -> tuple[list[Entry], int]:
    """The entries in file order, and where the data starts. Raises BadHeader for damage of any kind."""
    view = memoryview(buffer).cast("B")
    if len(view) < 8:
        raise BadHeader("shorter than a header")
    (length,) = struct.unpack_from("<Q", view)
    if length > MAX_HEADER or 8 + length > len(view):
        raise BadHeader(f"the header claims {length} bytes, the file has {len(view) - 8}")
    try:
        table = json.loads(bytes(view[8 : 8 + length]))
        entries = [_entry(name, row) for name, row in table.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadHeader(f"the header cannot be read: {error}") from error
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    _check_places(entries, room=len(view) - 8 - length)
    return entries, 8 + length


def _entry(name: str, row: Mapping[str, Any]) -> Entry:
    start, stop = row["data_offsets"]
    shape = tuple(row["shape"])
    if not isinstance(row["dtype"], str) or not all(type(n) is int and n >= 0 for n in (start, stop, *shape)):
        raise ValueError(f"the row of {name!r} is not one of safetensors")
    return Entry(name, row["dtype"], shape, start, stop)


def _check_places(entries: list[Entry], room: int) -> None:
    at = 0
    for entry in entries:
        size = SIZES.get(entry.dtype, 0) * math.prod(entry.shape)
        if entry.start != at or (entry.dtype in SIZES and entry.stop - at != size):
            raise BadHeader(f"{entry.name} is not where it should be")
        at = entry.stop
    if at > room:
        raise BadHeader(f"cut short: {room} bytes of data, {at} expected")


def read_meta(buffer: Buffer) -> dict[str, Any]:
    """The meta of a snapshot; {} for a safetensors file that has none."""
    entries, data_start = parse_header(buffer)
    for entry in entries:
        if entry.name == META:
            return _meta_at(memoryview(buffer).cast("B"), data_start, entry)
    return {}


def _meta_at(view: memoryview, data_start: int, entry: Entry) -> dict[str, Any]:
    try:
        meta = json.loads(bytes(view[data_start + entry.start : data_start + entry.stop]))
    except ValueError as error:
        raise BadHeader(f"the meta cannot be read: {error}") from error
    if not isinstance(meta, dict):
        raise BadHeader("the meta is not a JSON object")
    return meta


PLACE = ("at", "of", "sequence", "unheard")
"""What the meta of a snapshot says of the place in the loop that it was taken at, and of nothing that is trained."""
_PIECE = 8 << 20


def same_state(one: Buffer, other: Buffer) -> bool:
    """Whether two snapshots are of the same state: equal to the last byte but for the place in the loop."""
    left, right = memoryview(one).cast("B"), memoryview(other).cast("B")
    try:
        entries, start = parse_header(left)
        if not _equal(left, right, 0, start):
            return False
        tensors = []
        for entry in entries:
            if entry.name == META:
                if _without_place(_meta_at(left, start, entry)) != _without_place(_meta_at(right, start, entry)):
                    return False
            elif entry.name != LOSS:
                tensors.append((start + entry.start, start + entry.stop))
    except BadHeader:
        return False
    parts = [part for run in _joined(tensors) for part in pages.pieces(*run)]
    with pages.hands() as pool:
        return all(pool.map(lambda part: _equal(left, right, *part), parts))


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that follow each other as one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def _without_place(meta: dict[str, Any]) -> dict[str, Any]:
    session = meta.get("session")
    known = session if isinstance(session, dict) else {}
    return {**meta, "session": {name: value for name, value in known.items() if name not in PLACE}}


def _equal(left: memoryview, right: memoryview, start: int, stop: int) -> bool:
    """Views are compared number by number, which takes long: so the system does it, or they are compared as bytes."""
    if start == stop:
        return True
    try:
        memcmp: Any = ctypes.CDLL(None).memcmp
        memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        held = [ctypes.c_char.from_buffer(each, start) for each in (left, right)]
    except (OSError, TypeError, AttributeError):  # Windows; memory that is only read
        pieces = ((at, min(stop, at + _PIECE)) for at in range(start, stop, _PIECE))
        return all(bytes(left[at:end]) == bytes(right[at:end]) for at, end in pieces)
    return bool(memcmp(*map(ctypes.addressof, held), stop - start) == 0)


def metadata_of(header: bytes) -> dict[str, str]:
    """The `__metadata__` of a safetensors header, its 8-byte length included; {} if it has none."""
    if len(header) < 8 or struct.unpack_from("<Q", header)[0] != len(header) - 8:
        raise BadHeader("cut short")
    try:
        table = json.loads(header[8:])
        said = table.pop("__metadata__", {})
        for name, row in table.items():  # metadata under a damaged name would pass for none
            _entry(name, row)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadHeader(f"the header cannot be read: {error}") from error
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        raise BadHeader("the metadata are not texts")
    return said


def weights_only(
    buffer: Buffer,
    parts: Mapping[str, str] | Collection[str] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
) -> tuple[bytes, list[tuple[int, int]]]:
    """What to write for a file with the module weights alone: its header, then these ranges of `buffer`.

    `parts` names the modules, or is the `parts` of the meta; by default all modules the meta knows. With one
    module the names are those of its own state_dict, so `model.load_state_dict(load_file(path))` works; with
    several each keeps its part's name in front. A tied weight is written under each of its names, as
    state_dict() has it: safetensors does not let two names share bytes.
    """
    entries, data_start = parse_header(buffer)
    weights = _weights(memoryview(buffer).cast("B"), entries, data_start, parts)
    weights.sort(key=lambda item: (-SIZES[item[1].dtype], item[1].start, item[0]))
    placed = place((name, entry.dtype, entry.shape) for name, entry in weights)
    ranges = [(data_start + entry.start, data_start + entry.stop) for _, entry in weights]
    return build_header(placed, metadata or {"format": "pt"}), ranges


def weights_in(buffer: Buffer) -> tuple[list[tuple[str, Entry]], int]:
    """Each module tensor under the name it has in a file of weights, and where in `buffer` the data starts."""
    entries, data_start = parse_header(buffer)
    return _weights(memoryview(buffer).cast("B"), entries, data_start, None), data_start


def weights_sha256(buffer: Buffer) -> str:
    """SHA-256 over the module tensors sorted by name: name, dtype, shape, bytes.

    The same for a snapshot, a checkpoint and the weights-only file made of either.
    """
    entries, data_start = parse_header(buffer)
    view = memoryview(buffer).cast("B")
    digest = hashlib.sha256()
    for name, entry in sorted(_weights(view, entries, data_start, None), key=lambda item: item[0]):
        digest.update(f"{name}\0{entry.dtype}\0{list(entry.shape)}\0".encode())
        digest.update(view[data_start + entry.start : data_start + entry.stop])
    return digest.hexdigest()


def _weights(
    view: memoryview,
    entries: list[Entry],
    data_start: int,
    parts: Mapping[str, str] | Collection[str] | None,
) -> list[tuple[str, Entry]]:
    """Each module tensor under its name in a weights-only file, tied names included."""
    by_name = {entry.name: entry for entry in entries}
    if META not in by_name:
        return list(by_name.items())
    meta = _meta_at(view, data_start, by_name[META])
    known = meta.get("parts", {})
    chosen = known if parts is None else parts
    if isinstance(chosen, Mapping):
        chosen = [name for name, kind in chosen.items() if kind == MODULE]
    names = {name: name for name in by_name} | dict(meta.get("aliases", {}))
    strip = len(chosen) == 1
    found = []
    for name, stored in names.items():
        part, _, key = name.partition(".")
        if part in chosen and stored in by_name:
            found.append((key if strip else name, by_name[stored]))
    return found
