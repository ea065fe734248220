"""How good answers are: the score of the task, computed in the process of the candidate that gave them.

scores, outputs = score(work, about, engine)        # {"r": 0.61, "nrmse": 0.79}, and the outputs for parity
BETTER["nrmse"]                                     # -1: less is better

EEG and plain modules need numpy alone; a detector needs the extra `detection`, a policy the ecosystem it lives in.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.optimize.engines import Arrays, Engine
from holdfast.optimize.post import apply

BETTER = {"nrmse": -1, "rmse": -1, "loss": -1, "error": -1}
"""Scores of which less is better; of all others more is."""
Numbers = dict[str, float]


def score(work: Path, about: dict[str, Any], engine: Engine) -> tuple[Numbers, Arrays]:
    """Run the validation inputs and score what comes out."""
    with np.load(work / "inputs.npz", allow_pickle=False) as kept:
        inputs = [kept[name] for name in kept.files]
    outputs = engine.run_all(inputs)
    kind = about["score"]["kind"]
    if any(not np.isfinite(each).all() for each in outputs):
        return {}, outputs  # parity says what is wrong with them
    if kind == "policy":
        return _policy(work, about, engine, outputs), outputs
    if kind == "detection":
        return _detection(about, outputs), outputs
    if kind == "none":
        return {}, outputs
    with np.load(work / "targets.npz", allow_pickle=False) as kept:
        targets = kept["targets"]
    if kind == "user":
        return _by_user(about["score"]["function"], outputs, targets), outputs
    return (_regression if kind == "regression" else _accuracy)(outputs[0], targets), outputs


def _regression(output: NDArray[Any], targets: NDArray[Any]) -> Numbers:
    from holdfast.workloads.eeg.scores import nrmse, pearson

    guess = output.reshape(len(output), -1)
    truth = targets.reshape(len(targets), -1)
    if guess.shape != truth.shape:
        return {}
    there = np.isfinite(truth)
    found = {"r": pearson(truth[there], guess[there]), "nrmse": nrmse(truth[there], guess[there])}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def _accuracy(output: NDArray[Any], targets: NDArray[Any]) -> Numbers:
    return {"accuracy": float((output.reshape(len(output), -1).argmax(axis=1) == targets.ravel()).mean())}


def _by_user(function: str, outputs: Arrays, targets: NDArray[Any]) -> Numbers:
    place, _, name = function.rpartition(":")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location("holdfast_user_score", place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        sys.path.append("")  # the last place to look: it must not stand in for a package
        module = importlib.import_module(place)
    found = getattr(module, name)(outputs[0] if len(outputs) == 1 else outputs, targets)
    return {key: float(value) for key, value in found.items()} if isinstance(found, dict) else {"score": float(found)}


def _detection(about: dict[str, Any], outputs: Arrays) -> Numbers:
    """COCO's figures, after the non-maximum suppression of the bundle."""
    from holdfast.workloads.detection.evaluate import LEAST, evaluate, to_image
    from holdfast.workloads.detection.index import open_set

    told = about["score"]
    checked = open_set(told["data"], classes=str(told.get("classes", "")))
    index = checked.splits["val"].taken(np.arange(len(outputs[0]), dtype=np.int64))
    rows = apply({**about["post"], "score": LEAST}, outputs)
    found = [to_image(each, index.size(number), int(told["side"])) for number, each in enumerate(rows)]
    scores = evaluate(found, index, checked.names)
    return {"map": scores.map, "map50": scores.map50}


def _policy(work: Path, about: dict[str, Any], engine: Engine, outputs: Arrays) -> Numbers:
    """How often it would do what the original does, and what it catches against dice in the same worlds."""
    import torch

    from holdfast.workloads.ecosystem.evaluate import duel
    from holdfast.workloads.ecosystem.rules import PREDATOR, PREY, Rules

    told = about["score"]

    def act(own: torch.Tensor, others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, value = engine.run([own.numpy(), others.numpy()])
        return torch.from_numpy(np.array(logits)), torch.from_numpy(np.array(value)).reshape(-1)

    torch.manual_seed(0)
    mine, other = (PREDATOR, PREY) if told["species"] == "predators" else (PREY, PREDATOR)
    found = duel(Rules.from_json(told["rules"]), {mine: act, other: None}, worlds=told["worlds"], steps=told["steps"])
    name, values = ("catches", found.catches) if mine == PREDATOR else ("survival", found.survival)
    numbers = {name: float(values.mean()), f"{name}_spread": float(values.std() / np.sqrt(len(values)))}
    reference = work / "reference.npz"
    if reference.exists():
        with np.load(reference, allow_pickle=False) as kept:
            numbers["same_action"] = float((kept["o0"].argmax(-1) == outputs[0].argmax(-1)).mean())
    else:
        numbers["same_action"] = 1.0
    return numbers
