"""Scores in words and as scores.json: each with its interval, and beside it what guessing would get.

result = {"challenge": 1, **described(windows, test), **measured(truth, guess, subjects, constant)}
tell(session, result)            # printed, kept in the run folder, and the last numbers of the run's metrics
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdfast
from holdfast.base import files
from holdfast.workloads.eeg import scores
from holdfast.workloads.eeg.closing import of_run
from holdfast.workloads.eeg.splits import Rows
from holdfast.workloads.eeg.training import predict

FILE = "scores.json"
NET = "net.json"


def people(table: dict[str, Any]) -> Any:
    """(age, sex) of each row; sex is 1 for male, NaN if unknown."""
    first = np.char.upper(table["sex"].astype("U1"))
    sex = np.where(first == "M", 1.0, np.where(first == "F", 0.0, np.nan))
    return np.stack([table["age"], sex], axis=1)


def described(windows: Any, test: Rows) -> dict[str, Any]:
    """What the score is on."""
    subjects = windows.table["subject"][test]
    return {
        "simulated": bool(windows.simulated),
        "windows": len(test),
        "subjects": len(set(subjects.tolist())),
        "releases": sorted(set(windows.table["release"][test].tolist()) - {""}),
        "cache": windows.key,
    }


def out_of_fold(
    net: Any,
    windows: Any,
    rows: Rows,
    truth: Any,
    fold: Any,
    device: torch.device,
    *,
    length: int = 0,
    column: int = 0,
) -> dict[str, Any]:
    """Each training subject scored by the one member that did not train on it: cross-validation in one run."""
    guess = np.full(len(rows), np.nan)
    for number, member in enumerate(net.members):
        mine = np.flatnonzero(fold == number)
        if len(mine):
            guess[mine] = predict(member, windows, rows[mine], device, length=length)[:, column]
    known = np.isfinite(truth[rows]) & np.isfinite(guess)
    label, guess, subjects = truth[rows][known], guess[known], windows.table["subject"][rows][known]
    low, high = scores.interval(scores.nrmse, label, guess, subjects)
    return {
        "folds": len(net.members),
        "windows": len(label),
        "nrmse": scores.rounded(scores.nrmse(label, guess)),
        "nrmse_low": scores.rounded(low),
        "nrmse_high": scores.rounded(high),
        "r": scores.rounded(scores.pearson(label, guess)),
    }


def keep_net(session: holdfast.Session, windows: Any, net: Any, **about: Any) -> None:
    """net.json: what was trained, so that its weights can be put into a net again."""
    sizes = {"members": len(net.members), "channels": len(windows.channels), "rate": windows.rate}
    cache = str(Path(windows.folder).absolute())
    files.write_json(session.run.folder / NET, {"schema": 1, **about, **sizes, "cache": cache})


def tell(session: holdfast.Session, result: dict[str, Any]) -> None:
    """Print it, keep it."""
    files.write_json(session.run.folder / FILE, {"schema": 1, "run": session.run.name, **result})
    for line in of_run(result):
        print(line, flush=True)
    numbers = {name: result.get(name) for name in ("nrmse", "r", "auroc", "mean_r")}
    session.log(**{f"test_{name}": value for name, value in numbers.items() if value is not None})


def read(folder: Path) -> dict[str, Any] | None:
    """The scores a run left behind."""
    return files.read_json(folder / FILE)


def keep_result(session: holdfast.Session, result: dict[str, Any], lines: list[str]) -> None:
    """The scores of a run that is of no challenge: kept, and printed."""
    files.write_json(session.run.folder / FILE, {"schema": 1, "run": session.run.name, **result})
    for line in lines:
        print(line, flush=True)
    numbers = {name: result.get(name) for name in ("balanced_accuracy", "accuracy", "auroc", "nrmse", "r")}
    session.log(**{f"test_{name}": value for name, value in numbers.items() if value is not None})
