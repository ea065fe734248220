"""An optimizer as live tensors, with a restore of our own.

    part = make_optimizer("optimizer", optimizer, names)

torch's Optimizer.load_state_dict casts fp32 state to the dtype of the parameter and replaces every tensor; a
rollback here copies into the tensors that are there and keeps their dtype. State tensors are named by the
position of their parameter: `optimizer.state.3.exp_avg`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.base.errors import UserError
from holdfast.state.flatten import DTYPES, Flattener, Node, Read, Slot, laid_out, order_of, unflatten
from holdfast.state.parts import ObjectPart, Part, fill, is_same, is_successor
from holdfast.state.shared_out import is_shared_out, like, local, shard_of

_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
_PLAIN = (int, float, bool, str, type(None))

Names = Callable[[], Mapping[str, Tensor]]
"""All parameters of the protected modules by full name."""


def make_optimizer(name: str, optimizer: Optimizer, names: Names) -> Part:
    cls = type(optimizer)
    own = cls.state_dict is Optimizer.state_dict and cls.load_state_dict is Optimizer.load_state_dict
    if own and not any(getattr(optimizer, key, None) for key in _HOOKS):
        return OptimizerPart(name, optimizer, names)
    return CustomOptimizerPart(name, optimizer)


class CustomOptimizerPart(ObjectPart):
    """An optimizer that has a say in how it is saved."""

    def __init__(self, name: str, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._riding: set[tuple[int, str]] = set()
        super().__init__(name, optimizer, "optimizer")

    def move(self, device: torch.device) -> None:
        _follow_params(self._optimizer, device, self._riding)


class OptimizerPart(Part):
    """State tensors, live; param groups as JSON."""

    kind = "optimizer"

    def __init__(self, name: str, optimizer: Optimizer, names: Names) -> None:
        super().__init__(name)
        self._optimizer = optimizer
        self._names = names
        self._start_groups = len(optimizer.param_groups)
        self._capturable: set[int] = set()
        """Groups whose capturable=True is set aside because this device does not know it."""
        self._riding: set[tuple[int, str]] = set()
        """Options (group, key) that are tensors on the accelerator, when there is one."""
        self._group_cache: dict[int, tuple[list[Any], Node]] = {}
        self._node: Node = None
        self._values: list[Any] = []
        self._value_names: list[str] = []
        self.refresh(force=True)

    def params(self) -> list[Tensor]:
        return [param for group in self._optimizer.param_groups for param in group["params"]]

    def _sizes(self) -> list[int]:
        return [len(group["params"]) for group in self._optimizer.param_groups]

    # Looking ------------------------------------------------------------------------------------------------

    def refresh(self, *, force: bool = False) -> bool:
        replaced = False
        if force or not self._same_rows():
            replaced = True
            self._collect()
        elif not all(map(is_, self._look(), self._values)):
            if self._only_drifted():
                replaced = self._settle(self._drifting)
            else:
                replaced = True
                self._collect()
        self._look_at_loose()
        return replaced

    def _look(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self._tensor_rows))

    def _same_rows(self) -> bool:
        state = self._optimizer.state
        return (
            state is self._state
            and len(state) == len(self._rows)
            and self._sizes() == self._known_sizes
            and all(map(is_, state.values(), self._rows))
            and sum(map(len, self._rows)) == self._count
        )

    def _only_drifted(self) -> bool:
        """Some optimizers assign new tensors in every step. Note them; they are no reason to start over."""
        values = list(self._look())
        moved = [at for at, value in enumerate(values) if value is not self._values[at]]
        if not all(is_successor(self._values[at], values[at]) for at in moved):
            return False
        self._values = values
        self._drifting |= {self._value_names[at]: values[at] for at in moved}
        return True

    def _collect(self) -> None:
        """Sort the state into rows of tensors only, which are cheap to watch, and loose values."""
        state = self._optimizer.state
        self._state = state
        self._known_sizes = self._sizes()
        self._rows: list[dict[str, Any]] = list(state.values())
        self._count = sum(map(len, self._rows))
        self._tensor_rows: list[dict[str, Any]] = []
        self._drifting: dict[str, Tensor] = {}
        self.slots = []
        self._loose: list[tuple[int, dict[str, Any]]] = []
        self._have: dict[int, tuple[str, ...]] = {}
        self._orders: dict[int, tuple[Any, ...]] = {}
        """How tensors lie in memory that do not lie as usual."""
        for index, param in enumerate(self.params()):
            row = state.get(param)
            if row:
                self._take_row(index, row)
        self._other = {key: value for key, value in state.items() if not isinstance(key, Tensor)}
        self._values = list(self._look())
        self._value_names = [slot.name for slot in self.slots]
        self._have_node = _runs(self._have)
        self._orders_node = _runs(self._orders)

    def _take_row(self, index: int, row: dict[str, Any]) -> None:
        if not all(_is_plain_tensor(value) for value in row.values()):
            self._loose.append((index, row))
            return
        self._tensor_rows.append(row)
        self._have[index] = tuple(row)
        orders = tuple((key, order) for key, tensor in row.items() if (order := order_of(local(tensor))) is not None)
        if orders:
            self._orders[index] = orders
        for key, tensor in row.items():
            self.slots.append(Slot(self._slot_name(index, key), local(tensor), lazy=True, shard=shard_of(tensor)))

    def shared_out_in(self, shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
        """Of the state tensors with these shapes, those that are shared out as their parameter is."""
        params, before = self.params(), f"{self.name}.state."
        found = set()
        for name, shape in shapes.items():
            index, dot, _ = name.removeprefix(before).partition(".")
            if name.startswith(before) and dot and index.isdigit() and int(index) < len(params):
                param = params[int(index)]
                if is_shared_out(param) and tuple(param.shape) == shape:
                    found.add(name)
        return found

    def _slot_name(self, index: int, key: str) -> str:
        return f"{self.name}.state.{index}.{key}"

    def _look_at_loose(self) -> None:
        """Values that are not tensors, and groups: as JSON, at each look."""
        flat = Flattener(self.name)
        loose = {str(index): flat.encode(row, "state", index) for index, row in self._loose}
        groups = [self._group(flat, at, group) for at, group in enumerate(self._optimizer.param_groups)]
        other = flat.encode(self._other, "other") if self._other else None
        self._write_skeleton(groups, loose, other)
        self.fresh = flat.slots + [Slot(name, tensor) for name, tensor in self._drifting.items()]

    def _group(self, flat: Flattener, at: int, group: dict[str, Any]) -> Node:
        """The options of a group. Plain values are compared with those of the last look before encoding."""
        values = [value for key, value in group.items() if key != "params"]
        plain = all(map(_is_plain, values))
        if plain and at in self._group_cache and self._group_cache[at][0] == values:
            return self._group_cache[at][1]
        node = {key: flat.encode(value, "group", at, key) for key, value in group.items() if key != "params"}
        if at in self._capturable:
            node["capturable"] = True
        if plain:
            self._group_cache[at] = values, node
        return node

    # Saving -------------------------------------------------------------------------------------------------

    def _write_skeleton(self, groups: list[Node], loose: dict[str, Node], other: Node) -> None:
        node = {"groups": groups, "sizes": self._known_sizes, "have": self._have_node}
        if self._orders_node:
            node["orders"] = self._orders_node
        if loose:
            node["loose"] = loose
        if other is not None:
            node["other"] = other
        if len(groups) > self._start_groups:
            node["new"] = self._new_groups()
        if node != self._node:
            self._node = node

    def _new_groups(self) -> list[list[str | None]]:
        """The parameters, by name, of the groups added since protect(): a restart has to add them again."""
        names = {id(param): name for name, param in self._names().items()}
        groups = self._optimizer.param_groups[self._start_groups :]
        return [[names.get(id(param)) for param in group["params"]] for group in groups]

    def skeleton(self) -> Node:
        return self._node

    # Restoring ----------------------------------------------------------------------------------------------

    def restore(self, read: Read, node: Node, device: torch.device) -> None:
        self._restore_groups(read, node, device)
        have, orders = _positions(node["have"]), _positions(node.get("orders", []))
        loose = node.get("loose", {})
        state = self._optimizer.state
        groups = [group for group in self._optimizer.param_groups for _ in group["params"]]
        for index, (param, group) in enumerate(zip(self.params(), groups, strict=True)):
            if index in have:
                stored = {key: read(self._slot_name(index, key)) for key in have[index]}
                _fill_row(state[param], stored, dict(orders.get(index, ())), param, group)
            elif str(index) in loose:
                row = unflatten(loose[str(index)], read, device)
                state[param] = {key: _place(key, value, param, group) for key, value in row.items()}
            else:
                state.pop(param, None)
        for key in [key for key in state if not isinstance(key, Tensor)]:
            del state[key]
        state.update(unflatten(node.get("other", {}), read, device))
        self.refresh(force=True)

    def _restore_groups(self, read: Read, node: Node, device: torch.device) -> None:
        self._capturable.clear()
        groups = self._optimizer.param_groups
        saved = [unflatten(group, read, device) for group in node["groups"]]
        new = node.get("new", [])
        first_new = len(saved) - len(new)
        del groups[len(saved) :]
        for options, names in list(zip(saved[first_new:], new, strict=True))[len(groups) - first_new :]:
            self._optimizer.add_param_group({"params": self._find(names), **options})
        if self._sizes() != node["sizes"]:
            raise UserError(
                f"`{self.name}` has groups of {self._sizes()} parameters here, {node['sizes']} were saved",
                hints=["resume with the script that started the run, or start a new run"],
            )
        for group, options in zip(groups, saved, strict=True):
            for key, value in options.items():
                live = group.get(key)
                if isinstance(value, Tensor) and isinstance(live, Tensor) and is_same(live, value):
                    live.copy_(value)
                else:
                    group[key] = value
        self._fit_device(device)

    def _find(self, names: Iterable[str | None]) -> list[Tensor]:
        known = self._names()
        found = [known.get(name or "") for name in names]
        if any(param is None for param in found):
            raise UserError(
                f"`{self.name}` was given parameters during training that belong to no protected module",
                hints=["protect the module they belong to"],
            )
        return [param for param in found if param is not None]

    # Moving -------------------------------------------------------------------------------------------------

    def move(self, device: torch.device) -> None:
        self._fit_device(device)
        _follow_params(self._optimizer, device, self._riding)
        self.refresh(force=True)

    def _fit_device(self, device: torch.device) -> None:
        """capturable=True is for accelerators; elsewhere step() refuses it, so it is set aside."""
        for at, group in enumerate(self._optimizer.param_groups):
            if group.get("capturable") and device.type in ("cpu", "mps"):
                group["capturable"] = False
                self._capturable.add(at)
            elif at in self._capturable and device.type not in ("cpu", "mps"):
                group["capturable"] = True
                self._capturable.discard(at)
        self._group_cache.clear()

    def bytes_to_come(self) -> int:
        """What the first steps will add. Unknown optimizers are taken to be like Adam."""
        missing = 0
        for group in self._optimizer.param_groups:
            count = _states_per_param(type(self._optimizer).__name__, group)
            for param in group["params"]:
                if not self._optimizer.state.get(param):
                    size = local(param).numel() * max(param.element_size(), 4)
                    missing += int(count * size) + 8
        return missing


def _follow_params(optimizer: Optimizer, device: torch.device, riding: set[tuple[int, str]]) -> None:
    """State goes where its parameter is; options that were on an accelerator once go to `device`."""
    for at, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, Tensor) and (value.device.type != "cpu" or (at, key) in riding):
                riding.add((at, key))
                group[key] = value.to(device)
        for param in group["params"]:
            row = optimizer.state.get(param) or {}
            for key, value in row.items():
                row[key] = _place(key, value, param, group)


def _states_per_param(cls: str, group: Mapping[str, Any]) -> float:
    if cls == "LBFGS":
        return 2.0 * float(group.get("history_size", 100)) + 6
    base = {"SGD": 0, "RMSprop": 1, "Adagrad": 1, "ASGD": 1, "Muon": 0, "Adafactor": 1}.get(cls, 2)
    extras = ("amsgrad", "centered", "momentum")
    return base + sum(1 for key in extras if group.get(key))


def _fill_row(
    row: dict[str, Any],
    stored: Mapping[str, Tensor],
    orders: Mapping[str, Sequence[int]],
    param: Tensor,
    group: Mapping[str, Any],
) -> None:
    for key in [key for key in row if key not in stored]:
        del row[key]
    for key, value in stored.items():
        live = row.get(key)
        device = _device_of(key, param, group)
        own = local(live) if isinstance(live, Tensor) else None
        if own is None or own.device != device or not is_same(own, value) or not fill(own, value):
            row[key] = like(laid_out(value, orders.get(key), device), param)


def _device_of(key: str, param: Tensor, group: Mapping[str, Any]) -> torch.device:
    """torch keeps `step` on the host unless the kernel counts: reading it there would stall the device."""
    on_device = key != "step" or group.get("capturable") or group.get("fused")
    return param.device if on_device else torch.device("cpu")


def _place(key: str, value: Any, param: Tensor, group: Mapping[str, Any]) -> Any:
    if isinstance(value, Tensor):
        return value.to(_device_of(key, param, group))
    if isinstance(value, list):
        return [_place(key, item, param, group) for item in value]
    if isinstance(value, dict):
        return {inner: _place(key, item, param, group) for inner, item in value.items()}
    return value


def _positions(node: Node) -> dict[int, Any]:
    """What `_runs` said, by parameter position."""
    return {index: keys for keys, runs in node for first, last in runs for index in range(first, last)}


def _runs(have: Mapping[int, tuple[Any, ...]]) -> Node:
    """[keys, runs of parameter positions]: short where all parameters have the same state, as usual."""
    by_keys: dict[tuple[Any, ...], list[int]] = {}
    for index, keys in have.items():
        by_keys.setdefault(keys, []).append(index)
    return [[list(keys), _intervals(indices)] for keys, indices in by_keys.items()]


def _intervals(indices: list[int]) -> list[list[int]]:
    runs = []
    for _, members in groupby(enumerate(indices), key=lambda item: item[1] - item[0]):
        found = [index for _, index in members]
        runs.append([found[0], found[-1] + 1])
    return runs


def _is_plain_tensor(value: Any) -> bool:
    return (type(value) is Tensor or is_shared_out(value)) and value.dtype in DTYPES


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value))
