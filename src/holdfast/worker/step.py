"""One step: forward, backward and update, whole or in pieces of exact weight.

    work = Work(fn=fn, batch=batch, optimizers=[optimizer], ...)     # what one session.step call asks for
    loss = perform(work, device, enter)                              # raises whatever goes wrong, half done

What happens inside a step is here; undoing half of one is the session's and the snapshot's.
"""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.base.board import Phase
from holdfast.base.errors import UserError

Piece = tuple[Any, float]
Splitter = Callable[[Any, int], Sequence[Piece]]


class Loss:
    """The loss of a step. Reading it waits for the device; keeping it does not."""

    __slots__ = ("_value", "_waiting", "tensor")

    def __init__(self, tensor: Tensor, waiting: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.tensor = tensor
        """The loss as it is on the device, without its graph."""
        self._value: float | None = None
        self._waiting = waiting

    def item(self) -> float:
        if self._value is None:
            with self._waiting():
                self._value = float(self.tensor)
        return self._value

    __float__ = item

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __repr__(self) -> str:
        return f"Loss({self.item()!r})"


@dataclass(slots=True)
class Work:
    """What one `session.step` call asks for."""

    fn: Callable[[Any], Any]
    batch: Any
    optimizers: list[torch.optim.Optimizer]
    scaler: Any | None
    clip: float | None
    accumulate: int
    split: Splitter | None
    pieces: int = 1
    """How often memory made us split, on top of `accumulate`."""
    watch: bool = False
    """Whether the norm of the gradients is wanted."""
    norm: Tensor | None = None
    """That norm, on the device, once they are there. None under a GradScaler, which judges them itself."""
    together: Callable[[Tensor], Tensor] | None = None
    """Makes the gradients, and the loss, those of all ranks."""


def perform(work: Work, device: torch.device, enter: Callable[[Phase], None]) -> Tensor:
    """Forward, backward and update of one batch on one device. Raises whatever goes wrong, half done."""
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in work.optimizers):
        return _perform_closure(work, device, enter)
    for optimizer in work.optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss = _gradients(work, device, enter)
    enter(Phase.OPTIMIZER)
    _update(work)
    return loss


def _gradients(work: Work, device: torch.device, enter: Callable[[Phase], None]) -> Tensor:
    """Accumulate the gradients of every piece, each with its exact weight; returns the whole batch's loss."""
    total: Tensor | None = None
    for piece, weight in pieces_of(work):
        enter(Phase.TO_DEVICE)
        moved = to_device(piece, device)
        enter(Phase.FORWARD)
        loss = as_loss(work.fn(moved))
        weighted = loss if weight == 1.0 else loss * weight
        enter(Phase.BACKWARD)
        (weighted if work.scaler is None else work.scaler.scale(weighted)).backward()
        part = weighted.detach()
        total = part if total is None else total + part
    assert total is not None
    return total if work.together is None else work.together(total)


def _update(work: Work) -> None:
    scaler = work.scaler
    norms = []
    for optimizer in work.optimizers:
        if work.clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            if work.watch and scaler is None and _half(optimizer):
                norms.append(_norm(optimizer))
                torch.nn.utils.clip_grad_norm_(_parameters(optimizer), work.clip)
            else:
                norms.append(torch.nn.utils.clip_grad_norm_(_parameters(optimizer), work.clip))
        elif work.watch and scaler is None:
            norms.append(_norm(optimizer))
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
    if scaler is not None:
        scaler.update()
    elif norms:
        work.norm = norms[0] if len(norms) == 1 else torch.stack([norm.to(norms[0].device) for norm in norms]).sum()


def _norm(optimizer: torch.optim.Optimizer) -> Tensor:
    """Of all gradients, without waiting for the device; in fp32, where a sum of squares has room."""
    found = [grad for each in _parameters(optimizer) if (grad := each.grad) is not None]
    gradients = [grad.coalesce().values() if grad.is_sparse else grad for grad in found]
    if _half(optimizer):
        gradients = [grad.float() for grad in gradients]
    return torch.nn.utils.get_total_norm(gradients)


def _half(optimizer: torch.optim.Optimizer) -> bool:
    return any(each.dtype is torch.float16 for each in _parameters(optimizer))


