"""What `holdfast train eeg` says when all its stages are over: the number of the leaderboard, from the kept scores.

lines([folder of pretraining, folder of challenge 1, folder of challenge 2])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.files import read_json

SCORES = "scores.json"


def lines(folders: list[Path]) -> list[str]:
    """Imports neither torch nor numpy: it runs in the process that supervised."""
    found: dict[Any, tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        result = read_json(folder / SCORES)
        if result is not None and result.get("challenge") in (1, 2):
            found[result["challenge"]] = (folder, result)
    if set(found) != {1, 2}:
        return []
    first, second = found[1][1], found[2][1]
    one, two = first.get("nrmse"), second.get("nrmse")
    if not isinstance(one, (int, float)) or not isinstance(two, (int, float)):
        return []
    simulated = first.get("simulated") or second.get("simulated")
    told = [
        f"overall {0.3 * one + 0.7 * two:.4f} = "
        f"0.3 x {one:.4f} (Challenge 1) + 0.7 x {two:.4f} (Challenge 2, externalizing)",
        f"  Challenge 1: r {_n(first.get('r'))}, AUROC {_n(first.get('auroc'))}",
        f"  Challenge 2: mean r over the factors {_n(second.get('mean_r'))}",
    ]
    if simulated:
        told.append("  on SIMULATED EEG: it shows that the chain works, and says nothing about brains")
    names = [folder.name.rsplit("-", 2) for folder in (found[1][0], found[2][0])]
    runs = " ".join("-".join(each[-2:]) for each in names)
    return [*told, "", f"  holdfast eeg submit {runs}      build and try the zip for the competition"]


def _n(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else "-"
