"""One operator that a device computed: its arguments, its tensors, and what came out.

    case = Case("aten::mm", "", [Slot(0), Slot(1)], {}, tensors=[left, right], outputs={0: out}, ...)
    case.save(path); case = Case.load(path)          # a safetensors file; the arguments are JSON in its metadata

Where an operator is large, the tensors are a part of it that can be computed by itself; `full` says what the whole
looked like, so that it can be tried again at its own size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    )
}  # fmt: skip
"""What a case may hold. fp8, complex and quantised tensors are left alone."""
_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
    "preserve_format": torch.preserve_format,
}


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor among the arguments."""

    number: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor without its numbers."""

    sizes: list[int]
    strides: list[int]
    dtype: str
    largest: float = 1.0
    """For whole numbers, the largest there was: an index must stay inside of what it points into."""


@dataclass(slots=True)
class Case:
    """An operator, once."""

    name: str
    """As torch has it: `aten::mm`."""
    overload: str
    args: list[Any]
    kwargs: dict[str, Any]
    tensors: list[Tensor] = field(default_factory=list)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    """By their place in what the operator returns."""
    part: str = "forward"
    step: int = 0
    precision: str = "ieee"
    """How products of fp32 are computed: ieee, tf32 or bf16."""
    device: str = "cpu"
    full: dict[str, Any] = field(default_factory=dict)
    """{kwargs, shapes} of the whole, where the tensors are a part of it."""
    kind: str = ""
    """The operator with the shapes and dtypes it had: what is looked at more often once it is suspected."""

    @property
    def title(self) -> str:
        """`mm`, `convolution_backward`: how people call it."""
        return self.name.partition("::")[2]

    def described(self) -> str:
        """`mm in backward, float32 [64, 32] x [32, 8]`."""
        shapes = self.full["shapes"] if self.full else [asdict(shape_of(each)) for each in self.tensors]
        floats = [each for each in shapes if "float" in each["dtype"]] or shapes
        sizes = " x ".join(str(each["sizes"]) for each in floats)
        return f"{self.title} in {self.part}, {floats[0]['dtype'] if floats else '-'} {sizes}"

    # -- as a file -----------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        path.write_bytes(self.packed())

    def packed(self) -> bytes:
        """A safetensors file."""
        from safetensors.torch import save

        tensors = {f"in{number}": each.contiguous() for number, each in enumerate(self.tensors)}
        tensors |= {f"out{number}": each.contiguous() for number, each in self.outputs.items()}
        unshared = {name: each.clone() if each.storage_offset() else each for name, each in tensors.items()}
        data: bytes = save(unshared, metadata={"case": json.dumps(self.to_json())})
        return data

    @classmethod
    def load(cls, path: Path) -> Case:
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            meta = json.loads(file.metadata()["case"])
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        count = sum(name.startswith("in") for name in found)
        outputs = {int(name[3:]): each for name, each in found.items() if name.startswith("out")}
        return cls(
            name=meta["name"],
            overload=meta["overload"],
            args=decoded(meta["args"]),
            kwargs=decoded(meta["kwargs"]),
            tensors=[found[f"in{number}"] for number in range(count)],
            outputs=outputs,
            part=meta["part"],
            step=meta["step"],
            precision=meta["precision"],
            device=meta["device"],
            full=meta["full"],
            kind=meta["kind"],
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the numbers."""
        return {
            "name": self.name,
            "overload": self.overload,
            "args": encoded(self.args),
            "kwargs": encoded(self.kwargs),
            "part": self.part,
            "step": self.step,
            "precision": self.precision,
            "device": self.device,
            "full": self.full,
            "kind": self.kind,
        }


def operator(name: str, overload: str) -> Any:
    """The function of torch. Only operators of torch itself are ever looked up."""
    space, _, short = name.partition("::")
    if space != "aten":
        raise LookupError(name)
    return getattr(getattr(torch.ops.aten, short), overload or "default")


def shape_of(tensor: Tensor) -> Shape:
    largest = 1.0
    if tensor.device.type == "cpu" and not tensor.is_floating_point() and tensor.numel():
        largest = float(tensor.double().max())  # unsigned numbers have no max of their own
    return Shape(list(tensor.shape), list(tensor.stride()), str(tensor.dtype).removeprefix("torch."), largest)


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest of lists and dicts with every leaf changed."""
    if isinstance(tree, (list, tuple)):
        return [mapped(each, change) for each in tree]
    if isinstance(tree, dict):
        return {name: mapped(each, change) for name, each in tree.items()}
    return change(tree)


def filled(tree: Any, tensors: list[Tensor]) -> Any:
    """Tensors in the places that were kept for them."""
    return mapped(tree, lambda leaf: tensors[leaf.number] if isinstance(leaf, Slot) else leaf)


def taken_apart(tree: Any, tensors: list[Tensor]) -> Any:
    """Places instead of tensors, which go to the list."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        tensors.append(value)
        return Slot(len(tensors) - 1)

    return mapped(tree, leaf)


def encoded(tree: Any) -> Any:
    """As JSON can hold it. Raises TypeError for what it cannot: a generator, an object of a library."""

    def leaf(value: Any) -> Any:
        if isinstance(value, Slot):
            return {"tensor": value.number}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.memory_format):
            return {"format": str(value).removeprefix("torch.")}
        if isinstance(value, (torch.device, torch.layout)):
            return {"kind": str(value)}
        if isinstance(value, float) and value - value != 0.0:
            return {"float": repr(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"{type(value).__name__} cannot be written down")

    return mapped(tree, leaf)


def decoded(tree: Any) -> Any:
    if isinstance(tree, list):
        return [decoded(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if set(tree) == {"tensor"}:
        return Slot(int(tree["tensor"]))
    if set(tree) == {"dtype"}:
        return DTYPES.get(tree["dtype"])
    if set(tree) == {"format"}:
        return _FORMATS.get(tree["format"])
    if set(tree) == {"kind"}:
        return torch.strided if tree["kind"] == "torch.strided" else torch.device("cpu")
    if set(tree) == {"float"}:
        return float(tree["float"])
    return {name: decoded(each) for name, each in tree.items()}
