"""The bytes of a snapshot: what the official parser reads, what damage is, what the keeper cuts out."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import safetensors.numpy

from holdfast.state import layout, pages
from holdfast.state.layout import (
    LOSS,
    META,
    SIZES,
    BadHeader,
    Entry,
    Layout,
    MetaTooLong,
    build_header,
    capacity_for,
    parse_header,
    plan,
    read_meta,
    weights_only,
    weights_sha256,
)

SPECS = [
    ("model.mask", "BOOL", (3,)),
    ("model.weight", "F32", (4, 3)),
    ("model.count", "I64", ()),
    ("model.empty", "F32", (0, 5)),
    ("model.half", "F16", (7,)),
    ("optimizer.state.0.step", "F32", ()),
]
PARTS = {"model": "module", "optimizer": "optimizer"}


def fill(layout: Layout, meta: Mapping[str, object], seed: int = 0) -> bytearray:
    """A slot as a worker would leave it, with random tensors."""
    rng = random.Random(seed)
    slot = bytearray(layout.total_bytes)
    slot[: layout.data_start] = layout.header
    for entry in layout.entries:
        slot[layout.span(entry.name)] = rng.randbytes(entry.stop - entry.start)
    for entry in layout.entries:
        if entry.dtype == "BOOL":
            slot[layout.span(entry.name)] = bytes(entry.stop - entry.start)
    slot[layout.span(META)] = layout.pack_meta(meta)
    return slot


def write_weights(slot: bytearray, parts: object = None) -> bytes:
    header, ranges = weights_only(slot, parts)  # type: ignore[arg-type]
    return header + b"".join(bytes(slot[start:stop]) for start, stop in ranges)


def test_official_parser_reads_a_slot() -> None:
    layout = plan(SPECS, extra=[("holdfast.rng.torch", "U8", (16,))])
    slot = fill(layout, {"parts": PARTS})
    loaded = safetensors.numpy.load(bytes(slot))
    assert set(loaded) == {name for name, _, _ in SPECS} | {"holdfast.rng.torch", META, LOSS}
    assert loaded["model.weight"].tobytes() == bytes(slot[layout.span("model.weight")])
    assert loaded["model.count"].shape == ()
    assert loaded["model.empty"].shape == (0, 5)
    assert json.loads(loaded[META].tobytes()) == {"parts": PARTS}
    assert loaded[LOSS].dtype == np.float32 and loaded[LOSS].shape == (3,)


def test_every_tensor_is_aligned_and_nothing_is_wasted() -> None:
    layout = plan(SPECS)
    assert layout.data_start % 64 == 0
    end = 0
    for entry in layout.entries:
        assert entry.start == end
        assert entry.start % SIZES[entry.dtype] == 0
        end = entry.stop
    assert layout.total_bytes == layout.data_start + end


def test_order_is_kept_within_an_element_size() -> None:
    names = [(f"t{i}", "F32", (1,)) for i in range(50)]
    layout = plan([*names, ("wide", "F64", (1,))])
    assert [entry.name for entry in layout.live] == ["wide", *(f"t{i}" for i in range(50))]
    assert layout.extra == ()


def test_parse_gives_back_what_was_built() -> None:
    layout = plan(SPECS)
    slot = fill(layout, {})
    entries, data_start = parse_header(slot)
    assert sorted(entries, key=lambda e: e.name) == sorted(layout.entries, key=lambda e: e.name)
    assert data_start == layout.data_start


def test_a_slot_may_be_larger_than_what_it_holds() -> None:
    layout = plan(SPECS)
    slot = fill(layout, {"step": 3}) + bytearray(1000)
    assert read_meta(slot) == {"step": 3}
    assert read_meta(memoryview(slot)) == {"step": 3}


def test_meta_that_outgrew_its_place_says_how_much_it_needs() -> None:
    layout = plan(SPECS, meta_capacity=64)
    with pytest.raises(MetaTooLong) as caught:
        layout.pack_meta({"text": "x" * 100})
    assert caught.value.needed > 100
    larger = plan(SPECS, meta_capacity=caught.value.needed)
    assert json.loads(larger.pack_meta({"text": "x" * 100})) == {"text": "x" * 100}


def test_meta_refuses_numbers_json_does_not_have() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        plan(SPECS).pack_meta({"loss": float("nan")})


def test_capacity_leaves_room_to_double() -> None:
    for size in (0, 100, 5000, 200_000):
        assert capacity_for(size) >= 2 * size
        assert capacity_for(size) >= 16384


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.weight"):
        build_header([Entry("model.weight", "U8", (1,), 0, 1), Entry("model.weight", "U8", (1,), 1, 2)])


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda slot: b"",
    "seven bytes": lambda slot: slot[:7],
    "cut in the header": lambda slot: slot[:100],
    "cut in the data": lambda slot: slot[:-1],
    "huge header length": lambda slot: struct.pack("<Q", 2**60) + slot[8:],
    "header is not JSON": lambda slot: slot[:8] + b"\x00" * 40 + slot[48:],
    "header is a list": lambda slot: build_from_json([1, 2]),
    "row without offsets": lambda slot: build_from_json({"a": {"dtype": "U8", "shape": [1]}}),
    "a hole": lambda slot: build_from_json({"a": {"dtype": "U8", "shape": [1], "data_offsets": [5, 6]}}),
    "wrong size": lambda slot: build_from_json({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
    "shape of text": lambda slot: build_from_json({"a": {"dtype": "F9", "shape": ["b"], "data_offsets": [0, 1]}}),
    "dtype of numbers": lambda slot: build_from_json({"a": {"dtype": [1], "shape": [1], "data_offsets": [0, 1]}}),
    "offsets are text": lambda slot: build_from_json({"a": {"dtype": "U8", "shape": [1], "data_offsets": "ab"}}),
}


def build_from_json(table: object) -> bytes:
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_one_kind_of_error(how: str) -> None:
    slot = bytes(fill(plan(SPECS), {}))
    with pytest.raises(BadHeader):
        parse_header(DAMAGE[how](slot))


def test_random_damage_never_escapes_as_another_error() -> None:
    layout = plan(SPECS)
    slot = bytes(fill(layout, {"parts": PARTS}))
    rng = random.Random(7)
    seen = 0
    for _ in range(3000):
        torn = bytearray(slot)
        for _ in range(rng.randint(1, 4)):
            torn[rng.randrange(layout.data_start)] = rng.randrange(256)
        try:
            entries, _ = parse_header(torn)
        except BadHeader:
            seen += 1
        else:
            assert all(entry.stop >= entry.start >= 0 for entry in entries)
    assert seen > 1000


def test_damaged_meta_is_the_same_kind_of_error() -> None:
    layout = plan(SPECS)
    slot = fill(layout, {})
    slot[layout.span(META)] = b"{".ljust(layout.meta_capacity)
    with pytest.raises(BadHeader):
        read_meta(slot)
    slot[layout.span(META)] = b"[]".ljust(layout.meta_capacity)
    with pytest.raises(BadHeader):
        read_meta(slot)


def test_weights_of_one_module_carry_its_own_names() -> None:
    slot = fill(plan(SPECS), {"parts": PARTS})
    loaded = safetensors.numpy.load(write_weights(slot))
    assert set(loaded) == {"mask", "weight", "count", "empty", "half"}
    whole = safetensors.numpy.load(bytes(slot))
    for name, value in loaded.items():
        assert value.tobytes() == whole[f"model.{name}"].tobytes()


def test_weights_of_several_modules_keep_their_part() -> None:
    specs = [*SPECS, ("ema.weight", "F32", (4, 3))]
    slot = fill(plan(specs), {"parts": {**PARTS, "ema": "module"}})
    assert set(safetensors.numpy.load(write_weights(slot))) == {
        *("model.mask", "model.weight", "model.count", "model.empty", "model.half"),
        "ema.weight",
    }
    assert set(safetensors.numpy.load(write_weights(slot, ["ema"]))) == {"weight"}
    assert set(safetensors.numpy.load(write_weights(slot, {"ema": "module"}))) == {"weight"}


def test_tied_weights_are_written_under_each_name() -> None:
    meta = {"parts": PARTS, "aliases": {"model.head.weight": "model.weight"}}
    loaded = safetensors.numpy.load(write_weights(fill(plan(SPECS), meta)))
    assert loaded["head.weight"].tobytes() == loaded["weight"].tobytes()


def test_digest_is_that_of_the_weights_wherever_they_are() -> None:
    meta = {"parts": PARTS, "aliases": {"model.head.weight": "model.weight"}}
    slot = fill(plan(SPECS), meta)
    digest = weights_sha256(slot)
    assert weights_sha256(write_weights(slot)) == digest
    other = plan([*reversed(SPECS), ("optimizer.state.0.exp_avg", "F64", (9,))], meta_capacity=50_000)
    moved = fill(other, {**meta, "step": 8}, seed=5)
    for name, _, _ in SPECS:
        moved[other.span(name)] = slot[plan(SPECS).span(name)]
    assert weights_sha256(moved) == digest


def test_digest_sees_one_bit_of_a_weight_and_nothing_else() -> None:
    layout = plan(SPECS)
    slot = fill(layout, {"parts": PARTS})
    digest = weights_sha256(slot)
    slot[layout.span("optimizer.state.0.step").start] ^= 1
    slot[layout.span(LOSS).start] ^= 1
    assert weights_sha256(slot) == digest
    slot[layout.span("model.half").start] ^= 1
    assert weights_sha256(slot) != digest


def test_layout_needs_no_torch() -> None:
    code = "import sys, holdfast.state.layout; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def _snapshot(at: str, *, weights: bytes = b"abcd", epoch: int = 1) -> bytearray:
    plan = layout.plan([("model.weight", "U8", (len(weights),))])
    data = bytearray(plan.total_bytes)
    data[: plan.data_start] = plan.header
    data[plan.span("model.weight")] = weights
    data[plan.span(layout.META)] = plan.pack_meta({"session": {"at": at, "sequence": len(at), "epoch": epoch}})
    return data


@pytest.mark.parametrize("kind", [bytearray, bytes])
def test_two_snapshots_of_one_state_differ_in_their_place_alone(kind: type) -> None:
    """Both ways of comparing: of memory that can be written, and of memory that cannot."""
    epoch = kind(_snapshot("epoch"))
    assert layout.same_state(epoch, kind(_snapshot("end")))
    assert not layout.same_state(epoch, kind(_snapshot("end", weights=b"abcx")))
    assert not layout.same_state(epoch, kind(_snapshot("end", epoch=2)))
    assert not layout.same_state(epoch, kind(bytes(len(epoch))))


@pytest.mark.parametrize("place", [0, 70, 127])
def test_a_large_state_is_compared_in_pieces_by_several_threads(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(pages, "PIECE", 16)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    weights = bytes(range(128))
    other = bytearray(weights)
    epoch, end = (bytearray(_snapshot(name, weights=weights)) for name in ("epoch", "end"))
    assert layout.same_state(epoch, end)
    other[place] ^= 1
    assert not layout.same_state(epoch, bytearray(_snapshot("end", weights=bytes(other))))
