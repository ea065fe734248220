"""A small network on the device and on the CPU: forward, backward, and ten steps of training, held against float64.

    for outcome in train(bench, spec): ...      # one per check: error, bound, the tensor that is off the most

The bound comes from the precision. What rounding does to this very network is measured on the CPU: the network is
computed there in fp32 or bf16 as well, and what that is off by is what a right device may be off by. A precision
between the two is in proportion. Another order of summation or another algorithm (Winograd) is worse by a few times;
a broken kernel by hundreds or more. So the bound is MARGIN times what was measured.

In a recurrence each step has the error of those before it. A library may compute sigmoid and tanh by formulas of its
own, which are off to the same side at every step, so that these errors add up where those of the CPU cancel out: each
step may be off by MARGIN roundings of fp32, in which they are computed in any precision, and by one of its own.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from holdfast.probes import layers
from holdfast.probes.bench import CPU, HALF_SCALE, Bench, Skip
from holdfast.probes.layers import Layer
from holdfast.worker.precision import ROUNDING

MARGIN = 16.0
SHARE = 0.1
"""Of the whole gradient, what a tensor counts for at least: some are zero but for rounding, like a key's bias."""
MOST = 0.5
"""No bound is above this: an answer of zeros is off by 1, and must never pass."""
STEPS = 12
RATE, EPSILON = 1e-2, 1e-3
"""A large epsilon: where a gradient is next to nothing, Adam would follow the sign of its rounding."""

CHECKS = ("forward", "backward", "training")

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check gave. One without a bound has passed by ending."""

    error: float | None = None
    bound: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    skip: str = ""
    """Why it makes no sense here."""
    why: str = ""
    """Why it failed, where that is not that the error is above the bound."""

    @property
    def ok(self) -> bool:
        if self.why or self.error is None or self.bound is None:
            return not self.why
        return self.error <= self.bound  # a NaN is not


def train(bench: Bench, spec: dict[str, Any], wrap: Callable[[Layer], Any] = lambda layer: layer) -> Iterator[Outcome]:
    """Forward, backward and training of one layer."""
    precision = spec["precision"]
    bench.set_precision(precision)
    layer = layers.build(spec["layer"], small=bench.small)
    sizes = spec["options"].get("sizes") or [spec["batch"]]
    right = Work(layer, sizes, double=True).answers()
    expected = expectation(layer, sizes, precision, right)
    mine = Work(layer, sizes, bench=bench, precision=precision, spec=spec, wrap=wrap)
    with sdpa(spec["sdpa"]):
        for check in CHECKS:
            bench.tell(check)
            with bench.on():
                found = getattr(mine, check)()
                bench.wait()
            error, name = distance(found, right[check])
            facts = {"tensor": name, "expected": expected[check]}
            yield Outcome(error, bound(expected[check], precision, layer.depth), facts)


def double(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """The gradient of a gradient, as penalties on gradients use it."""
    bench.set_precision(spec["precision"])
    layer, sizes = layers.build(spec["layer"], small=bench.small), [spec["batch"]]
    reference = Work(layer, sizes, double=True).penalty()
    expected, _ = distance(Work(layer, sizes).penalty(), reference)
    bench.tell("double backward")
    with bench.on():
        found = Work(layer, sizes, bench=bench, precision=spec["precision"], spec=spec).penalty()
        bench.wait()
    error, name = distance(found, reference)
    yield Outcome(error, bound(expected, spec["precision"]), {"tensor": name, "expected": expected})


def compiled(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """The same through torch.compile."""
    if bench.device.type == "cpu":
        able = any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))
        missing = "" if able else "no C++ compiler is installed"
    else:
        able = bench.device.type == "mps" or importlib.util.find_spec("triton") is not None
        missing = "" if able else "triton is not installed"
    if missing:
        raise Skip(missing)
    yield from train(bench, spec, lambda layer: torch.compile(layer, dynamic=False))


# One way to compute -------------------------------------------------------------------------------------------------


class AdamW:
    """`torch.optim.AdamW`, the same kernels in the same order, without what makes it slow to begin with.

    The first optimizer of a process imports `torch._dynamo`, which takes as long as torch itself. Its function alone
    does not.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        self.param_groups = [{"params": self._parameters}]
        """As a GradScaler looks for them."""
        self._means = [torch.zeros_like(each, memory_format=torch.preserve_format) for each in self._parameters]
        self._squares = [torch.zeros_like(each, memory_format=torch.preserve_format) for each in self._parameters]
        self._steps = [torch.tensor(0.0) for _ in self._parameters]

    def zero_grad(self) -> None:
        for each in self._parameters:
            each.grad = None

    @torch.no_grad()
    def step(self) -> None:
        with_gradient = [at for at, each in enumerate(self._parameters) if each.grad is not None]

        def of(tensors: list[Tensor]) -> list[Tensor]:
            return [tensors[at] for at in with_gradient]

        gradients = [each.grad for each in of(self._parameters) if each.grad is not None]
        adamw(
            of(self._parameters), gradients, of(self._means), of(self._squares), [], of(self._steps), amsgrad=False,
            beta1=0.9, beta2=0.999, lr=RATE, weight_decay=1e-2, eps=EPSILON, maximize=False,
        )  # fmt: skip


