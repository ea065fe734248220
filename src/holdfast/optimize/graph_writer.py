"""Writes what graph.py reads: the graph that torch.export finds, as JSON, and its weights as safetensors.

    write(program, Path("model.json"))          # CannotKeep: with the operator that is not on the list

Steps that change memory in place stay in their order. Where a program holds something that is not on the list (another
graph inside of it, an operator of a package), PyTorch is asked to take it apart first.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from holdfast.optimize import graph

_CHECKS = ("_assert_", "sym_constrain_range", "_functional_assert", "_functional_sym_constrain")
"""Operators that compute nothing and complain: a bundle's inputs are checked before."""


class CannotKeep(Exception):
    """What stands in the way, in a line."""


def write(program: Any, target: Path) -> None:
    """Write the graph to `target` and the weights beside it."""
    try:
        said, weights = _told(program)
    except CannotKeep:
        said, weights = _told(program.run_decompositions({}))
    save_file(weights, target.with_suffix(".safetensors"))
    target.write_text(json.dumps(said, separators=(",", ":"), allow_nan=False), encoding="utf-8")


def _told(program: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    signature = program.graph_signature
    changed = [each.kind.name for each in signature.output_specs if each.kind.name != "USER_OUTPUT"]
    if changed:
        raise CannotKeep(f"a call changes what the next one finds ({changed[0].lower().replace('_', ' ')})")
    nodes = list(program.graph.nodes)
    needed = _needed(nodes)
    places: dict[Any, int] = {}
    kept: dict[str, Any] = {}
    rows: list[dict[str, str]] = []
    given: list[Any] = []
    for node, spec in zip((each for each in nodes if each.op == "placeholder"), signature.input_specs, strict=True):
        if spec.kind.name == "USER_INPUT":
            given.append(node)
        elif node in needed:
            tensor = _tensor(program, spec)
            places[node] = len(rows)
            rows.append({"name": _keep(tensor, str(spec.target), kept), "device": _device(tensor.device)})
    places.update({node: len(rows) + at for at, node in enumerate(given)})
    steps = []
    for node in (each for each in nodes if each.op not in ("placeholder", "output") and each in needed):
        args, more = _said(list(node.args), places), {name: _said(each, places) for name, each in node.kwargs.items()}
        steps.append({"do": _name(node), "args": args} | ({"more": more} if more else {}))
        places[node] = len(rows) + len(given) + len(steps) - 1
    outputs = [places[each] for each in nodes[-1].args[0]]
    said = {"schema": graph.SCHEMA, "torch": torch.__version__, "weights": rows, "inputs": len(given)}
    return {**said, "steps": steps, "outputs": outputs}, {name: each.clone() for name, each in kept.items()}


def _needed(nodes: list[Any]) -> set[Any]:
    """What the outputs depend on, and what changes memory that they may look at."""
    found: set[Any] = set()
    for node in reversed(nodes):
        schema = getattr(node.target, "_schema", None)
        checks = str(getattr(node.target, "__name__", "")).startswith(_CHECKS)
        changes = schema is not None and schema.is_mutable and not checks
        if node.op == "output" or node in found or changes:
            found |= {node, *node.all_input_nodes}
    return found


def _tensor(program: Any, spec: Any) -> Any:
    found = program.state_dict.get(spec.target)
    found = program.constants.get(spec.target) if found is None else found
    if not isinstance(found, torch.Tensor):
        raise CannotKeep(f"{spec.target} is no tensor")
    return found.detach()


def _keep(tensor: Any, name: str, kept: dict[str, Any]) -> str:
    """Under its name; a weight that is used under two names is kept once."""
    for other, each in kept.items():
        if each.data_ptr() == tensor.data_ptr() and each.shape == tensor.shape and each.stride() == tensor.stride():
            return other
    kept[name] = tensor.contiguous()
    return name


def _name(node: Any) -> str:
    if node.op != "call_function":
        raise CannotKeep(f"its graph has a {node.op} in it")
    for name, function in graph.PLAIN.items():
        if function is node.target:
            return name
    name = str(node.target)
    try:
        found = graph.function(name)
    except ValueError as error:
        raise CannotKeep(str(error)) from None
    if found is not node.target:
        raise CannotKeep(f"the operator {name[:100]} is not one that a graph may hold")
    return name


def _said(value: Any, places: dict[Any, int]) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"value": places[value]}
    if isinstance(value, (list, tuple)):
        return [_said(each, places) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.device):
        return {"device": _device(value)}
    kind, name = type(value).__name__, str(value).removeprefix("torch.")
    if name in graph.TYPES.get(kind, ()):
        return {kind: name}
    raise CannotKeep(f"{str(value)[:100]} is not an argument that a graph may hold")


def _device(device: Any) -> str:
    return "cuda" if device.type == "cuda" else "cpu"
