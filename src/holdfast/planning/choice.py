"""The settings of a step that change its speed and not its meaning, and the knobs they are turned with.

    Choice(precision="bf16", threads=2)          # plain for all that is not named
    choice.loss(compute, device)                 # `compute` under this precision, compiled if so chosen
    choice.arrange(model)                        # memory layout
    choice.apply()                               # threads of this process

The first value of a knob is the plain one. It is always a candidate, and it wins ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from holdfast.base import dataclass_json


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to choose, and its values, the plain one first."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One value for each knob; the defaults are what a plain PyTorch loop does."""

    precision: str = "fp32"
    """"bf16" is autocast: the weights stay in fp32."""
    layout: str = "contiguous"
    """"channels_last" for two-dimensional convolutions."""
    kernels: str = "default"
    """"gemm_backward": the gradients of convolutions as matrix products; see holdfast.planning.kernels."""
    threads: int = 0
    """CPU threads of torch; 0 leaves what the run has."""
    pieces: int = 1
    """`accumulate` of session.step: the batch in so many pieces of exact weight."""
    workers: int = 0
    """Loader processes."""
    compile: bool = False

    def apply(self) -> None:
        """Settings of the process."""
        if self.threads:
            torch.set_num_threads(self.threads)

    def arrange(self, model: nn.Module) -> nn.Module:
        if self.layout == "channels_last":
            return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
        return model

    def loss(self, compute: Callable[[Any], torch.Tensor], device: torch.device) -> Callable[[Any], torch.Tensor]:
        """`compute(batch)`, computed the chosen way. The loss itself comes back in fp32."""
        inner = torch.compile(compute) if self.compile else compute
        if self.kernels == "gemm_backward" and device.type == "cpu":
            from holdfast.planning.kernels import gemm_backward

            inner = gemm_backward(inner)
        if self.precision == "fp32":
            return inner
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

        def computed(batch: Any) -> torch.Tensor:
            with torch.autocast(device.type, dtype=dtype):
                return inner(batch).float()

        return computed

    def forget(self) -> None:
        """What was begun and not ended: half of a compilation is of no use to the next."""
        if self.compile:
            torch.compiler.reset()

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)

    @classmethod
    def from_json(cls, data: object) -> Choice | None:
        """None for anything that is not a choice: the file may come from anywhere."""
        try:
            choice = dataclass_json.read_strictly(cls, data)
        except ValueError:
            return None
        good = choice.precision in ("fp32", "bf16", "fp16") and choice.layout in ("contiguous", "channels_last")
        good = good and choice.kernels in ("default", "gemm_backward")
        small = 0 <= choice.threads <= 4096 and 1 <= choice.pieces <= 4096 and 0 <= choice.workers <= 256
        return choice if good and small else None

    def words(self) -> str:
        """What is not plain about it."""
        told = [self.precision] if self.precision != "fp32" else []
        told += [self.layout] if self.layout != "contiguous" else []
        told += ["gradients of convolutions by matrix products"] if self.kernels != "default" else []
        told += [f"{self.threads} thread{'s' * (self.threads != 1)}"] if self.threads else []
        told += [f"in {self.pieces} pieces"] if self.pieces > 1 else []
        told += [f"{self.workers} loader process{'es' * (self.workers != 1)}"] if self.workers else []
        told += ["compiled"] if self.compile else []
        return ", ".join(told) or "plain"
