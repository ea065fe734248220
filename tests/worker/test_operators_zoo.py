"""Networks of many kinds on a pretended device: no right kernel is suspected, wrong ones are found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "examples")]

from benchmarks.zoo.looks import look_at  # noqa: E402
from benchmarks.zoo.networks import names  # noqa: E402
from benchmarks.zoo.planted import KINDS, find  # noqa: E402

SMALL = ("mlp", "deep_cnn", "u_net", "graph", "gru", "tied", "bert", "gpt2", "llama", "EEGNet")
OPTIONAL = {"bert": "transformers", "gpt2": "transformers", "llama": "transformers", "EEGNet": "braindecode"}
LOOKS = 5


def test_the_zoo_is_large_and_a_third_of_it_is_held_out() -> None:
    assert len(names()) >= 60
    assert sorted([*names(held_out=True), *names(held_out=False)]) == names()
    assert 0.3 < len(names(held_out=True)) / len(names()) < 0.37


@pytest.mark.all
@pytest.mark.sample(5)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SMALL)
def test_no_right_kernel_is_suspected(name: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    precisions = ("fp32", "bf16", "bf16" if name == "gru" else "fp16")  # the CPU has no recurrence in fp16
    for number in (SMALL.index(name), SMALL.index(name) + 1):
        row = look_at(name, precisions[number % 3], looks=LOOKS, operators=8, channels_last=number % 2 == 1)
        assert row["suspicions"] == [] and row["compared"] >= 20, row


@pytest.mark.sample(6)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_planted_error_is_found_and_named(kind: str) -> None:
    """In one network each; the whole table is made by `python -m benchmarks.zoo.planted`."""
    networks = ("deep_cnn", "mlp", "u_net", "tied")
    special = {"softmax off": ("tied",), "attention of a head zero": ("llama", "gpt2")}
    for network in special.get(kind, networks[len(kind) % 2 :][:2]):
        row = find(network, kind, looks=50)
        if not row.get("none"):
            assert row["found"] and row["named"], row
            return
    raise AssertionError(f"no network has a kernel for {kind}")


@pytest.mark.bench
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_right_kernel_of_the_whole_zoo_is_suspected(precision: str) -> None:
    torch.set_num_threads(2)
    for name in names():
        row = look_at(name, precision, looks=LOOKS)
        assert row["suspicions"] == [], row
