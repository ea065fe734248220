"""The savepoint of a step: what forward and backward change beside gradients, copied within the process.

    savepoint = Savepoint(protected, objects)
    savepoint.take(device, 1e-4)       # as a step begins: buffers, generators; tens of microseconds
    if savepoint.holds():              # after a failure before the update: nothing else was changed
        savepoint.restore(device)

A step is committed now and then; one that fails before its optimizer has begun goes back to here and is tried again.
Parameters and what an optimizer keeps are not copied, as only the optimizer writes to them: that they were not written
to is seen by torch's own count. Objects that save themselves are asked each time, as long as that is quick. Where it is
not there is no savepoint, and the run goes back to its last commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from holdfast.state.flatten import Node
from holdfast.state.module_part import ModulePart
from holdfast.state.optimizer_part import OptimizerPart
from holdfast.state.parts import ObjectPart, ScalerPart
from holdfast.state.protected import Protected
from holdfast.state.rng import capture_rng, restore_rng
from holdfast.state.shared_out import local
from holdfast.state.torch_private import copy_all

_version = attrgetter("_version")
SMALL = 1 << 20
"""Bytes of a buffer that is copied each time. A larger one is a table as a rule, which nobody writes to."""
PASSED_OVER = 100
"""Steps after which an object that took long to ask is asked again."""


class Savepoint:
    """Of one run; each step's takes the place of the one before."""

    def __init__(self, protected: Protected, objects: Iterable[Any], *, constant: Iterable[str] = ()) -> None:
        """`objects` are those protected. `constant` are the names of parts that no step changes: loaders."""
        self._protected = protected
        found = list(objects)
        self._schedulers = [each for each in found if isinstance(each, LRScheduler)]
        self._optimizers = [each for each in found if isinstance(each, Optimizer)]
        unchanged = frozenset(constant)
        others = [part for name, part in protected.parts.items() if name not in unchanged and part.kind != "scheduler"]
        others = [part for part in others if not isinstance(part, (ModulePart, OptimizerPart, ScalerPart))]
        self._objects = [part for part in others if type(part) is ObjectPart]
        self._possible = len(self._objects) == len(others)
        """False if a module or an optimizer has a say in how it is saved: that takes long."""
        self._asking_s = (0.0, 0.0)
        """Seconds that objects took the last two times. Once may have been another process that had the processor."""
        self._passed_over = 0
        self._modules = [part for part in protected.parts.values() if isinstance(part, ModulePart)]
        self._base: list[Tensor] | None = None
        self._known: list[Tensor] = []
        self._parameters: list[Tensor] = []
        self._small: list[tuple[list[Tensor], list[Tensor]]] = []
        """Buffers and their copies, those of one device and dtype together: a list of several is copied one by one."""
        self._large: list[Tensor] = []
        """Larger buffers."""
        self._large_copies: list[Tensor] = []
        self._versions: list[int] = []
        self._written = 0
        self._marks: tuple[Any, ...] = ()
        self._asked: list[tuple[Node, dict[str, Tensor]]] | None = None
        self._rng: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def take(self, device: torch.device, patience: float) -> None:
        """As things are now. Whether tensors were replaced since the last look of `protected` is seen in `holds`.

        `patience`: seconds that asking objects may take.
        """
        if not self._possible:
            return
        tensors = self._protected.tensors()
        if tensors is not self._base:
            self._arrange(tensors)
        self._copy_buffers()
        self._written = sum(map(_version, self._parameters))
        self._marks = self._marked()
        self._asked = self._ask(patience)
        self._rng = capture_rng(device)

    def holds(self) -> bool:
        """Whether going back to here is exact. Looks at everything, so it is for steps that failed."""
        if not self._possible or self._rng is None or self._asked is None:
            return False
        self._protected.look()
        now = self._of_modules()
        if len(now) != len(self._known) or not all(map(is_, now, self._known)):
            return False
        if any(part.fresh for part in self._modules):  # buffers that are made anew in each forward
            return False
        return self._written == sum(map(_version, self._parameters)) and all(map(_same, self._marks, self._marked()))

    def restore(self, device: torch.device) -> None:
        assert self._rng is not None and self._asked is not None, "there is nothing to go back to"
        with torch.no_grad():
            for buffers, copies in (*self._small, (self._large, self._large_copies)):
                if buffers:
                    copy_all(buffers, copies)
        self._versions = list(map(_version, self._large))
        for part, (node, tensors) in zip(self._objects, self._asked, strict=True):
            part.restore(tensors.__getitem__, node, device)
        restore_rng(*self._rng, device)

    def _ask(self, patience: float) -> list[tuple[Node, dict[str, Tensor]]] | None:
        """What objects say of themselves; None if that takes too long, which is tried again now and then."""
        if not self._objects:
            return []
        self._passed_over += 1
        if min(self._asking_s) > patience and self._passed_over < PASSED_OVER:
            return None
        self._passed_over = 0
        began = time.perf_counter()
        said = [part.copied() for part in self._objects]
        self._asking_s = (self._asking_s[1], time.perf_counter() - began)
        return said

    def _arrange(self, tensors: list[Tensor]) -> None:
        self._base = tensors
        self._known = self._of_modules()
        parameters = {id(local(each)) for part in self._modules for each in part.named_params().values()}
        once = {id(each): each for each in self._known}
        self._parameters = [each for key, each in once.items() if key in parameters]
        buffers = [each for key, each in once.items() if key not in parameters]
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for each in buffers:
            if each.nbytes <= SMALL:
                alike.setdefault((each.device, each.dtype), []).append(each)
        self._small = [(group, [each.detach().clone() for each in group]) for group in alike.values()]
        self._large = [each for each in buffers if each.nbytes > SMALL]
        self._large_copies = [each.detach().clone() for each in self._large]
        self._versions = list(map(_version, self._large))

    def _of_modules(self) -> list[Tensor]:
        return [slot.tensor for part in self._modules for slot in part.slots]

    def _copy_buffers(self) -> None:
        """The small ones, and the large ones that were written to: torch's batch norm writes without counting."""
        if not self._small and not self._large:
            return
        with torch.no_grad():
            for group, copies in self._small:
                copy_all(copies, group)
            now = list(map(_version, self._large))
            for at in [at for at, version in enumerate(now) if version != self._versions[at]]:
                self._large_copies[at].copy_(self._large[at])
            self._versions = now

    def _marked(self) -> tuple[Any, ...]:
        """Numbers that a step has no business to change."""
        rates = [group.get("lr") for optimizer in self._optimizers for group in optimizer.param_groups]
        return (*rates, *(each.last_epoch for each in self._schedulers))


def _same(before: Any, now: Any) -> bool:
    return is_(before, now) or (not isinstance(before, Tensor) and bool(before == now))
