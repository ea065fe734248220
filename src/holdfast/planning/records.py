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
REMEMBERED_FOR_S, PLANNED_S, BUSY_S = 30 * 86400.0, 7 * 86400.0, 3600.0
"""What was measured on a busy machine may be wrong for a quiet one, and is forgotten sooner; but what a plan's trial
took lasts as long as the plan, which has reckoned with it."""
PLAIN = Choice()


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate, as it was measured."""

    choice: Choice
    seconds: float | None
    """The median of its steps."""
    ratio: float | None
    """Its time over that of the one it was compared with, the median of pairs; below 1 is faster."""
    refused: str = ""
    against: Choice | None = None
    low: float | None = None
    high: float | None = None
    """Between these the ratio lies, nine times of ten; for fewer than five pairs, all that were seen."""
    pairs: int = 0
    wins: int = 0
    """Pairs in which it was the faster one."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was chosen, and why."""

    choice: Choice
    speedup: float
    """Against the best plain setting; where that itself was chosen, against all threads."""
    plain_s: float | None
    took_s: float
    rows: tuple[Row, ...] = field(default=())
    basis: str = "measured"
    low: float = 1.0
    high: float = 1.0
    base: Choice = PLAIN
    """The best plain setting: a plain step with the number of threads that is fastest."""
    pairs: int = 0
    wins: int = 0
    load: float = 0.0
    """How many wanted to run at a time while it was measured, where that was more than there are cores; else 0."""

    def words(self) -> str:
        """One line for the user."""
        if self.basis.startswith(("not measured", "left to the run")):
            return f"not tuned: {self.choice.words()} settings ({self.basis.partition(': ')[2]})"
        tried = f"{len(self.rows)} tried in {self.took_s:.1f} s" if self.basis == "measured" else self.basis
        return f"tuned: {self._told()} ({tried}){self._busy()}"

    def _told(self) -> str:
        if self.choice == PLAIN:
            return "no setting is surely faster than plain" if self.load else "plain settings are the fastest"
        spread = f"{self.low:.2f} to {self.high:.2f}"
        spread += f", faster in {self.wins} of {self.pairs} pairs" if self.pairs else ""
        if self.choice == self.base:
            return (
                f"{self.choice.words()}, the best plain setting: {self.speedup:.2f}x ({spread}) as fast as all threads"
            )
        than = "plain" if self.base == PLAIN else f"the best plain setting ({self.base.words()})"
        return f"{self.choice.words()}: {self.speedup:.2f}x ({spread}) as fast as {than}"

    def _busy(self) -> str:
        if not self.load:
            return ""
        many = f"{self.load:.0f} processes want {os.cpu_count()} cores"
        return f"; the machine is busy ({many}): on a quiet one another setting may be faster"


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
                **_numbers(result),
                "choice": result.choice.to_json(),
                "basis": result.basis,
                "plain_s": result.plain_s,
                "took_s": round(result.took_s, 2),
                "rows": [asdict(row) for row in result.rows],
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
        planned = found.get("planned") is True
        lasts = PLANNED_S if planned else BUSY_S if found.get("busy") else REMEMBERED_FOR_S
        if not 0 <= time.time() - files.number(found.get("when")) < lasts:
            return None
        choice = Choice.from_json(found.get("choice"))
        if choice is None:
            return None
        allowed = {knob.name: {json.dumps(value) for value in knob.values} for knob in knobs}
        for name, value in choice.to_json().items():
            if json.dumps(value) not in allowed.get(name, {json.dumps(getattr(start, name))}):
                return None
        whence = f"remembered from {'the plan' if planned else 'an earlier run'}"
        numbers = {name: files.number(found.get(name)) for name in ("speedup", "low", "high", "load")}
        return Result(
            choice, numbers["speedup"] or 1.0, None, 0.0, (), whence,
            numbers["low"] or 1.0, numbers["high"] or 1.0, Choice.from_json(found.get("base")) or PLAIN,
            int(files.number(found.get("pairs"))), int(files.number(found.get("wins"))), numbers["load"],
        )  # fmt: skip

    def keep(self, result: Result, *, planned: bool = False) -> None:
        """For next time; `planned` is what the trial of a plan found, for the run that follows it."""
        told = {**_numbers(result), "choice": result.choice.to_json(), "when": time.time(), "planned": planned}
        told["busy"] = result.load > 0 or load() > 0
        try:
            make_private(self.path.parent)
            data = files.read_json(self.path) or {}
            newest = dict(list(data.items())[-200:])
            files.write_json(self.path, {**newest, self.key: told})
        except OSError:
            return


def _numbers(result: Result) -> dict[str, Any]:
    return {
        "speedup": round(result.speedup, 3), "low": round(result.low, 3), "high": round(result.high, 3),
        "pairs": result.pairs, "wins": result.wins, "base": result.base.to_json(), "load": round(result.load, 1),
    }  # fmt: skip


def load() -> float:
    """How many want to run here, where that is clearly more than there are cores; else, and where nobody knows, 0."""
    if sys.platform == "win32":
        return 0.0
    try:
        now = os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0
    return now if now > 1.5 * (os.cpu_count() or 1) else 0.0
