"""Hyper-parameters by optuna: every trial is a supervised run of its own, judged on the validation subjects alone.

    best = search(1, Path("study"), trials=20, words=["data=cache"], say=print)
    best.value, best.words                     # 0.871, ["lr=0.0031", "width=48", …]

The study is a journal of JSON lines in its folder: a search that was interrupted goes on where it was, and its runs are
beside it. A run that fails counts as a failed trial and the search goes on. Test subjects are never looked at.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import interpreter
from holdfast.base.errors import UserError

SPACES: dict[int, dict[str, tuple[Any, ...]]] = {
    1: {
        "lr": (5e-4, 1e-2, "log"),
        "weight_decay": (1e-3, 0.2, "log"),
        "width": (24, 32, 48, 64),
        "dropout": (0.0, 0.4, "float"),
        "augment": (0.0, 2.0, "float"),
        "batch": (32, 64, 128),
    },
    2: {
        "lr": (5e-4, 1e-2, "log"),
        "weight_decay": (1e-3, 0.3, "log"),
        "width": (16, 24, 32, 48),
        "dropout": (0.0, 0.4, "float"),
        "augment": (0.0, 2.0, "float"),
        "beside": (0.0, 1.0, "float"),
    },
}
"""Ranges end in "log" or "float"; anything else is a list to choose from."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best trial so far."""

    value: float
    words: list[str]
    run: str
    trials: int
    failed: int


def search(
    challenge: int,
    folder: Path,
    *,
    trials: int,
    words: Sequence[str] = (),
    say: Callable[[str], None] = print,
    seed: int = 0,
) -> Best:
    """Run `trials` more trials and return the best of all."""
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    except ImportError:
        raise UserError("a search needs optuna", cause="not installed", hints=["pip install 'holdfast[eeg]'"]) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    journal = str(folder / "study.jsonl")
    try:
        storage = JournalStorage(JournalFileBackend(journal, lock_obj=JournalFileOpenLock(journal)))
        study = optuna.create_study(
            study_name=f"eeg-challenge{challenge}",
            storage=storage,
            load_if_exists=True,
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"the study in {folder} cannot be read", cause=str(error), hints=["name a new folder"]
        ) from None
    # A search that goes on draws what comes next; with the first seed alone it would draw the first trials again.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    given = {word.partition("=")[0] for word in words}
    for left in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):  # its search was interrupted
        study.tell(left.number, state=optuna.trial.TrialState.FAIL)
    for number in range(trials):
        trial = study.ask()
        chosen = {name: _suggest(trial, name, space) for name, space in SPACES[challenge].items() if name not in given}
        mine = [f"{name}={value}" for name, value in chosen.items()]
        result = _run(challenge, [*words, *mine], folder / "runs")
        value = best_of(result)
        told = f"trial {number + 1} of {trials}: {' '.join(mine)}"
        if value is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            say(f"✗ {told}: {_why(result)}")
        else:
            trial.set_user_attr("run", str(result.get("run")))
            study.tell(trial, value)
            say(f"{'✓' if value <= study.best_value else '•'} {told}: valid_nrmse {value:.4f} ({result.get('run')})")
    return _best(study, challenge, words)


def _suggest(trial: Any, name: str, space: tuple[Any, ...]) -> Any:
    if space[-1] == "log":
        return float(f"{trial.suggest_float(name, space[0], space[1], log=True):.4g}")
    if space[-1] == "float":
        return round(trial.suggest_float(name, space[0], space[1]), 3)
    return trial.suggest_categorical(name, list(space))


def _run(challenge: int, words: list[str], runs: Path) -> dict[str, Any]:
    """One supervised run to its end, as a command: whatever happens in it stays there."""
    done = subprocess.run(
        interpreter.module(
            "holdfast", "train", f"eeg-challenge{challenge}", *words, f"run.folder={runs}", "--json", "-q"
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    try:
        result = json.loads(done.stdout)
    except ValueError:
        result = {"error": {"message": f"it ended with {done.returncode}"}}
    return result if isinstance(result, dict) else {}


def best_of(result: dict[str, Any]) -> float | None:
    """The best validation score of a run that finished."""
    best = result.get("best")
    value = best.get("value") if isinstance(best, dict) else None
    return float(value) if result.get("state") == "FINISHED" and isinstance(value, (int, float)) else None


def _why(result: dict[str, Any]) -> str:
    error = result.get("error")
    return str(error.get("message")) if isinstance(error, dict) else str(result.get("state"))


def _best(study: Any, challenge: int, given: Sequence[str]) -> Best:
    states = [trial.state.name for trial in study.trials]
    failed = states.count("FAIL")
    if failed == len(states):
        by_hand = " ".join(["holdfast train", f"eeg-challenge{challenge}", *given])
        raise UserError("no trial of the search finished", hints=[f"run one by hand to see why: `{by_hand}`"])
    best = study.best_trial
    words = [
        f"{name}={float(f'{value:.4g}') if isinstance(value, float) else value}" for name, value in best.params.items()
    ]
    return Best(best.value, words, str(best.user_attrs.get("run")), len(states), failed)
