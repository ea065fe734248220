"""What the tuner found, kept twice: in the run folder, where it binds, and for this machine, where it saves time.

    record = Record(run_folder / FILE, "cpu")
    record.choice()                          # what this run computes with; None if nothing was decided yet
    record.trying(choice)                    # before each candidate: one that ends the process is known afterwards
    record.keep(result)
    Memory(key).recall(knobs, plain)         # what an earlier run measured for the same work on this machine

Both files may come from anywhere: what is no choice, or none of the candidates, is not used.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base import files
from holdfast.base.folders import make_private
from holdfast.planning.choice import Choice, Knob

FILE = "tuning.json"
REMEMBERED_FOR_S, BUSY_S = 30 * 86400.0, 3600.0
"""What was measured on a busy machine may be wrong for a quiet one, and is forgotten sooner."""


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate, as it was measured."""

    choice: Choice
    seconds: float | None
    """The median of its steps."""
    ratio: float | None
    """Its time over that of the best so far, in pairs; below 1 is faster."""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What was chosen, and why."""

    choice: Choice
    speedup: float
    plain_s: float | None
    took_s: float
    rows: tuple[Row, ...] = field(default=())
    basis: str = "measured"

    def words(self) -> str:
        """One line for the user."""
        tried = f"{len(self.rows)} tried in {self.took_s:.1f} s" if self.basis == "measured" else self.basis
        if self.basis.startswith("not measured"):
            return f"not tuned: {self.choice.words()} settings ({self.basis.partition(': ')[2]})"
        if self.choice == Choice():
            return f"tuned: plain settings are the fastest ({tried})"
        return f"tuned: {self.choice.words()}: {self.speedup:.2f}x as fast as plain ({tried})"


class Record:
    """tuning.json of a run: the choice for each device, and what was being tried."""

    def __init__(self, path: Path, device: str) -> None:
        self.path, self.device = path, device

    def _mine(self) -> dict[str, Any]:
        data = files.read_json(self.path) or {}
        mine = data.get(self.device)
        return mine if isinstance(mine, dict) else {}

    def _write(self, mine: dict[str, Any]) -> None:
        data = files.read_json(self.path) or {}
        try:
            files.write_json(self.path, {**data, "schema": 1, self.device: {**self._mine(), **mine}})
        except OSError:
            return  # a full disk: the next worker measures again

    def choice(self) -> Choice | None:
        return Choice.from_json(self._mine().get("choice"))

    def trying(self, choice: Choice | None) -> None:
        tried = self._mine().get("tried")
        before = tried if isinstance(tried, list) else []
        self._write({"trying": choice.to_json() if choice else None, "tried": before})

    def ended_a_worker(self) -> list[Choice]:
        """What was being tried when a worker before this one ended."""
        mine = self._mine()
        tried = mine.get("tried")
        known = [*(tried if isinstance(tried, list) else []), mine.get("trying")]
        found = [choice for each in known if (choice := Choice.from_json(each)) is not None]
        if found:
            self._write({"tried": [each.to_json() for each in found], "trying": None})
        return found

    def keep(self, result: Result) -> None:
        self._write(
            {
                "choice": result.choice.to_json(),
                "basis": result.basis,
                "speedup": round(result.speedup, 3),
                "plain_s": result.plain_s,
                "took_s": round(result.took_s, 2),
                "rows": [{**asdict(row), "choice": row.choice.to_json()} for row in result.rows],
                "trying": None,
            }
        )


class Memory:
    """What was measured on this machine before, for the same work."""

    def __init__(self, key: str) -> None:
        from holdfast.devices.ledger import state_folder

        self.path, self.key = state_folder() / FILE, key

    def recall(self, knobs: Sequence[Knob], start: Choice) -> Result | None:
        found = (files.read_json(self.path) or {}).get(self.key)
        if not isinstance(found, dict):
            return None
        lasts = BUSY_S if found.get("busy") else REMEMBERED_FOR_S
        if not 0 <= time.time() - files.number(found.get("when")) < lasts:
            return None
        choice = Choice.from_json(found.get("choice"))
        if choice is None:
            return None
        allowed = {knob.name: {json.dumps(value) for value in knob.values} for knob in knobs}
        for name, value in choice.to_json().items():
            if json.dumps(value) not in allowed.get(name, {json.dumps(getattr(start, name))}):
                return None
        return Result(
            choice, files.number(found.get("speedup")) or 1.0, None, 0.0, (), "remembered from an earlier run"
        )

    def keep(self, result: Result, *, briefly: bool = False) -> None:
        """For next time; `briefly` is for what was measured in less time than it deserves."""
        told = {
            "choice": result.choice.to_json(),
            "speedup": round(result.speedup, 3),
            "when": time.time(),
            "busy": briefly or busy(),
        }
        try:
            make_private(self.path.parent)
            data = files.read_json(self.path) or {}
            newest = dict(list(data.items())[-200:])
            files.write_json(self.path, {**newest, self.key: told})
        except OSError:
            return


def busy() -> bool:
    """Whether clearly more wants to run here than there are cores; False where that cannot be asked."""
    if sys.platform == "win32":
        return False
    try:
        return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return False
