"""What a run protects, as tensors and JSON: the worker's side of a snapshot.

    protected = Protected({"model": model, "optimizer": optimizer, "data": loader}, device)
    layout = protected.layout(extra=rng_specs(device))
    ...
    if protected.changed():                          # at each boundary, first
        layout = protected.layout(extra=...)
    for entry, tensor in zip(layout.live, protected.tensors()): ...
    slot[layout.span(META)] = layout.pack_meta(protected.meta_json({"step": 120}))

    protected.restore(read, meta)                    # `read(name)` gives a CPU tensor, which is copied

`changed()` is the moment at which every object is looked at: `tensors()` and `meta()` speak of that moment.
The tensors are the live ones, so they are copied before the next step changes them (see `lazy()`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.base.errors import UserError
from holdfast.state.flatten import DTYPES, TORCH_DTYPES, Read, Slot
from holdfast.state.gradients import Gradients
from holdfast.state.layout import MODULE, RESERVED, SIZES, Layout, Shape, Spec, capacity_for, dump_json, plan
from holdfast.state.module_part import ModulePart, make_module
from holdfast.state.optimizer_part import OptimizerPart, make_optimizer
from holdfast.state.parts import Part, make_other
from holdfast.state.rng import capture_rng, restore_rng, rng_specs
from holdfast.state.shards import SHARED_OUT
from holdfast.state.shared_out import local

__all__ = ["Protected", "capture_rng", "dtype_of", "restore_rng", "rng_specs", "view_bytes"]

_HEADER_BYTES = 160
"""A header row of a tensor with a long name."""
_SPARE_BYTES = 1 << 20

KEPT = "session"
"""The part that a session protects by itself. Runs that were saved before there was one do not have it."""

FOREIGN_LIMIT = 16 << 20
"""Bytes of numpy memory that versions() reads. Above, a copy of the whole costs less than the reading."""


class Protected:
    """Every object a run protects, by name. One for a run."""

    def __init__(self, named: Mapping[str, Any], device: torch.device) -> None:
        self.device = torch.device(device)
        self._parts: dict[str, Part] = {}
        self._laid_out: list[Tensor] | None = None
        self._specs: list[Spec] = []
        self._tensors: list[Tensor] = []
        self._lazy: list[bool] = []
        self._aliases: dict[str, str] = {}
        self._shared_out: dict[str, Any] = {}
        self._held: dict[str, Place] = {}
        self._foreign: list[Tensor] = []
        self._unread = 0
        self._json: dict[str, tuple[Any, str]] = {}
        self._dirty = True
        self.gradients = Gradients()
        """Those that an update is still to use."""
        self.add(named)

    def add(self, named: Mapping[str, Any]) -> None:
        """Protect more objects. A name that is taken, or an object that cannot be saved, is a UserError."""
        # Modules first: the others may speak of their parameters.
        rank = {name: 0 if isinstance(target, torch.nn.Module) else 1 for name, target in named.items()}
        parts = dict(self._parts)
        for name in sorted(named, key=rank.__getitem__):
            if name in parts:
                raise UserError(f"`{name}` is protected already", hints=["give each object its own name, once"])
            _check_name(name)
            parts[name] = self._make(name, named[name])
        self._check_optimizers(named, parts)
        order = [*self._parts, *named]
        self._parts = {name: parts[name] for name in order}
        for name, target in named.items():
            if isinstance(target, Optimizer):
                self.gradients.follow(name, target)
        self._dirty = True

    def _make(self, name: str, target: Any) -> Part:
        if isinstance(target, torch.nn.Module):
            return make_module(name, target)
        if isinstance(target, Optimizer):
            return make_optimizer(name, target, self._named_params)
        return make_other(name, target)

    def _looked_at(self) -> list[Part]:
        return [*self._parts.values(), self.gradients]

    def _named_params(self) -> dict[str, Tensor]:
        modules = [part for part in self._parts.values() if isinstance(part, ModulePart)]
        return {name: param for part in modules for name, param in part.named_params().items()}

    def _check_optimizers(self, named: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
        """A parameter that is trained but not saved would start over after a fault."""
        known = {
            slot.tensor.data_ptr()
            for part in parts.values()
            if part.kind != "optimizer"
            for slot in (*part.slots, *part.fresh)
        }
        for name, target in named.items():
            if not isinstance(target, Optimizer):
                continue
            params = [param for group in target.param_groups for param in group["params"]]
            own = [local(param) for param in params]
            lost = [part for part in own if part.numel() and part.data_ptr() not in known]
            if lost:
                raise UserError(
                    f"`{name}` trains parameters that belong to no protected module",
                    cause=f"{len(lost)} of its {len(params)} would not be saved",
                    hints=["protect the module as well: session.protect(model=model, optimizer=optimizer)"],
                )

    @property
    def parts(self) -> Mapping[str, Part]:
        return self._parts

    # At each step -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at every object. What tensors(), meta() and the others say with look=False is as of now."""
        force, self._dirty = self._dirty, False
        if force:
            # After a restore every object has other memory, once. That is no sign that it moves at each look.
            self._held = {name: place for name, place in self._held.items() if place.own}
        replaced = force
        for part in self._looked_at():
            replaced = part.refresh(force=force) or replaced
        if not self._hold_fresh() or replaced:
            self._gather()

    def changed(self, *, look: bool = True) -> bool:
        """True if a tensor came, went, was replaced or has another form than at the last layout()."""
        if look or self._dirty:
            self.look()
        return self._tensors is not self._laid_out

    def tensors(self) -> list[Tensor]:
        """The live tensors in layout order. The same list as long as changed() is False."""
        if self._dirty:
            self.look()
        return self._tensors

    def lazy(self) -> list[bool]:
        """For each of tensors(): only optimizer.step() changes it; it may be copied during the next forward.

        Buffers and everything else change at other times and are copied at the boundary.
        """
        return self._lazy

    def meta(self, *, look: bool = True) -> dict[str, Any]:
        """Everything that is not a tensor, JSON-able. Do not change its values, they are kept."""
        if look or self._dirty:
            self.look()
        meta: dict[str, Any] = {
            "parts": {name: part.kind for name, part in self._parts.items()},
            "state": {name: part.skeleton() for name, part in self._parts.items()},
        }
        if self._aliases:
            meta["aliases"] = self._aliases
        if self.gradients.node:
            meta["gradients"] = self.gradients.node
        if self._shared_out:
            meta[SHARED_OUT] = self._shared_out
        return meta

    def meta_json(self, extra: Mapping[str, Any] | None = None, *, look: bool = True) -> str:
        """meta() with the keys of `extra` beside its own, as JSON. What did not change is not rewritten."""
        meta = self.meta(look=look)
        state = ",".join(f"{dump_json(name)}:{self._cached(name, node)}" for name, node in meta.pop("state").items())
        rest = dump_json({**meta, **(extra or {})})
        return f'{rest[:-1]},"state":{{{state}}}}}'

    def _cached(self, name: str, node: Any) -> str:
        known = self._json.get(name)
        if known is None or known[0] is not node:
            known = self._json[name] = node, dump_json(node)
        return known[1]

    def versions(self) -> tuple[int, ...]:
        """Differs from an earlier one if a tensor was written to since: torch counts, numpy's memory is read.

        Writes through `tensor.data` leave no trace in torch and are missed. Arrays too large to read at each
        step are always taken to be written to.
        """
        too_large = sum(tensor.nbytes for tensor in self._foreign) > FOREIGN_LIMIT
        self._unread += too_large
        digests = () if too_large else map(_crc, self._foreign)
        return sum(map(_version, self._tensors)), self._unread, *digests

    def stamp(self, *, look: bool = True) -> tuple[object, ...]:
        """Differs from an earlier one if anything protected was written to since, tensor or not."""
        text = self.meta_json(look=look)
        return self._tensors is self._laid_out, len(self._tensors), *self.versions(), text

    def _hold_fresh(self) -> bool:
        """Give tensors that are made anew at each look a place that stays. False if the places do not fit."""
        held = self._held
        names = 0
        for part in self._parts.values():
            for slot in part.fresh:
                names += 1
                place = held.get(slot.name)
                if place is None or not place.take(slot.tensor):
                    return False
        return names == len(held)

    def _new_places(self) -> None:
        """A tensor that has moved before gets memory of ours; one that stays where it is is used directly."""
        held = self._held
        self._held, self._foreign = {}, []
        for slot in (slot for part in self._parts.values() for slot in part.fresh):
            place = held.get(slot.name)
            if place is None or not place.take(slot.tensor):
                place = Place(slot.tensor, own=place is not None and place.moved)
            self._held[slot.name] = place
            if slot.foreign and not place.own:
                self._foreign.append(place.tensor)

    def _gather(self) -> None:
        """Build the list of tensors anew. A tensor seen before under another name becomes an alias of it."""
        self._new_places()
        trained = self._trained()
        seen: dict[int, str] = {}
        self._aliases = {}
        rows: list[tuple[Spec, Tensor, bool]] = []
        for part in self._looked_at():
            for slot in part.slots:
                first = seen.setdefault(id(slot.tensor), slot.name)
                if first is slot.name:
                    rows.append((_spec(slot), slot.tensor, slot.lazy or id(slot.tensor) in trained))
                else:
                    self._aliases[slot.name] = first
            rows += [(_spec(slot), self._held[slot.name].tensor, False) for slot in part.fresh]
        kept = (slot for part in self._looked_at() for slot in part.slots if slot.name not in self._aliases)
        self._shared_out = _parts_of(kept)
        rows.sort(key=lambda row: -SIZES[row[0][1]])
        specs = [spec for spec, _, _ in rows]
        tensors = [tensor for _, tensor, _ in rows]
        self._lazy = [lazy for _, _, lazy in rows]
        if specs != self._specs or not all(map(is_, tensors, self._tensors)):
            self._specs, self._tensors = specs, tensors

    def _trained(self) -> set[int]:
        parts = [part for part in self._parts.values() if isinstance(part, OptimizerPart)]
        return {id(local(param)) for part in parts for param in part.params()}

    # Now and then -------------------------------------------------------------------------------------------

    def layout(self, *, extra: Iterable[Spec] = (), meta_capacity: int | None = None) -> Layout:
        """The place of each tensor as things are now. `extra` entries (`rng_specs`) get a place too."""
        self.look()
        self._laid_out = self._tensors
        capacity = capacity_for(len(self.meta_json(look=False))) if meta_capacity is None else meta_capacity
        return plan(self._specs, extra=extra, meta_capacity=capacity)

    def shared_out_in(self, shapes: Mapping[str, Shape]) -> set[str]:
        """Which tensors of a saved state have to be cut for this rank. Optimizers may have no state yet."""
        found = set(self.meta().get(SHARED_OUT, {}).get("names", ()))
        for part in self._parts.values():
            if isinstance(part, OptimizerPart):
                found |= part.shared_out_in(shapes)
        return (found | self.gradients.shared_out_in(shapes)) & shapes.keys()

    def restore(self, read: Read, meta: Mapping[str, Any]) -> None:
        """Become what was saved. Live tensors are written in place, so what refers to them stays right."""
        self._check_parts(meta["parts"])
        aliases: Mapping[str, str] = meta.get("aliases", {})

        def find(name: str) -> Tensor:
            try:
                return read(aliases.get(name, name))
            except KeyError as error:
                raise UserError(
                    f"{name} is not in the saved state",
                    hints=["resume with the script that started the run, or start a new run"],
                ) from error

        # Optimizers last: a scheduler's load_state_dict may set learning rates on its way.
        rank = {MODULE: 0, "optimizer": 2}
        with torch.no_grad():
            for part in sorted(self._parts.values(), key=lambda part: rank.get(part.kind, 1)):
                if part.name != KEPT or KEPT in meta["state"]:
                    part.restore(find, meta["state"][part.name], self.device)
            self.gradients.restore(find, meta.get("gradients"), self.device)
        self._dirty = True

    def _check_parts(self, saved: Mapping[str, str]) -> None:
        here = {name: part.kind for name, part in self._parts.items()}
        if {KEPT: "object", **saved} == {KEPT: "object", **here}:
            return
        hints = ["resume with the script that started the run, or start a new run"]
        for name in [*here, *saved]:
            if name not in saved:
                raise UserError(f"`{name}` is protected here, but the run that is resumed did not save it", hints=hints)
            if name not in here:
                raise UserError(
                    f"`{name}` was saved by the run that is resumed, but is not protected here", hints=hints
                )
            if saved[name] != here[name]:
                raise UserError(f"`{name}` was saved as {saved[name]}, here it is {here[name]}", hints=hints)

    def move(self, device: torch.device) -> None:
        """Modules and what belongs to them go to `device`. Parameters stay the same objects."""
        self.device = torch.device(device)
        with torch.no_grad():
            # Modules first: optimizer state follows the device of its parameter.
            for part in sorted(self._parts.values(), key=lambda part: part.kind != MODULE):
                part.move(self.device)
        self._dirty = True

    def estimate_bytes(self) -> int:
        """How large a slot must be once training runs: the optimizer's state to come and some room are in."""
        self.look()
        now = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)
        to_come = sum(part.bytes_to_come() for part in self._parts.values())
        rows = len(self._tensors) + 4 * sum(len(part.slots) for part in self._parts.values())
        meta = capacity_for(len(self.meta_json(look=False)))
        return now + to_come + rows * _HEADER_BYTES + meta + _SPARE_BYTES


