"""One step: forward, backward and update, whole or in pieces of exact weight.

    work = Work(fn=fn, batch=batch, optimizers=[optimizer], ...)     # what one session.step call asks for
    loss = perform(work, device, enter)                              # raises whatever goes wrong, half done

What happens inside a step is here; undoing half of one is the session's and the snapshot's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.base.board import Phase
from holdfast.base.errors import UserError
from holdfast.data.batch import Piece, split_batch, to_device
from holdfast.state.shared_out import local
from holdfast.state.torch_private import AnyBatchNorm

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
    updating: bool = False
    """The update has begun: parameters may be others than before."""
    on_loss: Callable[[Tensor], None] | None = None
    """Called with the loss of each piece, with its graph, before backward."""
    ahead: Callable[[Any, torch.device], Any] | None = None
    """Gives the batch where it is on the device already; see ahead.py."""
    together: Callable[[Tensor], Tensor] | None = None
    """Makes the gradients, and the loss, those of all ranks."""
    scale: float = 1.0
    """What the gradients of this rank count for, where backward itself averages over ranks."""
    before_piece: Callable[[bool], None] | None = None
    """Called with whether it is the last one: backward exchanges gradients then."""
    most_pieces: int | None = None
    """Where ranks exchange in each piece: as many as the rank with the fewest samples can make."""
    before_exchange: Callable[[Tensor], None] | None = None
    """Called before that backward, with the loss of the whole batch."""


def perform(work: Work, device: torch.device, enter: Callable[[Phase], None]) -> Tensor:
    """Forward, backward and update of one batch on one device. Raises whatever goes wrong, half done."""
    for optimizer in work.optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
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
    pieces = pieces_of(work)
    for number, (piece, weight) in enumerate(pieces, 1):
        if work.before_piece is not None:
            work.before_piece(number == len(pieces))
        enter(Phase.TO_DEVICE)
        moved = None if work.ahead is None else work.ahead(piece, device)
        if moved is None:
            moved = to_device(piece, device)
        enter(Phase.FORWARD)
        loss = as_loss(work.fn(moved))
        weighted = loss if weight == 1.0 else loss * weight
        part = weighted.detach()
        total = part if total is None else total + part
        if work.before_exchange is not None and number == len(pieces):
            work.before_exchange(total)
        if work.on_loss is not None:
            work.on_loss(loss)
        enter(Phase.BACKWARD)
        counted = weighted if work.scale == 1.0 else weighted * work.scale
        (counted if work.scaler is None else work.scaler.scale(counted)).backward()
    assert total is not None
    return total if work.together is None else work.together(total)


def _update(work: Work) -> None:
    work.updating = True
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
                norms.append(local(torch.nn.utils.clip_grad_norm_(_parameters(optimizer), work.clip)))
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
    found = [local(grad) for each in _parameters(optimizer) if (grad := each.grad) is not None]
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
    work.updating = True
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


def pieces_of(work: Work) -> Sequence[Piece]:
    """The batch in as many pieces as asked for, with weights that add up to one."""
    count = work.accumulate * work.pieces
    if work.most_pieces is not None:
        count = min(count, work.most_pieces)
    if count == 1:
        return [(work.batch, 1.0)]
    pieces = work.split(work.batch, count) if work.split is not None else split_batch(work.batch, count)
    if not pieces:
        raise UserError("the batch was split into nothing", cause="`split` returned no piece")
    return pieces


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
    return any(isinstance(part, AnyBatchNorm) and part.training for module in modules for part in module.modules())
