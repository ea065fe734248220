"""Scores in words, from the scores.json that runs keep. Neither torch nor numpy is needed for it.

of_run(result)                                       # what a stage prints: each score beside what guessing gets
lines([pretraining, challenge 1, challenge 2])       # the end of `holdfast train eeg`: the leaderboard's number
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from holdfast.base.files import read_json, whole
from holdfast.base.human import counted
from holdfast.run.folder import name_of

SCORES = "scores.json"
FEWEST = 5
"""Subjects for an interval: of fewer, nobody knows how far other people are from them."""


def lines(folders: list[Path]) -> list[str]:
    """The overall score, if both challenges were scored."""
    found: dict[Any, tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        result = read_json(folder / SCORES)
        if result is not None and result.get("challenge") in (1, 2):
            found[result["challenge"]] = (folder, result)
    number = overall([result for _, result in found.values()])
    if number is None:
        return [f"no overall score: {_without(result)}" for _, result in found.values() if "no_nrmse" in result][:1]
    first, second = found[1][1], found[2][1]
    told = [
        f"overall {number:.4f} = 0.3 x {first['nrmse']:.4f} (Challenge 1) "
        f"+ 0.7 x {second['nrmse']:.4f} (Challenge 2, externalizing)",
        f"  Challenge 1: r {_n(first.get('r'))}, AUROC {_n(first.get('auroc'))}",
        f"  Challenge 2: mean r over the factors {_n(second.get('mean_r'))}",
    ]
    if first.get("simulated") or second.get("simulated"):
        told.append("  on SIMULATED EEG: it shows that the chain works, and says nothing about brains")
    runs = " ".join(name_of(folder) for folder in (found[1][0], found[2][0]))
    return [*told, "", f"  holdfast eeg submit {runs}      build and try the zip for the competition"]


def overall(results: list[dict[str, Any]]) -> float | None:
    """0.3 C1 + 0.7 C2; None unless there is one score of each."""
    found = {result.get("challenge"): result.get("nrmse") for result in results}
    one, two = found.get(1), found.get(2)
    return round(0.3 * one + 0.7 * two, 4) if _is_number(one) and _is_number(two) else None  # type: ignore[operator]


def of_run(result: dict[str, Any]) -> list[str]:
    """The scores as a person reads them."""
    what = "SIMULATED EEG" if result.get("simulated") else "EEG"
    people, windows = whole(result.get("subjects")), whole(result.get("windows"))
    held_out = f"{counted(people, 'held-out subject')}, {counted(windows, 'window')}"
    told = [f"Challenge {result.get('challenge')} on {what}, {held_out}", *no_interval(result)]
    factors = result.get("factors")
    for row in factors if isinstance(factors, list) else [result]:
        told += of_scores(row) if isinstance(row, dict) else []
    if result.get("mean_r") is not None:
        told.append(f"  mean r over {len(result.get('factors', []))} factors: {_one(result, 'mean_r', '')}")
    if isinstance(result.get("out_of_fold"), dict):
        fold = result["out_of_fold"]
        told.append(f"  out of fold ({fold.get('folds')} folds): {_one(fold, 'nrmse')}   {_one(fold, 'r')}")
    return told


def no_interval(result: dict[str, Any]) -> list[str]:
    """Why there is none, where there is none."""
    people = whole(result.get("subjects"))
    return [f"  {too_few(people)}"] if people < FEWEST else []


def too_few(people: int) -> str:
    """Why there is no interval."""
    return f"no interval: {counted(people, 'subject')} {'says' if people == 1 else 'say'} too little about others"


def of_scores(row: dict[str, Any]) -> list[str]:
    """One target: its metrics with intervals, what guessing gets, and whether it is better than luck."""
    words = [_one(row, name) for name in ("nrmse", "r", "auroc") if row.get(name) is not None]
    if row.get("no_nrmse"):
        words.insert(0, f"no nrmse: {row['no_nrmse']}")
    name = row.get("factor")
    told = [f"  {f'{name}: ' if name else ''}{'   '.join(words)}"]
    beside = _baselines(row["baselines"]) if isinstance(row.get("baselines"), dict) else ""
    if beside:
        told.append(f"    beside it, nrmse of {beside}")
    if row.get("inside_noise") and not row.get("no_nrmse"):
        told.append("    inside the noise of the constant: with these subjects it is not shown to be better")
    return told


def _without(result: dict[str, Any]) -> str:
    return f"Challenge {result.get('challenge')} has no nrmse ({result['no_nrmse']})"


def _one(row: dict[str, Any], name: str, label: str | None = None) -> str:
    value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    bounds = f" [{low:.3f}, {high:.3f}]" if _is_number(low) and _is_number(high) else ""
    return f"{name if label is None else label} {_n(value)}{bounds}".strip()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _baselines(rows: dict[str, Any]) -> str:
    names = {"constant": "the constant", "age_and_sex": "age+sex", "oracle": "the true subject mean (oracle)",
             "ridge_time": "ridge on time samples", "ridge_power": "ridge on band power"}  # fmt: skip
    rival = rows.get("rival")
    if isinstance(rival, dict):
        name, cpu_s = rival.get("name"), rival.get("cpu_s")
        rows = {**rows, "rival": rival.get("nrmse")}
        names["rival"] = f"{name} in the same {cpu_s} CPU s"
    told = [f"{names[key]} {_n(value)}" for key, value in rows.items() if key in names and value is not None]
    return ", ".join(told)


def _n(value: Any) -> str:
    return f"{value:.3f}" if _is_number(value) else "-"
