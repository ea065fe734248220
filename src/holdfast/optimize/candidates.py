"""Which ways to run a model are worth trying on this machine, and why the others are not.

    offers = candidates(Machine.look(packages()))
    [each.name for each in offers if not each.skip]      # "onnxruntime fp32", "openvino fp16", …
    offers[-1].skip                                      # "this processor has no bf16 arithmetic"

A candidate is an engine and a precision; threads and fixed shapes are varied for the one that comes out best. Engines
are files of their own (engines/); eager PyTorch and torch.compile, which need the user's own code, are here. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from holdfast.optimize.engines import Kind, kinds
from holdfast.optimize.processor import BF16, FP16, INT8, Machine

BASELINE, AS_CALLED = "eager fp32", "as called"
DEFAULTS = "defaults"
"""ONNX Runtime as it is without a setting: measured where it is asked for by name, as a peer, and never chosen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the model."""

    engine: str
    precision: str
    threads: int
    device: str = "cpu"
    fixed: bool = False
    """For batches of one only; larger ones are run one by one."""
    merge: int = 1
    """So many neighbouring tokens of a transformer are one: see rewrite.py."""
    skip: str = ""
    """Why it is not tried here; empty if it is."""

    @property
    def build_name(self) -> str:
        """What has to be built for it; threads and shapes are chosen when it is loaded."""
        if self.engine == AS_CALLED:
            return AS_CALLED
        device = f" {self.device}" if self.device != "cpu" else ""
        return f"{self.engine} {self.precision}{device}" + (f" merge{self.merge}" if self.merge > 1 else "")

    @property
    def name(self) -> str:
        return self.build_name + (" fixed" if self.fixed else "")

    @property
    def kind(self) -> Kind | None:
        """What has a file of its own has one: eager and torch.compile need your own code beside them."""
        return kinds().get(self.engine)

    @property
    def slow(self) -> bool:
        """Whether it takes long to make: a compiler runs, or a calibration. Such ones are tried last."""
        return self.engine in ("compile", "aot") or self.precision == "int8-static"

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Candidate:
        return cls(row["engine"], row["precision"], row["threads"], row["device"], row["fixed"], row["merge"])

    def to_json(self) -> dict[str, Any]:
        fields = ("engine", "precision", "threads", "device", "fixed", "merge")
        return {"name": self.name, **{name: getattr(self, name) for name in fields}}


def candidates(machine: Machine, wanted: tuple[str, ...] = (), device: str = "") -> list[Candidate]:
    """Everything there is, with the reason at each that is not tried.

    `wanted` keeps engines or whole names, `device` what runs on one: `cpu` or `cuda`.
    """
    of_kinds = [(kind.name, precision, kind.device) for kind in kinds().values() for precision in kind.precisions]
    found = []
    for engine, precision, on in [*_OF_TORCH, *(each for each in of_kinds if each[2] == "cpu" or machine.gpu)]:
        each = Candidate(engine, precision, machine.cores, on)
        found.append(replace(each, skip=_why_not(each, machine)))
    if machine.gpu:
        for engine, precision in _ON_GPU:
            found.append(Candidate(engine, precision, machine.cores, device="cuda"))
    if "onnxruntime defaults" in wanted:
        found.append(Candidate("onnxruntime", DEFAULTS, machine.cores))
    if wanted:
        found = [each for each in found if each.engine in wanted or each.name in wanted]
    return [each for each in found if device in ("", each.device)]


def names() -> tuple[str, ...]:
    """Of all engines."""
    return (*dict.fromkeys(engine for engine, _, _ in _OF_TORCH), *kinds())


_OF_TORCH = (("eager", "bf16", "cpu"), ("compile", "fp32", "cpu"))
_ON_GPU = (
    ("eager", "fp32"),
    ("eager", "tf32"),
    ("eager", "bf16"),
    ("eager", "fp16"),
    ("compile", "fp32"),
    ("compile", "tf32"),
    ("compile", "bf16"),
    ("compile", "fp16"),
)


def _why_not(each: Candidate, machine: Machine) -> str:
    if each.kind is not None:
        missing = [name for name in each.kind.packages if name not in machine.packages]
        against = machine.without(missing[0]) if missing else each.kind.why_not(each.precision, machine)
        if against:
            return against
    if each.engine == "compile" and machine.against_compiling():
        return machine.against_compiling()
    if each.device != "cpu":
        return ""  # it is the GPU's arithmetic that counts
    if each.precision == "bf16" and not machine.flags & BF16:
        return "this processor has no bf16 arithmetic"
    if each.precision == "fp16" and not machine.flags & FP16:
        return "this processor has no fp16 arithmetic"
    if each.precision in ("int8-dynamic", "int8-static") and not machine.flags & INT8:
        return "this processor has no int8 dot products"
    return ""
