"""Gradients that are still to be used: a script that accumulates them over several batches has some between updates.

    part = Gradients()
    part.follow("optimizer", optimizer)
    part.refresh(); part.slots, part.node        # only those that the next update will use
    part.restore(read, node, device)

A gradient that came, or was added to, since the last update of its optimizer belongs to the state. One that was there
at that update is used up: nearly every loop clears it before the next backward, so it is not saved. A loop that does
not is seen at its next update, and from then on its gradients are saved each time. Until then they are saved if they
are small. If not, a restored process leaves a mark in the place of one: if it is still there at the update, the run
stops with an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.base.errors import UserError
from holdfast.state.flatten import DTYPES, Node, Read, Slot, laid_out, order_of
from holdfast.state.parts import Part
from holdfast.state.shared_out import is_shared_out, like, local, shard_of

_USED = "_holdfast_used"
"""The attribute of a gradient that says at which version an update used it."""
SMALL = 32 << 20
"""Bytes of gradients that are saved on suspicion."""
_LOST = "_holdfast_lost"
"""The attribute of a gradient that stands where one was that was not saved."""


class _Followed:
    """The gradients of one optimizer."""

    def __init__(self, name: str, optimizer: Optimizer) -> None:
        self.name = name
        self.optimizer = optimizer
        self.updates = 0
        self.ours = False
        """The session made the last update: it clears the gradients before the next."""
        self.kept = False
        """The script adds to gradients that an update has used."""
        self.cleared = False
        """The script was seen to clear them between two updates."""

    def gradients(self) -> Iterator[tuple[int, Tensor]]:
        index = 0
        for group in self.optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    yield index, param.grad
                index += 1

    def before(self) -> None:
        """An update begins: are there gradients that the last one has used?"""
        if self.ours:
            return
        kept = False
        for _, grad in self.gradients():
            if hasattr(grad, _LOST):
                raise _lost(self.name)
            kept = kept or hasattr(grad, _USED)
        self.kept = self.kept or kept
        self.cleared = self.cleared or (self.updates > 0 and not kept)

    def after(self, *, ours: bool) -> None:
        """An update is over."""
        self.ours = ours
        self.updates += 1
        if not ours:
            for _, grad in self.gradients():
                setattr(grad, _USED, grad._version)

    def pending(self) -> list[tuple[int, Tensor]]:
        """Those that the next update will use."""
        if self.ours and not self.kept:
            return []
        found = [each for each in self.gradients() if not hasattr(each[1], _LOST)]
        suspected = not self.cleared and sum(grad.nbytes for _, grad in found) <= SMALL
        return (
            found
            if self.kept or suspected
            else [each for each in found if getattr(each[1], _USED, None) != each[1]._version]
        )

    def in_doubt(self) -> int | None:
        """One gradient that was used, of a script that nobody has seen clear them yet."""
        if self.ours or self.kept or self.cleared or sum(grad.nbytes for _, grad in self.gradients()) <= SMALL:
            return None
        used = (index for index, grad in self.gradients() if hasattr(grad, _USED) or hasattr(grad, _LOST))
        return next(used, None)


class Gradients(Part):
    """Those of all protected optimizers. Without any to save it adds nothing to a snapshot."""

    kind = "gradients"

    def __init__(self) -> None:
        super().__init__("holdfast.gradients")
        self.by_session = False
        """True while the session itself makes an update."""
        self.node: Node = None
        self._followed: dict[str, _Followed] = {}
        self._seen: list[Tensor] = []

    def follow(self, name: str, optimizer: Optimizer) -> None:
        followed = self._followed[name] = _Followed(name, optimizer)

        def before(_: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            if len(args) < 2 and not options:
                followed.before()
            else:  # a closure clears the gradients itself, inside of the update
                followed.cleared = True

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(lambda *_: followed.after(ours=self.by_session))

    def refresh(self, *, force: bool = False) -> bool:
        found = {name: each.pending() for name, each in self._followed.items()}
        doubts = {name: at for name, each in self._followed.items() if (at := each.in_doubt()) is not None}
        seen = [grad for pending in found.values() for _, grad in pending]
        if not seen and not doubts:
            replaced, self.slots, self.node, self._seen = bool(self._seen), [], None, []
            return replaced
        self.node = self._described(found, doubts)
        if not force and len(seen) == len(self._seen) and all(a is b for a, b in zip(seen, self._seen, strict=True)):
            return False
        self._seen = seen
        self.slots = [
            Slot(f"{self.name}.{name}.{index}", _dense(local(grad), name), shard=shard_of(grad))
            for name, pending in found.items()
            for index, grad in pending
        ]
        return True

    def _described(self, found: Mapping[str, list[tuple[int, Tensor]]], doubts: Mapping[str, int]) -> Node:
        node: dict[str, Any] = {}
        for name, pending in found.items():
            if pending or name in doubts:
                orders = [
                    [index, list(order)] for index, grad in pending if (order := order_of(local(grad))) is not None
                ]
                rows = [index for index, _ in pending]
                node[name] = {"of": rows, "orders": orders, "doubt": doubts.get(name), "kept": self._kept(name)}
        return node

    def _kept(self, name: str) -> bool:
        return self._followed[name].kept

    def shared_out_in(self, shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
        """Of the saved gradients with these shapes, those that are shared out as their parameter is."""
        found = set()
        for name, followed in self._followed.items():
            params = [param for group in followed.optimizer.param_groups for param in group["params"]]
            for index, param in enumerate(params):
                full = f"{self.name}.{name}.{index}"
                if is_shared_out(param) and shapes.get(full) == tuple(param.shape):
                    found.add(full)
        return found

    def skeleton(self) -> Node:
        return self.node

    def restore(self, read: Read, node: Node, device: torch.device) -> None:
        for name, followed in self._followed.items():
            saved = (node or {}).get(name) or {}
            orders = {int(index): order for index, order in saved.get("orders", [])}
            rows = set(saved.get("of", []))
            doubt = saved.get("doubt")
            followed.kept = bool(saved.get("kept", followed.kept))
            params = [param for group in followed.optimizer.param_groups for param in group["params"]]
            for index, param in enumerate(params):
                param.grad = None
                if index in rows:
                    stored = read(f"{self.name}.{name}.{index}")
                    param.grad = like(laid_out(stored, orders.get(index), param.device), param)
                elif index == doubt:
                    param.grad = torch.zeros_like(param)
                    setattr(param.grad, _LOST, True)
        self.refresh(force=True)


def _dense(grad: Tensor, name: str) -> Tensor:
    if grad.layout is torch.strided and grad.dtype in DTYPES:
        return grad.detach() if grad.requires_grad else grad
    raise UserError(
        f"`{name}` has gradients that wait for an update and cannot be saved: {grad.layout}, {grad.dtype}",
        cause="gradients that are accumulated over several batches belong to the state of the run",
        hints=["update at each batch, or work with dense gradients (`sparse=False`)"],
    )


def _lost(name: str) -> UserError:
    return UserError(
        f"`{name}` adds to gradients that it has used already, and those were not saved when a worker was lost",
        cause="nothing clears the gradients between two updates, and this was not known yet",
        hints=["call `optimizer.zero_grad()` before each backward", "start a new run"],
    )
