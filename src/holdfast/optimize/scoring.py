"""How good answers are: the score of the task, computed in the process of the candidate that gave them.

scores, outputs = score(work, about, engine)        # {"r": 0.61, "nrmse": 0.79}, and the outputs for parity
BETTER["nrmse"]                                     # -1: less is better

EEG and plain modules need numpy alone; a detector needs the extra `detection`, a policy the ecosystem it lives in.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.optimize.engines import Arrays, Engine
from holdfast.optimize.regression import nrmse, pearson
from holdfast.run import workload_registry

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
    scorer = workload_registry.scorers().get(kind)
    if scorer is not None:  # a workload's own: images and worlds are nothing that this file knows
        found: Numbers = importlib.import_module(scorer).score(work, about, engine, outputs)
        return found, outputs
    if kind == "none":
        return {}, outputs
    with np.load(work / "targets.npz", allow_pickle=False) as kept:
        targets = kept["targets"]
    if kind == "user":
        return _by_user(about["score"]["function"], outputs, targets), outputs
    return (_regression if kind == "regression" else _accuracy)(outputs[0], targets), outputs


def _regression(output: NDArray[Any], targets: NDArray[Any]) -> Numbers:
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
