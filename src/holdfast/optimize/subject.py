"""What is to be made fast: a model with its weights, real inputs, and how its answers are scored. Needs torch.

subject = load({"kind": "module", "factory": "my_net.py:build", "weights": "w.safetensors", "data": "val.npz"})
subject = load({"kind": "run", "folder": "runs/eeg-challenge1-…"})          # its workload knows how
subject.model                    # as the factory made it: in training mode, if it left it so
subject.inputs                   # validation inputs, one array for each argument of forward
write(subject, work)             # subject.json, inputs.npz, calibration.npz: what the other processes read
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base import files
from holdfast.base.data_files import open_npz
from holdfast.base.errors import HoldfastError, UserError
from holdfast.run import workload_registry

SUBJECT, INPUTS, CALIBRATION, TARGETS = "subject.json", "inputs.npz", "calibration.npz", "targets.npz"
MOST_VALIDATION = 512
RANDOM = 16
"""Inputs that are drawn where none are given."""


@dataclass
class Subject:
    """One model to make fast."""

    name: str
    model: Any
    inputs: list[NDArray[Any]]
    names: list[str]
    outputs: list[str] = field(default_factory=list)
    calibration: list[NDArray[Any]] = field(default_factory=list)
    score: dict[str, Any] = field(default_factory=lambda: {"kind": "none"})
    """How answers are scored: scoring.py knows the kinds."""
    targets: dict[str, NDArray[Any]] = field(default_factory=dict)
    post: dict[str, Any] | None = None
    """What is done with the answers outside of the network: non-maximum suppression."""
    contract: dict[str, Any] = field(default_factory=dict)
    """What an input has to be, in words and numbers, for whoever calls the bundle."""
    notes: list[str] = field(default_factory=list)


def load(spec: dict[str, Any]) -> Subject:
    """The subject that a specification names."""
    if spec["kind"] == "run":
        folder = Path(spec["folder"])
        made: Subject = _workload_of(folder).subject(folder, spec)
        return made
    return _of_module(spec)


def load_model(spec: dict[str, Any]) -> Any:
    """Only its network, with its weights, in the mode its maker left it."""
    if spec["kind"] == "run":
        folder = Path(spec["folder"])
        return _workload_of(folder).model(folder, spec)
    return _with_weights(_made(spec["factory"]), spec.get("weights"))


def _workload_of(folder: Path) -> Any:
    """The module of the workload that made this run: it has `subject(folder, spec)` and `model(folder, spec)`."""
    known = workload_registry.subjects()
    for name, module in known.items():
        if (folder / name).is_file():
            return importlib.import_module(module)
    raise UserError(
        f"{folder.name} is not a run that can be optimized by itself",
        cause=f"it has none of {', '.join(known)}",
        hints=["name the model: `holdfast optimize script.py:build --weights RUN/final.safetensors --data val.npz`"],
    )


def load_weights(net: Any, path: Path, prefix: str = "") -> None:
    """The weights of a run into a network, from a file that may be anything."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
        net.load_state_dict({key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read", cause=str(error)[:200]) from None
    except RuntimeError as error:
        raise UserError(f"the weights in {path} do not fit", cause=str(error)[:300]) from None


def write(subject: Subject, work: Path, spec: dict[str, Any], outputs: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """Everything that is needed without the model, as files."""
    parameters = sum(each.numel() for each in subject.model.parameters())
    names = subject.outputs or [f"output{number}" if number else "output" for number in range(len(outputs))]
    about = {
        "name": subject.name,
        "spec": spec,
        "inputs": [_described(name, each) for name, each in zip(subject.names, subject.inputs, strict=True)],
        "outputs": [_described(name, each) for name, each in zip(names, outputs, strict=True)],
        "score": subject.score,
        "post": subject.post,
        "contract": subject.contract,
        "notes": subject.notes,
        "parameters": parameters,
        "training_mode": bool(subject.model.training),
        "validation": len(subject.inputs[0]),
    }
    np.savez(work / INPUTS, **dict(zip(subject.names, subject.inputs, strict=True)))  # type: ignore[arg-type]
    calibration = subject.calibration or subject.inputs
    np.savez(work / CALIBRATION, **dict(zip(subject.names, calibration, strict=True)))  # type: ignore[arg-type]
    if subject.targets:
        np.savez(work / TARGETS, **subject.targets)  # type: ignore[arg-type]
    files.write_json(work / SUBJECT, about, durable=False)
    return about


def _described(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape[1:]), "dtype": str(array.dtype)}


def arrays(path: Path) -> list[NDArray[Any]]:
    """The arrays of a file that `write` made, in order."""
    with np.load(path, allow_pickle=False) as kept:
        return [kept[name] for name in kept.files]


# A user's own module ------------------------------------------------------------------------------------------


def _of_module(spec: dict[str, Any]) -> Subject:
    model = _with_weights(_made(spec["factory"]), spec.get("weights"))
    inputs, targets, notes = _inputs(spec)
    score: dict[str, Any] = {"kind": "none"}
    if spec.get("score"):
        score = {"kind": "user", "function": spec["score"]}
    elif targets is not None:
        score = {"kind": "accuracy" if np.issubdtype(targets.dtype, np.integer) else "regression"}
    calibration: list[NDArray[Any]] = []
    if spec.get("calibration"):
        calibration = list(read_inputs(Path(spec["calibration"]), "calibration data")[0].values())
        check_like(calibration, inputs, "the calibration data")
    names = [f"input{number}" if number else "input" for number in range(len(inputs))]
    return Subject(
        spec["factory"], model, inputs, names, calibration=calibration, score=score,
        targets={} if targets is None else {"targets": targets}, notes=notes,
        contract={"given": "arrays as the module takes them, with the batch first"},
    )  # fmt: skip


def _made(factory: str) -> Any:
    """Call `module:function` or `file.py:function`."""
    import torch

    place, _, name = factory.rpartition(":")
    try:
        if place.endswith(".py"):
            path = Path(place).resolve()
            sys.path.insert(0, str(path.parent))
            found = importlib.util.spec_from_file_location(path.stem, path)
            assert found is not None and found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules.setdefault(path.stem, module)
            found.loader.exec_module(module)
        else:
            sys.path.append("")  # the last place to look: it must not stand in for a package
            module = importlib.import_module(place)
        made = getattr(module, name)
    except (ImportError, OSError, AttributeError, SyntaxError) as error:
        raise UserError(f"{factory} cannot be loaded", cause=f"{type(error).__name__}: {error}") from None
    if isinstance(made, torch.nn.Module):
        return made
    try:
        made = made()
    except HoldfastError:
        raise
    except Exception as error:  # the user's own code
        raise UserError(f"{factory}() failed", cause=f"{type(error).__name__}: {error}") from error
    if not isinstance(made, torch.nn.Module):
        raise UserError(f"{factory} gives a {type(made).__name__}", cause="it has to give a torch.nn.Module")
    return made


def _with_weights(model: Any, weights: str | None) -> Any:
    if not weights:
        return model
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        model.load_state_dict(load_file(weights))
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{weights} cannot be read", cause=str(error)[:200], hints=["it has to be safetensors"]
        ) from None
    except RuntimeError as error:
        raise UserError(f"the weights in {weights} do not fit", cause=str(error)[:400]) from None
    return model


def _inputs(spec: dict[str, Any]) -> tuple[list[NDArray[Any]], NDArray[Any] | None, list[str]]:
    if spec.get("data"):
        found, targets = read_inputs(Path(spec["data"]), "data")
        return (
            [each[:MOST_VALIDATION] for each in found.values()],
            (None if targets is None else targets[:MOST_VALIDATION]),
            [],
        )
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal((RANDOM, *shape[1:])).astype(np.float32) for shape in spec["shapes"]]
    return drawn, None, ["random inputs: give real ones with --data, or parity and int8 ranges say little"]


