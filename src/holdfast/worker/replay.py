"""A step computed again, off the record: loss and gradients of some samples, and the run as it was before.

    replay = Replay(modules, home=device)
    here = replay.compute(fn, samples)                         # on the device, as the script computes
    there = replay.compute(fn, samples, on=torch.device("cpu"), plain=True)
    here.loss, here.gradients["model.head.weight"]

The CPU cannot repeat a device's dropout, so layers that draw random numbers are off in every replay. `plain` takes
autocast and TF32 away as well: what is left is the arithmetic the script means. Parameters go to the other device
as copies and come back as the memory they were, so a replay costs one way of copying and changes no bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data import batch as batches
from holdfast.state.rng import capture_rng, restore_rng
from holdfast.worker import step
from holdfast.worker.precision import as_plain_arithmetic

CPU = torch.device("cpu")
_OTHER_DEVICE = ("same device", "on different devices", "is on CPU", "Input type (", "Placeholder storage")
"""Out of torch's messages about tensors that are not where the others are."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a replay gave, on the CPU."""

    loss: float
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """By parameter; one that took no part has none."""

    @property
    def finite(self) -> bool:
        return self.loss - self.loss == 0.0 and self.first_bad_gradient() is None

    def first_bad_gradient(self) -> str | None:
        """The name of the first gradient, in the order of the modules, that holds an infinity or a NaN."""
        return next((name for name, grad in self.gradients.items() if not torch.isfinite(grad).all()), None)


class Replay:
    """Computes steps of one session again. `on_device` tells the session where it is meanwhile."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        *,
        home: torch.device,
        on_device: Callable[[torch.device], contextlib.AbstractContextManager[None]] | None = None,
    ) -> None:
        self.modules = dict(modules)
        self.home = home
        self.thorough = False
        """Whether every module is in evaluation mode, for scripts whose own code asks for the mode."""
        self._on_device = on_device or (lambda device: contextlib.nullcontext())

    def compute(
        self,
        fn: Callable[[Any], Any],
        batch: Any,
        *,
        on: torch.device | None = None,
        plain: bool = False,
        backward: bool = True,
        scale: float = 1.0,
        seed: int | None = None,
    ) -> Numbers:
        """Loss and gradients of `batch`. Raises what the script's function raises.

        `scale` is a GradScaler's: without it small gradients vanish in fp16. `seed` sets the generators, to find out
        whether the function draws random numbers although its layers do not.
        """
        device = self.home if on is None else on
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._nothing_happened())
            samples = batches.batch_size(batch)
            stack.enter_context(without_chance(self.modules.values(), samples=samples, thorough=self.thorough))
            if device != self.home:
                stack.enter_context(self._copies_on(device))
            stack.enter_context(self._on_device(device))
            if plain:
                stack.enter_context(as_plain_arithmetic(self.home))
            stack.enter_context(torch.enable_grad() if backward else torch.no_grad())
            if seed is not None:
                torch.manual_seed(seed)
            loss = step.as_loss(fn(batches.to_device(batches.cloned(batch), device)))
            if backward:
                (loss if scale == 1.0 else loss * scale).backward()
            return Numbers(float(loss.detach()), self._gradients(scale) if backward else {})

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Every trained parameter once, by `module.name`."""
        seen: set[int] = set()
        for prefix, module in self.modules.items():
            for name, parameter in module.named_parameters():
                if parameter.requires_grad and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{prefix}.{name}", parameter

    def _gradients(self, scale: float) -> dict[str, Tensor]:
        found = {name: parameter.grad for name, parameter in self.parameters() if parameter.grad is not None}
        copies = {name: _dense(grad).detach().to(CPU, torch.float32, copy=True) for name, grad in found.items()}
        return {name: grad / scale for name, grad in copies.items()} if scale != 1.0 else copies

    @contextlib.contextmanager
    def _nothing_happened(self) -> Iterator[None]:
        """Gradients, buffers and generators afterwards as before."""
        trained = [parameter for _, parameter in self.parameters()]
        gradients = [parameter.grad for parameter in trained]
        waiting = [(tensor, tensor.data) for tensor in self._untrained()]
        rng = capture_rng(self.home)
        for parameter in trained:
            parameter.grad = None
        try:
            # What a forward may write, statistics and averaged weights, it writes into copies.
            for tensor, data in waiting:
                tensor.data = data.clone()
            yield
        finally:
            for tensor, data in waiting:
                tensor.data = data
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.grad = gradient
            restore_rng(*rng, self.home)

    def _untrained(self) -> list[Tensor]:
        """Buffers, and parameters that no gradient reaches."""
        found = {
            id(tensor): tensor
            for module in self.modules.values()
            for tensor in _tensors_of(module)
            if not tensor.requires_grad
        }
        return list(found.values())

    @contextlib.contextmanager
    def _copies_on(self, device: torch.device) -> Iterator[None]:
        """Parameters and buffers are copies on `device`; the real ones wait where they are."""
        there = {id(tensor): tensor for module in self.modules.values() for tensor in _tensors_of(module)}
        waiting = [(tensor, tensor.data) for tensor in there.values()]
        try:
            for tensor, data in waiting:
                tensor.data = data.to(device, copy=True)
            yield
        finally:
            for tensor, data in waiting:
                if tensor.requires_grad:
                    tensor.grad = None
                tensor.data = data


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().to_dense() if gradient.is_sparse else gradient


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


@contextlib.contextmanager
def without_chance(modules: Any, *, samples: int | None = None, thorough: bool = False) -> Iterator[None]:
    """Dropout and its like off; everything else as in training.

    A model may return other things in evaluation mode, so only what draws is switched: by its type, its name, or its
    rate. `thorough` switches every module but those that normalise over the batch, for code that asks for the mode by
    itself. Of a single sample no batch statistics can be taken: then normalisation uses the running ones.
    """
    modes: list[tuple[nn.Module, bool]] = []
    rates: list[tuple[Any, float]] = []
    alone = samples is not None and samples < 2
    for part in {id(part): part for module in modules for part in module.modules()}.values():
        modes.append((part, part.training))
        if isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
            rates.append((part, part.dropout))
            part.dropout = 0.0
        elif isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.training = part.training and not alone
        elif thorough or _draws(part):
            part.training = False
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for rated, rate in rates:
            rated.dropout = rate


def _draws(part: nn.Module) -> bool:
    name = type(part).__name__.lower()
    return isinstance(part, nn.modules.dropout._DropoutNd) or "drop" in name or "stochastic" in name


def belongs_elsewhere(error: BaseException) -> bool:
    """The script's function uses a tensor of its own that stayed on the device: the replay says nothing about it."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OTHER_DEVICE)