class Work:
    """A copy of a layer on one device in one precision; on the CPU if there is no bench."""

    def __init__(
        self,
        layer: Layer,
        sizes: Sequence[int],
        *,
        bench: Bench | None = None,
        precision: str = "fp32",
        double: bool = False,
        spec: dict[str, Any] | None = None,
        wrap: Callable[[Layer], Any] = lambda layer: layer,
    ) -> None:
        self.bench = Bench("cpu", CPU) if bench is None else bench
        self.precision = precision
        self.dtype = torch.float64 if double else torch.float32
        self.sizes = sizes
        self._spec: dict[str, Any] = {"channels_last": False, "options": {}} if spec is None else spec
        self._layer = layer
        self._wrap = wrap

    def _fresh(self) -> tuple[Layer, Any]:
        """The layer as it was at first, and what computes it."""
        own = copy.deepcopy(self._layer).to(self.bench.device, self.dtype)
        if self._spec["channels_last"]:
            own = own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return own, self._wrap(own)

    def _inputs(self, size: int) -> Tensor:
        inputs = self._layer.inputs(size)
        if not inputs.is_floating_point():
            return inputs.to(self.bench.device)
        inputs = inputs.to(self.bench.device, self.dtype)
        if self._spec["channels_last"]:
            inputs = inputs.to(memory_format=torch.channels_last)
        if self._spec["options"].get("strided"):
            inputs = torch.stack([inputs, -inputs], -1)[..., 0]
        return inputs.requires_grad_()

    def _forward(self, computes: Any, inputs: Tensor) -> Tensor:
        self.bench.batch = len(inputs)
        with self.bench.doing("forward"), self.bench.autocast(self.precision):
            out: Tensor = computes(inputs)
        return out

    def _scaler(self) -> Any:
        """As in a script, but without a search for the scale: that would skip steps the reference does not skip."""
        wanted, kind = self.precision == "fp16", self.bench.device.type
        return torch.amp.GradScaler(kind, init_scale=HALF_SCALE, growth_interval=1 << 30, enabled=wanted)

    def _backward(self, own: Layer, output: Tensor, size: int, scaler: Any = None) -> Tensor:
        scale = HALF_SCALE if self.precision == "fp16" and scaler is None else 1.0
        with self.bench.doing("backward"):
            loss = own.loss(output, size)
            (loss * scale if scaler is None else scaler.scale(loss)).backward()
        for parameter in own.parameters():
            if parameter.grad is not None:
                parameter.grad /= scale
        return loss.detach()

    def answers(self, *checks: str) -> dict[str, Tensors]:
        return {check: getattr(self, check)() for check in checks or CHECKS}

    def forward(self) -> Tensors:
        """What comes out, for each batch size in turn."""
        _, computes = self._fresh()
        outputs = {}
        for place, size in enumerate(self.sizes):
            outputs[f"output {place}"] = self._forward(computes, self._inputs(size)).detach().cpu().double()
        return outputs

    def backward(self) -> Tensors:
        """Gradients of all parameters and of the inputs, for each batch size in turn."""
        own, computes = self._fresh()
        found: Tensors = {}
        for place, size in enumerate(self.sizes):
            own.zero_grad()
            inputs = self._inputs(size)
            self._backward(own, self._forward(computes, inputs), size)
            named = [*own.named_parameters(), ("inputs", inputs)]
            gradients = {f"{name} {place}".removesuffix(" 0"): each.grad for name, each in named}
            if self.precision == "fp16" and inputs.grad is not None:
                inputs.grad /= HALF_SCALE
            found |= {name: grad.detach().cpu().double() for name, grad in gradients.items() if grad is not None}
        return found

    def training(self) -> Tensors:
        """The losses of some steps, and the weights after them."""
        own, computes = self._fresh()
        optimizer = AdamW(own.parameters())
        scaler = self._scaler()
        losses = []
        for step in range(STEPS):
            size = self.sizes[step % len(self.sizes)]
            optimizer.zero_grad()
            losses.append(self._backward(own, self._forward(computes, self._inputs(size)), size, scaler))
            with self.bench.doing("update"):
                scaler.step(optimizer)
                scaler.update()
        weights = torch.cat([parameter.detach().cpu().double().flatten() for parameter in own.parameters()])
        return {"losses": torch.stack(losses).cpu().double(), "weights": weights}

    def pace(self, steps: int) -> list[float]:
        """Seconds of each of some steps of training, the device waited for after each."""
        own, computes = self._fresh()
        optimizer = AdamW(own.parameters())
        inputs, times = self._inputs(self.sizes[0]), []
        for _ in range(steps):
            began = time.perf_counter()
            optimizer.zero_grad()
            self._backward(own, self._forward(computes, inputs), self.sizes[0])
            optimizer.step()
            self.bench.wait()
            times.append(time.perf_counter() - began)
        return times

    def penalty(self) -> Tensors:
        """Gradients of the size of a gradient."""
        own, computes = self._fresh()
        inputs = self._inputs(self.sizes[0])
        loss = own.loss(self._forward(computes, inputs), self.sizes[0])
        with self.bench.doing("backward"):
            (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
        with self.bench.doing("double backward"):
            (gradient.square().sum() * 1e3).backward()
        named = [(name, each.grad) for name, each in own.named_parameters()]
        return {name: grad.detach().cpu().double() for name, grad in named if grad is not None}


@contextlib.contextmanager
def sdpa(name: str) -> Iterator[None]:
    """Attention by one kernel, as far as the machine has it."""
    if not name:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {"math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
    kernel = getattr(SDPBackend, kinds[name], None)
    if kernel is None:
        raise Skip(f"this torch has no {name} attention")
    try:
        with sdpa_kernel([kernel]):
            yield
    except RuntimeError as error:
        if "No available kernel" in str(error) or "no viable backend" in str(error).lower():
            raise Skip(f"no {name} attention for this device, precision and shape") from None
        raise


# How far apart ------------------------------------------------------------------------------------------------------


def distance(found: Tensors, right: Tensors) -> tuple[float, str]:
    """The worst tensor and how far it is off, relative to its size; infinite where anything is not finite.

    A tensor that is next to nothing counts as a share of all together: its rounding is that of the others.
    """
    whole = max(float(torch.stack([each.norm() for each in right.values()]).norm()), 1e-30)
    worst, name = 0.0, next(iter(right), "")
    for key, correct in right.items():
        other = found.get(key)
        if other is None or other.shape != correct.shape or not bool(torch.isfinite(other).all()):
            return float("inf"), key
        error = float((other - correct).norm()) / max(float(correct.norm()), SHARE * whole)
        if error > worst:
            worst, name = error, key
    return worst, name


def expectation(layer: Layer, sizes: Sequence[int], precision: str, right: dict[str, Tensors]) -> dict[str, float]:
    """What a right device is off by, check by check, by what the CPU is off by in fp32, or in bf16 for less."""
    measured_in = "fp32" if precision == "fp32" else "bf16"
    try:
        here = Work(layer, sizes, precision=measured_in).answers(*right)
    except RuntimeError:  # a CPU kernel that bf16 lacks
        measured_in = "fp32"
        here = Work(layer, sizes).answers(*right)
    ratio = ROUNDING[precision] / ROUNDING[measured_in]
    return {check: distance(here[check], right[check])[0] * ratio for check in right}


def bound(expected: float, precision: str, depth: int = 1) -> float:
    each = MARGIN * ROUNDING["fp32"] + (ROUNDING[precision] if precision != "fp32" else 0.0)
    return min(max(MARGIN * max(expected, ROUNDING[precision]), depth * each), MOST)