def read_inputs(path: Path, what: str) -> tuple[dict[str, NDArray[Any]], NDArray[Any] | None]:
    """Inputs of a .npy or .npz file that may come from anywhere; `targets` or `y` in an .npz are what to score with."""
    try:
        with open_npz(path) as kept:
            found = {"input": kept} if isinstance(kept, np.ndarray) else {name: kept[name] for name in kept.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise UserError(f"the {what} in {path} cannot be read", cause=str(error)[:200],
                        hints=["it has to be a .npy, or a .npz of plain arrays"]) from None  # fmt: skip
    targets = next((found.pop(name) for name in ("targets", "y") if name in found), None)
    if not found or any(each.ndim < 1 or not len(each) for each in found.values()):
        raise UserError(f"the {what} in {path} is empty")
    counts = {len(each) for each in found.values()} | ({len(targets)} if targets is not None else set())
    if len(counts) > 1:
        raise UserError(f"the arrays in {path} have different lengths", cause=", ".join(map(str, sorted(counts))))
    for name, each in found.items():
        if each.dtype.kind not in "fiub":
            raise UserError(f"`{name}` in {path} holds {each.dtype}", cause="numbers are needed")
        if each.dtype == np.float64:
            found[name] = each.astype(np.float32)
        if each.dtype.kind == "f" and not np.isfinite(each).all():
            raise UserError(f"`{name}` in {path} holds NaN or infinity")
    return found, targets


def check_like(given: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]], what: str) -> None:
    """UserError unless shapes, but for the batch, and kinds are the same."""
    mine, right = [(each.shape[1:], each.dtype) for each in given], [(each.shape[1:], each.dtype) for each in wanted]
    if mine != right:

        def told(rows: Any) -> str:
            return ", ".join(f"(n, {', '.join(map(str, shape))}) {kind}" for shape, kind in rows)

        raise UserError(f"{what} has the wrong shape", cause=f"it is {told(mine)}; the model takes {told(right)}")