class Place:
    """A tensor of a fixed identity that follows one which is made anew at each look."""

    def __init__(self, source: Tensor, *, own: bool) -> None:
        self.own = own
        self.moved = own
        self.tensor = source.detach().clone(memory_format=torch.contiguous_format) if own else source

    def take(self, source: Tensor) -> bool:
        """Hold what `source` holds now. False if that needs another place."""
        if source is self.tensor:
            return True
        if source.dtype != self.tensor.dtype or source.shape != self.tensor.shape:
            return False
        if source.device != self.tensor.device:
            return False
        if not self.own:
            # The same memory: we hold it alive, so nobody else can have got its address.
            self.moved = source.data_ptr() != self.tensor.data_ptr() or source.stride() != self.tensor.stride()
            return not self.moved
        if source.device.type != "cpu" or not torch.equal(source, self.tensor):
            with torch.no_grad():
                self.tensor.copy_(source)
        return True


_version = attrgetter("_version")


def _crc(tensor: Tensor) -> int:
    """For memory that others write to behind torch's back: numpy arrays."""
    return zlib.crc32(tensor.numpy().tobytes())


def dtype_of(code: str) -> torch.dtype:
    """The torch dtype of a safetensors one."""
    return TORCH_DTYPES[code]


def view_bytes(data: Tensor, code: str, shape: Shape) -> Tensor:
    """Bytes of a slot, a file or a device buffer as the tensor of a layout entry."""
    return data.view(TORCH_DTYPES[code]).view(shape)


def _spec(slot: Slot) -> Spec:
    tensor = slot.tensor
    return slot.name, DTYPES[tensor.dtype], tuple(tensor.shape)


def _parts_of(slots: Iterable[Slot]) -> dict[str, Any]:
    """Which tensors are this rank's parts, and which part of how many; {} for a state that is whole."""
    found = {slot.name: slot.shard for slot in slots if slot.shard is not None}
    if not found:
        return {}
    if len(set(found.values())) > 1:
        raise UserError(
            "the tensors of this run are shared out in different ways",
            cause=", ".join(sorted({f"part {each.index} of {each.count}" for each in found.values()})),
            hints=["use one device mesh for every `fully_shard`"],
        )
    shard = next(iter(found.values()))
    return {"index": shard.index, "count": shard.count, "names": list(found)}


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name or "." in name or name == RESERVED:
        raise UserError(f"{name!r} cannot be the name of a protected object", hints=["use a plain word: model, world"])
