"""Kernels that write nothing: known answers, forward and backward. Some cards give zeros and raise no error."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.devices.probe_catalog import ACCELERATORS, Probe

if TYPE_CHECKING:
    from holdfast.probes.bench import Bench
    from holdfast.probes.compare import Outcome

PROBES = [
    Probe("known answers", "answer", "launch", ("",), quick=True),
    Probe("known answers bf16", "answer_of_bf16", "training", ("",), precision="bf16", kinds=ACCELERATORS),
    Probe("known answers of Triton", "answer_of_triton", "compile", ("",), situation="compile", kinds=("cuda",),
          deadline_s=240.0),
]  # fmt: skip
"""The quick set has the first alone. The kernels of the others are loaded or compiled for that, which takes as long as
all other quick probes together; a run asks for the answers of those that its own loss was computed with."""


def answer(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """A product, a convolution and attention of small whole numbers."""
    from holdfast.worker.operators.zeros import WIDE

    yield _asked(bench, WIDE)


def answer_of_bf16(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """The same by other kernels, on other units of the device."""
    from holdfast.probes.bench import Skip
    from holdfast.worker.operators.zeros import NARROW, WIDE

    bench.set_precision("bf16")
    if bench.device.type == "cpu":
        raise Skip("nothing of it is computed on a device")
    yield _asked(bench, [NARROW.format(each) for each in WIDE])


def _asked(bench: Bench, names: Collection[str]) -> Outcome:
    from holdfast.worker.operators.zeros import silent

    bench.tell("")
    with bench.on():
        found = silent(bench.device, triton=False, only=names)
    bench.wait()
    return _told(found)


def answer_of_triton(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """A kernel of Triton that doubles small whole numbers."""
    from holdfast.probes.bench import Skip
    from holdfast.worker.operators.zeros import silent_triton

    if bench.device.type == "cpu" or importlib.util.find_spec("triton") is None:
        raise Skip("there is no Triton for it")
    bench.tell("")
    with bench.on():
        found = silent_triton(bench.device)
    yield _told(found)


def _told(found: list[str]) -> Outcome:
    from holdfast.probes.compare import Outcome

    if not found:
        return Outcome(facts={"silent": []})
    return Outcome(why=f"{', '.join(found)} does not give the known answer", facts={"silent": found})