def _perform_closure(work: Work, device: torch.device, enter: Callable[[Phase], None]) -> Tensor:
    """Optimizers that evaluate the loss several times in one update."""
    first: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = _gradients(work, device, enter)
        first.append(loss)
        enter(Phase.OPTIMIZER)
        if work.clip is not None:
            torch.nn.utils.clip_grad_norm_(_parameters(optimizer), work.clip)
        return loss

    if len(work.optimizers) != 1 or work.scaler is not None:
        raise UserError("LBFGS takes a step of its own, without a GradScaler or another optimizer beside it")
    optimizer = work.optimizers[0]
    optimizer.step(closure)  # type: ignore[arg-type]
    return first[0]


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def as_loss(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise UserError(
            "the function given to session.step must return the loss, a tensor with one number",
            cause=f"it returned {shape}",
            hints=["return the mean over the batch, for example `cross_entropy(model(x), y)`"],
        )
    if not value.requires_grad:
        raise UserError(
            "the loss given to session.step has no gradient",
            cause="no protected parameter that requires one took part in it, or it was detached",
            hints=["return it as it comes out of the model: without .item(), .detach() and torch.no_grad()"],
        )
    return value if value.dim() == 0 else value.reshape(())


# -- batches ------------------------------------------------------------------------------------------------


def to_device(value: Any, device: torch.device) -> Any:
    """A batch on the device: tensors in any nest of lists, tuples and dicts, and anything with `.to`."""
    if isinstance(value, Tensor):
        return (
            value.to(device, non_blocking=value.device.type == "cpu" and value.is_pinned())
            if _elsewhere(value, device)
            else value
        )
    if isinstance(value, dict):
        return _like(value, {key: to_device(item, device) for key, item in value.items()})
    if isinstance(value, tuple):
        moved = [to_device(item, device) for item in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    if isinstance(value, list):
        return [to_device(item, device) for item in value]
    return value.to(device) if hasattr(value, "to") and not isinstance(value, type) else value


def _elsewhere(value: Tensor, device: torch.device) -> bool:
    return value.device != device


def pieces_of(work: Work) -> Sequence[Piece]:
    """The batch in as many pieces as asked for, with weights that add up to one."""
    count = work.accumulate * work.pieces
    if count == 1:
        return [(work.batch, 1.0)]
    pieces = work.split(work.batch, count) if work.split is not None else split_batch(work.batch, count)
    if not pieces:
        raise UserError("the batch was split into nothing", cause="`split` returned no piece")
    return pieces


def batch_size(batch: Any) -> int | None:
    """The number of samples: the common first dimension of the batch's tensors, or None."""
    sizes = {tensor.shape[0] for tensor in tensors_of(batch) if tensor.dim() > 0}
    return sizes.pop() if len(sizes) == 1 else None


def split_batch(batch: Any, count: int) -> list[Piece]:
    """Cut a batch along its first dimension; each piece weighs as many samples as it holds.

    That is exact for a loss that is a mean over samples. Others pass their own `split`.
    """
    size = batch_size(batch)
    if size is None:
        raise UserError(
            "this batch cannot be split",
            cause="its tensors do not share a first dimension",
            hints=["pass `split=` to session.step: a function (batch, count) -> [(piece, weight), …]"],
        )
    count = min(count, size)
    bounds = [round(index * size / count) for index in range(count + 1)]
    return [
        (_cut(batch, start, stop, size), (stop - start) / size)
        for start, stop in itertools.pairwise(bounds)
        if stop > start
    ]


def cloned(value: Any) -> Any:
    """The same batch in memory of its own: a step may change what it is given."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return _like(value, {key: cloned(item) for key, item in value.items()})
    if isinstance(value, tuple):
        parts = [cloned(item) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return [cloned(item) for item in value] if isinstance(value, list) else value


def take(batch: Any, rows: Sequence[int]) -> Any:
    """These samples of a batch, in this order. The batch must have a size."""
    size = batch_size(batch)
    assert size is not None
    return _pick(batch, list(rows), size)


def _pick(value: Any, rows: list[int], size: int) -> Any:
    if isinstance(value, Tensor):
        return value[rows] if value.dim() > 0 and value.shape[0] == size else value
    if isinstance(value, np.ndarray):
        return value[rows] if value.ndim > 0 and len(value) == size else value
    if isinstance(value, dict):
        return _like(value, {key: _pick(item, rows, size) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        named = hasattr(value, "_fields")
        if len(value) == size and not named and not any(True for _ in tensors_of(value)):
            return type(value)(value[row] for row in rows)
        parts = [_pick(item, rows, size) for item in value]
        return type(value)(*parts) if named else type(value)(parts)
    return value


def _cut(value: Any, start: int, stop: int, size: int) -> Any:
    if isinstance(value, Tensor):
        return value[start:stop] if value.dim() > 0 and value.shape[0] == size else value
    if isinstance(value, np.ndarray):
        return value[start:stop] if value.ndim > 0 and len(value) == size else value
    if isinstance(value, dict):
        return _like(value, {key: _cut(item, start, stop, size) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        named = hasattr(value, "_fields")
        if len(value) == size and not named and not any(True for _ in tensors_of(value)):
            return value[start:stop]  # one thing a sample: file names, ids
        parts = [_cut(item, start, stop, size) for item in value]
        return type(value)(*parts) if named else type(value)(parts)
    return value


def _like(value: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """A dict of the same kind: an OrderedDict, a defaultdict, one of the user's own."""
    if type(value) is dict:
        return items
    made = copy.copy(value)
    made.update(items)
    return made


def tensors_of(value: Any) -> Iterable[Tensor]:
    """Every tensor in a nest of lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def free_memory(device: torch.device) -> None:
    """Let go of everything that can be let go of before a step is tried again."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif device.type == "xpu":
        torch.xpu.empty_cache()


def mixes_samples(modules: Iterable[torch.nn.Module]) -> bool:
    """True if a module sees its whole batch at once in training, so that pieces are not the same computation."""
    return any(
        isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.training
        for module in modules
        for part in module.modules()
    )
