"""Modules that the script has put into DistributedDataParallel or FSDP2: they exchange gradients inside backward.

    wrapped = Wrapped(active=True)             # before the script runs: it hears of every wrapper that is made
    wrapped.parameters()                       # whose gradients need no exchange of ours
    wrapped.exchange(last)                     # before each piece of a batch: only the last one exchanges
    wrapped.follow(dist.group.WORLD)           # the process group is another one

A wrapper averages over ranks as if each had an equal part of the batch. Group weighs the loss so that the parts count
as they are. FSDP2 (`fully_shard`) does the same with parameters of which each rank holds a part; it exchanges in
forward too, and cannot follow to another process group.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel


class _SteadyReducer:
    """A wrapper's reducer that keeps the buckets it was made with.

    torch sorts gradients into other buckets after the first step. With three ranks or more, the place of a number in
    its bucket decides in which order the ranks' numbers are added. A rank that was replaced begins with the first
    buckets again, so the sums after a loss would be rounded otherwise than without it.
    """

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        """Called before each forward. torch has noted every gradient of the last backward, for buckets to come."""
        self._reducer._reset_state()
        return False


class Wrapped:
    """The wrappers of one process group of ours."""

    def __init__(self, *, active: bool) -> None:
        self._active = active
        """Whether they exchange. Where a broken group cannot be built anew inside a step, Group does it for them."""
        self._known: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._parameters: set[int] | None = None
        self._counted = 0
        self.parts = False
        """Ranks hold parts of the parameters (FSDP2)."""
        self._hook = register_module_module_registration_hook(self._made)

    def __bool__(self) -> bool:
        return self.parts or (self._active and len(self._known) > 0)

    def _made(self, outer: torch.nn.Module, name: str, inner: Any) -> None:
        if name == "module" and isinstance(outer, DistributedDataParallel):
            self._known.add(outer)
            self._parameters = None

    def close(self) -> None:
        self._hook.remove()

    def parameters(self) -> set[int]:
        """The ids of those that wrappers exchange. A wrapper says which it leaves alone."""
        if self._parameters is not None and self._counted == len(self._known):
            return self._parameters
        found: set[int] = set()
        for each in self._known if self._active else ():
            ignored = set(getattr(each, "parameters_to_ignore", ()))
            found |= {id(value) for name, value in each.module.named_parameters() if name not in ignored}
        self._parameters, self._counted = found, len(self._known)
        return found

    def all(self) -> list[torch.nn.Parameter]:
        """The parameters of all wrappers, each once, that get gradients."""
        found = {id(value): value for each in self._known for value in each.module.parameters() if value.requires_grad}
        return list(found.values())

    def stop_exchanging(self) -> None:
        """From the next step on Group exchanges gradients for the wrappers, after backward."""
        if self._active:
            self._active, self._parameters = False, None

    def silence(self) -> None:
        self.exchange(False)

    def exchange(self, last: bool) -> None:
        for each in self._known:
            each.require_backward_grad_sync = last
            reducer: Any = each.reducer
            # With unused parameters torch keeps its buckets itself; a static graph is counted by what is reset below.
            changes = not each.find_unused_parameters and not each.static_graph
            if changes and type(reducer) is not _SteadyReducer:
                each.reducer = _SteadyReducer(reducer)  # type: ignore[assignment]

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, no wrapper exchanges anything, neither gradients nor buffers."""
        names = ("require_backward_grad_sync", "require_forward_param_sync", "static_graph")
        before = [(each, [getattr(each, name) for name in names]) for each in list(self._known)]
        self.silence()
        for each, _ in before:
            # A static graph exchanges at the end of the first backward, whether gradients are synchronised or not.
            each.require_forward_param_sync = each.static_graph = False
        try:
            yield
        finally:
            for each, values in before:
                for name, value in zip(names, values, strict=True):
                    setattr(each, name, value)

    @property
    def takes_no_step(self) -> bool:
        """Whether no step may follow what was computed apart: parameters stay whole, or torch has counted gradients for
        a static graph."""
        return self.parts or any(each.static_graph for each in self._known)

    @staticmethod
    def make_whole(modules: Iterable[torch.nn.Module]) -> None:
        """Each rank holds all parameters of modules of FSDP2 from here on, and computes without the others.

        All ranks have to call it. How a module was told to share its parameters out cannot be asked, so there is no way
        back: no step may be taken afterwards.
        """
        found: list[Any] = [
            each for module in modules for each in module.modules() if hasattr(each, "set_requires_gradient_sync")
        ]
        for each in found:
            each.set_requires_gradient_sync(False, recurse=False)
            each.set_reshard_after_backward(False, recurse=False)
            each.set_reshard_after_forward(False, recurse=False)  # AttributeError before torch 2.7
            each.unshard()

    def follow(self, group: Any) -> None:
        """What was exchanged over the old group is forgotten, a backward that was not finished too."""
        for each in self._known:
            each._update_process_group(group)
