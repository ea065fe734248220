"""The best value so far, and whether the weights that made it are still to be saved. No torch here.

    best = Best(run_folder, "auto")                     # of a run that goes on: what best.safetensors says it holds
    best.consider(88, 10, {"valid_loss": 0.61})         # better than before: its weights are due
    best.taken(88)                                      # True once, at the end of its epoch

A supervisor that is killed writes nothing down. So the file itself says whose weights it holds, and a run that goes on
never replaces them by worse ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from holdfast.base.files import number, whole
from holdfast.run.digests import Origin
from holdfast.run.folder import RunFolder
from holdfast.run.metric_direction import smaller_is_better
from holdfast.state.weights_file import read_said

FILE = "best.safetensors"

Known = dict[str, Any]
"""{"name", "value", "step", "epoch"} of a value that was logged."""


class Best:
    """Of one metric."""

    def __init__(self, run: RunFolder, metric: str) -> None:
        self._run = run
        self._metric = metric
        self._saved, self._weights_of = self._before()
        """The value whose weights are in the file, or will be as they were asked for; and the step they are of."""
        self.known = self._saved
        self.due = False
        """True from a new best value to the end of its epoch, when the weights that made it are committed."""
        self._unread = True
        """What was logged by an earlier supervisor, or beside a value that is not believed, may have to be read."""

    def consider(self, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        name = self._name(values)
        value, known = number(values.get(name), math.nan), self.known
        if math.isnan(value):
            return
        if known is None or (value < known["value"] if smaller_is_better(name) else value > known["value"]):
            self.known = {"name": name, "value": value, "step": step, "epoch": epoch}
            self.due = True

    def go_on(self, step: int, epoch: int, *, ended: bool, inside: bool = True) -> None:
        """A worker goes on after `step`: what was logged later comes again, what was logged before may still count.

        That are the values of this epoch, and if one has just `ended` with these very weights, those of its end. A run
        that is not `inside` of a loop over epochs has none whose end is still to come: there, those of this step.
        """
        self._forget_after(step)
        if not self._unread:
            return
        self._unread = False
        found: dict[int, dict[str, Any]] = {}
        for record in self._run.newest_metrics(epoch - 1 if ended else epoch):
            at = record.get("step")
            if not isinstance(at, int) or at > step or (at < step and not inside):
                continue
            if record.get("epoch") == epoch or (ended and at == step):
                found[at] = {**found.get(at, {}), **record}  # what was written last of a step counts
        for at, record in sorted(found.items()):
            self.consider(at, whole(record.get("epoch")), record)

    def taken(self, step: int) -> bool:
        """Whether the weights after this step are the best: then they are saved, and no longer due."""
        if not self.due or self.known is None or self.known["step"] > step:
            return False
        self._saved, self._weights_of, self.due = self.known, step, False
        return True

    def undo(self, step: int) -> bool:
        """What came after this step is not believed. True if the weights in the file are not, either."""
        if self._weights_of > step:
            self.known, self._saved, self._weights_of, self.due = None, None, 0, False
            self._unread = True
            return True
        self._forget_after(step)
        return False

    def _forget_after(self, step: int) -> None:
        """A value whose weights were not saved yet: its steps were lost, or are not believed."""
        if self.due and self.known is not None and self.known["step"] > step:
            self.known, self.due, self._unread = self._saved, False, True

    def _name(self, values: Mapping[str, Any]) -> str:
        if self._metric == "none":
            return ""
        if self._metric != "auto":
            return self._metric
        return str(self.known["name"]) if self.known else next((key for key in values if key.startswith("val")), "")

    def _before(self) -> tuple[Known | None, int]:
        """What the file holds; if it does not say it, what the run said when it ended."""
        path = self._run.path / FILE
        if not path.is_file():
            return None, 0
        said = read_said(path)
        mine = said.get("run") in ("-", Origin.of(self._run.info, self._run.path).run)
        best = _checked(_parsed(said.get("best")) if mine else None) or _checked(self._run.info.get("best"))
        if best is None or self._metric not in ("auto", "none", best["name"]):
            return None, 0
        return best, max(best["step"], whole(_parsed(said.get("step"))))


def _parsed(text: str | None) -> object:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _checked(said: object) -> Known | None:
    """The file may be somebody else's."""
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return None
    value = number(said.get("value"), math.nan)
    if math.isnan(value):
        return None
    return {"name": said["name"], "value": value, "step": whole(said.get("step")), "epoch": whole(said.get("epoch"))}
