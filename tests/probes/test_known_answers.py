"""Known answers: the quick set asks for those of fp32 alone, and a probe that has nothing to ask says so."""

from __future__ import annotations

import pytest

from holdfast.devices.probe_catalog import find, select
from holdfast.probes.bench import Skip
from holdfast.probes.more import silent_zeros
from holdfast.probes.wrong_kernels import open_bench

NAMES = ("known answers", "known answers bf16", "known answers of Triton")


def test_the_quick_set_compiles_nothing() -> None:
    quick = {probe.name for probe in select("cuda:0")}
    full = {probe.name for probe in select("cuda:0", full=True)}
    assert quick & {*NAMES} == {"known answers"} and {*NAMES} <= full
    assert {*NAMES} & {probe.name for probe in select("cpu", full=True)} == {"known answers"}


def test_kernels_that_are_right_give_them() -> None:
    (outcome,) = silent_zeros.answer(open_bench("cpu", lambda check: None), {})
    assert outcome.facts == {"silent": []} and not outcome.why


@pytest.mark.parametrize("name", NAMES[1:])
def test_where_nothing_can_be_asked_it_is_left_out(name: str) -> None:
    function = getattr(silent_zeros, find(name).function.rpartition(".")[2])
    with pytest.raises(Skip):
        list(function(open_bench("cpu", lambda check: None), {}))
