"""Scores in words and as scores.json: each with its interval, and beside it what guessing would get.

result = {"challenge": 1, **described(windows, test), **measured(truth, guess, subjects, constant)}
tell(session, result)            # printed, kept in the run folder, and the last numbers of the run's metrics
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdfast
from holdfast import files
from holdfast.errors import UserError
from holdfast.workloads.eeg import scores
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


def measured(truth: Any, guess: Any, subjects: Any, constant: float, *, auroc: bool = False) -> dict[str, Any]:
    """The metrics with their intervals, and whether the gain over the constant is more than luck."""
    found: dict[str, Any] = {}
    wanted = {"nrmse": scores.nrmse, "r": scores.pearson} | ({"auroc": scores.fast_slow} if auroc else {})
    for name, metric in wanted.items():
        low, high = scores.interval(metric, truth, guess, subjects)
        found[name] = scores.rounded(metric(truth, guess))
        found[f"{name}_low"], found[f"{name}_high"] = scores.rounded(low), scores.rounded(high)
    found["inside_noise"] = scores.inside_noise(truth, guess, constant, subjects)
    return found


def baseline_rows(truth: Any, subjects: Any, **guesses: Any) -> dict[str, float | None]:
    """nRMSE of each guess that never saw the EEG."""
    return {
        name: scores.rounded(scores.nrmse(truth, np.broadcast_to(np.asarray(guess, dtype=np.float64), truth.shape)))
        for name, guess in guesses.items()
    }


def out_of_fold(net: Any, windows: Any, rows: Rows, truth: Any, fold: Any, device: torch.device) -> dict[str, Any]:
    """Each training subject scored by the one member that did not train on it: cross-validation in one run."""
    guess = np.full(len(rows), np.nan)
    for number, member in enumerate(net.members):
        mine = np.flatnonzero(fold == number)
        if len(mine):
            guess[mine] = predict(member, windows, rows[mine], device)[:, 0]
    subjects = windows.table["subject"][rows]
    low, high = scores.interval(scores.nrmse, truth[rows], guess, subjects)
    return {
        "folds": len(net.members),
        "nrmse": scores.rounded(scores.nrmse(truth[rows], guess)),
        "nrmse_low": scores.rounded(low),
        "nrmse_high": scores.rounded(high),
        "r": scores.rounded(scores.pearson(truth[rows], guess)),
    }


def keep_net(session: holdfast.Session, windows: Any, net: Any, **about: Any) -> None:
    """net.json: what was trained, so that its weights can be put into a net again."""
    sizes = {"members": len(net.members), "channels": len(windows.channels), "rate": windows.rate}
    cache = str(Path(windows.folder).absolute())
    files.write_json(session.run.folder / NET, {"schema": 1, **about, **sizes, "cache": cache})


def tell(session: holdfast.Session, result: dict[str, Any]) -> None:
    """Print it, keep it."""
    files.write_json(session.run.folder / FILE, {"schema": 1, "run": session.run.name, **result})
    for line in lines(result):
        print(line, flush=True)


def read(folder: Path) -> dict[str, Any] | None:
    """The scores a run left behind."""
    return files.read_json(folder / FILE)


def lines(result: dict[str, Any]) -> list[str]:
    """The scores as a person reads them."""
    what = "SIMULATED EEG" if result.get("simulated") else "EEG"
    count = f"{result.get('subjects')} held-out subjects, {result.get('windows')} windows"
    told = [f"Challenge {result.get('challenge')} on {what}, {count}"]
    for row in result.get("factors", [result]):
        words = [_one(row, name) for name in ("nrmse", "r", "auroc") if row.get(name) is not None]
        name = row.get("factor")
        told.append(f"  {(name + ': ') if name else ''}{'   '.join(words)}")
        told.append(f"    beside it, nrmse of {_baselines(row.get('baselines') or {})}")
        if row.get("inside_noise"):
            told.append("    inside the noise of the constant: with these subjects it is not shown to be better")
    if result.get("mean_r") is not None:
        told.append(f"  mean r over {len(result.get('factors', []))} factors: {_one(result, 'mean_r', '')}")
    if isinstance(result.get("out_of_fold"), dict):
        fold = result["out_of_fold"]
        told.append(f"  out of fold ({fold.get('folds')} folds): {_one(fold, 'nrmse')}   {_one(fold, 'r')}")
    return told


def _one(row: dict[str, Any], name: str, label: str | None = None) -> str:
    unknown = float("nan")
    value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    text = scores.told(
        name if label is None else label, _known(value, unknown), _known(low, unknown), _known(high, unknown)
    )
    return text.strip()


def _known(value: Any, unknown: float) -> float:
    return float(value) if isinstance(value, (int, float)) else unknown


def _baselines(rows: dict[str, Any]) -> str:
    names = {"constant": "the constant", "age_and_sex": "age+sex", "oracle": "the true subject mean (oracle)"}
    told = [
        f"{names[key]} {_known(value, float('nan')):.3f}"
        for key, value in rows.items()
        if key in names and value is not None
    ]
    return ", ".join(told) or "-"


def check_foreign(name: str) -> None:
    """UserError unless braindecode is there and has a model of this name."""
    try:
        import braindecode.models as zoo
    except ImportError:
        raise UserError(
            f"the model {name} is braindecode's",
            cause="braindecode is not installed",
            hints=["pip install 'holdfast[eeg]'"],
        ) from None
    known = [each for each in dir(zoo) if each[0].isupper()]
    if name not in known:
        close = difflib.get_close_matches(name, ["tempo", "transformer", *known], n=1)
        hints = [f"a similar model exists: `{close[0]}`"] if close else []
        raise UserError(
            f"unknown model `{name}`", cause="our own are tempo and transformer; others are braindecode's", hints=hints
        )
