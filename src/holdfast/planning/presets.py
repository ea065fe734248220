"""Smaller forms of a job: those that its workload names, and fewer epochs or smaller input for any script. No torch.

from_table(table["presets"])                 # from workload.toml
for_script(Path("train.py"), {"lr": "0.1"})  # from the arguments that its train() has, by their usual names

[[detection.presets]]
name = "half the epochs"
epochs = { argument = "epochs", share = 0.5 }        # needs no trial of its own
[[detection.presets]]
name = "96 px"
arguments = { imgsz = "96" }
score = 0.61                                         # where it is known, with `basis`
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

AS_ASKED = "as asked"
_EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "updates")
SIDES = ("imgsz", "image_size", "img_size", "input_size", "resolution", "side", "crop")


@dataclass(frozen=True, slots=True)
class Preset:
    """A job made smaller."""

    name: str
    arguments: tuple[tuple[str, str], ...] = ()
    epochs_argument: str = ""
    share: float = 1.0
    """Of the epochs."""
    score: float | None = None
    basis: str = ""
    """Where the score comes from."""
    instead_of: tuple[tuple[str, str], ...] = ()
    """What its arguments are in the job as it was asked for, as far as that can be read."""

    @property
    def needs_trial(self) -> bool:
        return bool(self.arguments)

    def for_job(self, known: Iterable[str], epochs: int | None) -> dict[str, str] | None:
        """What it changes in a job that takes these arguments and has so many epochs; None if nothing."""
        names = set(known)
        changed = {key: value for key, value in self.arguments if key in names}
        if self.share < 1.0 and self.epochs_argument in names and epochs is not None and epochs > 1:
            changed[self.epochs_argument] = str(max(1, round(epochs * self.share)))
        return changed or None


def from_table(rows: object) -> tuple[Preset, ...]:
    """What a workload names in its workload.toml."""
    found = []
    for row in rows if isinstance(rows, list) else ():
        epochs: Mapping[str, Any] = row.get("epochs") or {}
        score = row.get("score")
        found.append(
            Preset(
                name=str(row["name"]),
                arguments=tuple((str(key), str(value)) for key, value in (row.get("arguments") or {}).items()),
                epochs_argument=str(epochs.get("argument", "")),
                share=float(epochs.get("share", 1.0)),
                score=float(score) if isinstance(score, (int, float)) else None,
                basis=str(row.get("basis", "")),
            )
        )
    return tuple(found)


def smaller_than(given: Mapping[str, str], named: Iterable[Preset], path: Path) -> tuple[Preset, ...]:
    """Those that make this script with these arguments smaller. Their scores are known for the job as it comes only."""
    now = {key: str(value) for key, value in _defaults(path).items() if value is not None} | dict(given)
    found = [each for each in named if all(_is_less(value, now.get(key)) for key, value in each.arguments)]
    told = [replace(each, instead_of=tuple((k, now[k]) for k, _ in each.arguments if k in now)) for each in found]
    return tuple(replace(each, score=None, basis="") if given else each for each in told)


def _is_less(value: str, now: str | None) -> bool:
    """A smaller number than there is now, or another word."""
    try:
        return now is None or float(value) < float(now)
    except ValueError:
        return value != now


def for_script(path: Path, given: Mapping[str, str]) -> tuple[Preset, ...]:
    """Half of the epochs, half of the side of the input: if `train` has arguments that are called so."""
    defaults = _defaults(path)
    found = []
    epochs = next((name for name in _EPOCHS if name in defaults), None)
    if epochs is not None:
        found.append(Preset("half the epochs", epochs_argument=epochs, share=0.5))
    side = next((name for name in SIDES if isinstance(defaults.get(name), int)), None)
    if side is not None:
        now = _whole(given.get(side)) or defaults[side]
        if isinstance(now, int) and now >= 64:
            half = max(32, now // 2 // 32 * 32)
            found.append(Preset(f"{side} {half}", arguments=((side, str(half)),), instead_of=((side, str(now)),)))
    return tuple(found)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _defaults(path: Path) -> dict[str, Any]:
    """The arguments of `train` with the values they have by themselves, as far as they can be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    train = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "train"), None)
    if train is None:
        return {}
    plain = train.args.args[1:]
    pairs = [*zip(plain[len(plain) - len(train.args.defaults) :], train.args.defaults, strict=False)]
    pairs += [(each, value) for each, value in zip(train.args.kwonlyargs, train.args.kw_defaults, strict=True) if value]
    return {each.arg: value.value if isinstance(value, ast.Constant) else None for each, value in pairs}
