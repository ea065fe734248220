"""The probe that lifts hipBLASLt's guard: right where the device is right, and not passed by zeros."""

from __future__ import annotations

import pytest
import torch

from holdfast.devices import probe_catalog
from holdfast.injection.symptoms import Symptom
from holdfast.probes.more import narrow_products
from holdfast.probes.wrong_kernels import PretendBench, open_bench


def test_a_right_device_passes() -> None:
    bench = open_bench("cpu", lambda check: None)
    (outcome,) = narrow_products.compute(bench, {})
    assert outcome.ok and outcome.error is not None and outcome.error < 0.01


def test_the_operand_ends_where_its_memory_ends() -> None:
    bench = open_bench("cpu", lambda check: None)
    tensor = torch.randn(16, 94).bfloat16()
    placed = narrow_products.at_the_end(bench, tensor)
    assert torch.equal(placed, tensor)
    storage = placed.untyped_storage()
    end = placed.storage_offset() * placed.element_size() + placed.numel() * placed.element_size()
    assert (end, storage.nbytes()) == (narrow_products.SEGMENT, narrow_products.SEGMENT)


def test_zeros_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_products, "at_the_end", lambda bench, tensor: torch.zeros_like(tensor))
    (outcome,) = narrow_products.compute(open_bench("cpu", lambda check: None), {})
    assert not outcome.ok and outcome.error == pytest.approx(1.0)


@pytest.mark.parametrize("how", ["scale", "zero", "nan"])
def test_a_wrong_kernel_does_not_pass(how: str) -> None:
    bench = PretendBench.open("pretend:0", lambda check: None)
    bench.listed = [Symptom("wrong", kernel="mm", how=how)]
    (outcome,) = narrow_products.compute(bench, {})
    assert not outcome.ok


def test_it_is_in_the_full_set_of_a_card_alone() -> None:
    assert "narrow products" in [probe.name for probe in probe_catalog.select("cuda:0", full=True)]
    for device, full in (("cuda:0", False), ("cpu", True), ("pretend:0", True), ("mps", True)):
        assert "narrow products" not in [probe.name for probe in probe_catalog.select(device, full=full)]
