"""The best value so far, and whether the weights that made it are still to be saved. No torch here.

    best = Best(run_folder, "auto")                     # of a run that goes on: what best.safetensors says it holds
    best.consider(88, 10, {"valid_loss": 0.61})         # better than before: its weights are due
    best.taken()                                        # True once, at the end of its epoch

A supervisor that is killed writes nothing down. So the file itself says whose weights it holds, and a run that goes on
never replaces them by worse ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from holdfast.better import smaller_is_better
from holdfast.files import number, whole
from holdfast.runfolder import RunFolder
from holdfast.runtime.digests import Origin
from holdfast.runtime.weights import read_said

FILE = "best.safetensors"


class Best:
    """Of one metric: `known` is {"name", "value", "step", "epoch"}, or None before the first."""

    def __init__(self, run: RunFolder, metric: str) -> None:
        self._run = run
        self._metric = metric
        self.known = self._before()
        self.due = False
        """True from a new best value to the end of its epoch, when the weights that made it are committed."""

    def consider(self, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        name = self._name(values)
        value = values.get(name)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return
        known = self.known
        if known is None or (value < known["value"] if smaller_is_better(name) else value > known["value"]):
            self.known = {"name": name, "value": float(value), "step": step, "epoch": epoch}
            self.due = True

    def go_on(self, step: int, epoch: int) -> None:
        """A worker goes on here: what was logged of these very weights, or in this epoch, may still be the best."""
        found: dict[int, dict[str, Any]] = {}
        for record in self._run.last_metrics():
            at = record.get("step")
            if isinstance(at, int) and at <= step and (at == step or record.get("epoch") == epoch):
                found[at] = {**found.get(at, {}), **record}  # what was written last of a step counts
        for at, record in sorted(found.items()):
            self.consider(at, whole(record.get("epoch")), record)

    def taken(self) -> bool:
        """Whether the weights of this moment are the best: they are saved, and no longer due."""
        due, self.due = self.due, False
        return due

    def undo(self, step: int) -> None:
        """What was logged after this step is not believed."""
        if self.known is not None and self.known["step"] > step:
            self.known = None
            self.due = False

    def _name(self, values: Mapping[str, Any]) -> str:
        if self._metric == "none":
            return ""
        if self._metric != "auto":
            return self._metric
        return str(self.known["name"]) if self.known else next((key for key in values if key.startswith("val")), "")

    def _before(self) -> dict[str, Any] | None:
        """What the file holds; of one that does not say it, what the run said when it ended."""
        said = read_said(self._run.path / FILE)
        mine = said.get("run") in ("-", Origin.of(self._run.info, self._run.path).run)
        best = _checked(_parsed(said.get("best")) if mine else None) or _checked(self._run.info.get("best"))
        return best if best and self._metric in ("auto", "none", best["name"]) else None


def _parsed(text: str | None) -> object:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _checked(said: object) -> dict[str, Any] | None:
    """The file may be somebody else's."""
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return None
    value = number(said.get("value"), math.nan)
    if math.isnan(value):
        return None
    return {"name": said["name"], "value": value, "step": whole(said.get("step")), "epoch": whole(said.get("epoch"))}
