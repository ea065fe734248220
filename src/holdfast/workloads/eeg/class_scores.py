"""How well classes are told apart: balanced accuracy, confusion matrix, interval over subjects, permutation test.

    found = class_scores.measured(truth, probabilities, groups, names)
    found["balanced_accuracy"], found["low"], found["high"], found["p"]
    class_scores.lines(found)

`truth` is the number of the class of each row, `groups` who it is of. An interval is one over subjects: a t interval
of their scores. With fewer than five there is none, and `why` says so: their spread says too little about others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.human import table
from holdfast.workloads.eeg import closing, scores

FEWEST = scores.FEWEST
# The 97.5 % point of Student's t for 4, 5, … degrees of freedom; further on it is close to the last.
_T = (2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093)
_T_MANY = 1.98
PERMUTATIONS = 1000

Whole = NDArray[np.int64]


def confusion(truth: Whole, said: Whole, classes: int) -> Whole:
    """Rows are the truth, columns what was said."""
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (truth, said), 1)
    return matrix


def balanced_accuracy(truth: Whole, said: Whole) -> float:
    """The mean over the classes that are there of the share that was recognised: guessing gets 1 / classes."""
    return float(np.mean([np.mean(said[truth == each] == each) for each in np.unique(truth)]))


def interval(per_subject: list[float]) -> tuple[float, float] | None:
    """95 % for the mean over people, from the scores of these; None for fewer than five."""
    count = len(per_subject)
    if count < FEWEST:
        return None
    factor = _T[count - FEWEST] if count - FEWEST < len(_T) else _T_MANY
    middle, spread = float(np.mean(per_subject)), float(np.std(per_subject, ddof=1)) / count**0.5
    return middle - factor * spread, middle + factor * spread


def permutation_p(
    truth: Whole, said: Whole, groups: NDArray[Any], *, times: int = PERMUTATIONS, seed: int = 0
) -> float:
    """How often labels that were shuffled inside of each subject agree as well with what was said.

    Where each subject has one label, the labels of the subjects are shuffled.
    """
    generator = np.random.default_rng(seed)
    reached = balanced_accuracy(truth, said)
    _, number = np.unique(groups, return_inverse=True)
    rows = [np.flatnonzero(number == each) for each in range(int(number.max()) + 1)]
    of_subjects = all(len(set(truth[each].tolist())) == 1 for each in rows)
    better = 0
    for _ in range(times):
        shuffled = truth.copy()
        if of_subjects:
            order = generator.permutation(len(rows))
            for place, each in enumerate(rows):
                shuffled[each] = truth[rows[order[place]][0]]
        else:
            for each in rows:
                shuffled[each] = generator.permutation(truth[each])
        better += balanced_accuracy(shuffled, said) >= reached - 1e-12
    return (1 + better) / (1 + times)


def measured(
    truth: Whole, probabilities: NDArray[Any], groups: NDArray[Any], names: list[str], *, by_subject: bool = True
) -> dict[str, Any]:
    """Everything that is said about a classification, from what was predicted of people that were held out."""
    said = np.asarray(probabilities.argmax(axis=1), np.int64)
    people = sorted(set(groups.tolist()))
    each = [balanced_accuracy(truth[groups == name], said[groups == name]) for name in people]
    several = all(len(set(truth[groups == name].tolist())) > 1 for name in people)
    spread = interval(each) if by_subject and several else None
    found: dict[str, Any] = {
        "classes": names,
        "windows": len(truth),
        "groups": len(people),
        "accuracy": scores.rounded(np.mean(truth == said)),
        "balanced_accuracy": scores.rounded(np.mean(each) if spread else balanced_accuracy(truth, said)),
        "low": scores.rounded(spread[0]) if spread else None,
        "high": scores.rounded(spread[1]) if spread else None,
        "why": "" if spread else _why_none(len(people), by_subject, several),
        "chance": scores.rounded(1 / len(names)),
        "largest_class": scores.rounded(np.bincount(truth, minlength=len(names)).max() / len(truth)),
        "p": scores.rounded(permutation_p(truth, said, groups)),
        "confusion": confusion(truth, said, len(names)).tolist(),
        "per_group": {name: scores.rounded(value) for name, value in zip(people, each, strict=True)},
    }
    if len(names) == 2:
        found["auroc"] = scores.rounded(scores.auroc(truth == 1, probabilities[:, 1]))
        if several:  # where somebody has one class alone, there is nothing to order
            found["auroc_per_group"] = {
                name: scores.rounded(scores.auroc(truth[groups == name] == 1, probabilities[groups == name, 1]))
                for name in people
            }
    return found


def _why_none(people: int, by_subject: bool, several: bool) -> str:
    if not by_subject:
        return "no interval: recordings were held out, not people"
    if not several:
        return "no interval: each subject has one label"
    return closing.too_few(people)


def lines(found: dict[str, Any]) -> list[str]:
    """For people."""
    spread = f" [{found['low']:.3f}, {found['high']:.3f}]" if found["low"] is not None else f" ({found['why']})"
    auroc = f"   auroc {found['auroc']:.3f}" if found.get("auroc") is not None else ""
    rows = [("", *found["classes"])]
    rows += [(name, *map(str, row)) for name, row in zip(found["classes"], found["confusion"], strict=True)]
    return [
        f"  balanced accuracy {found['balanced_accuracy']:.3f}{spread}   accuracy {found['accuracy']:.3f}{auroc}",
        f"    guessing gets {found['chance']:.3f}; always the largest class is right in {found['largest_class']:.1%}",
        f"    permutation test: p {found['p']:.3g} (labels shuffled {PERMUTATIONS} times)",
        "  confusion: rows are the truth, columns what was said",
        *(f"    {line}" for line in table(rows, right=tuple(range(1, len(rows[0]))))),
    ]
