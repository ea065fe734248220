"""What the plan said of a run, to be seen beside what becomes of it.

    found = planned(run.info.get("plan"))     # {"seconds": 11400, "low": 10200, "high": 12600, "option": "cuda:0 fp32"}
    found.time                                # 3h 10m ±20m
    found.words                               # the plan said 3h 10m ±20m and $0.22 for cuda:0 fp32
    found.beside(run.lasted_s)                # …, it took 3h 18m

A run that was started without a plan has none, and nothing is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from holdfast.base.human import duration
from holdfast.monitor.story import amount

AS_ASKED = "as asked"
"""The form of a job that is not made smaller."""
_LONGEST = 80


@dataclass(frozen=True)
class Planned:
    """How long it was to take, between what, and with which of the options."""

    seconds: float | None
    low: float | None
    high: float | None
    cost_usd: float | None
    option: str

    @property
    def time(self) -> str:
        """With half of its spread, as `holdfast plan` says it."""
        if self.seconds is None:
            return ""
        if self.low is None or self.high is None or not self.low < self.high:
            return duration(self.seconds)
        return f"{duration(self.seconds)} ±{duration((self.high - self.low) / 2).removesuffix(' 00s')}"

    @property
    def words(self) -> str:
        said = [self.time] if self.time else []
        said += [] if self.cost_usd is None else [dollars(self.cost_usd)]
        if not said:
            return ""
        return f"the plan said {' and '.join(said)}{f' for {self.option}' if self.option else ''}"

    def beside(self, lasted_s: float | None) -> str:
        """For a run that is finished: what was said, and what it was."""
        return f"{self.words}, it took {duration(lasted_s)}" if self.time and lasted_s else self.words


def planned(plan: object) -> Planned | None:
    """From run.json, which may be anybody's: what is not a time is not one."""
    if not isinstance(plan, dict):
        return None
    seconds = _time(plan.get("seconds", plan.get("time_s")))
    low, high = _time(plan.get("low", plan.get("time_low_s"))), _time(plan.get("high", plan.get("time_high_s")))
    cost = amount(plan.get("cost_usd"))
    found = Planned(seconds, low, high, cost if cost is not None and math.isfinite(cost) else None, _option(plan))
    return found if found.words else None


def _option(plan: dict[str, Any]) -> str:
    """Which of the options it was: a name, or where and in which form it was to run."""
    form = plan.get("preset")
    parts = [plan.get("option") or plan.get("where"), None if form == AS_ASKED else form]
    return " ".join(", ".join(part for part in parts if isinstance(part, str) and part).split())[:_LONGEST]


def dollars(amount: float) -> str:
    return f"${amount:.2f}" if amount >= 0.005 or not amount else "under $0.01"


def _time(value: object) -> float | None:
    found = amount(value)
    return found if found is not None and math.isfinite(found) and found >= 0 else None
