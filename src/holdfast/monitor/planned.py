"""What the plan said of a run, to be seen beside what becomes of it.

    found = planned(run.info.get("plan"))     # {"seconds": 11400, "low": 10200, "high": 12600, "option": "cuda:0 fp32"}
    found.time                                # 3h 10m ±20m
    found.words                               # the plan said 3h 10m ±20m and $0.22 for cuda:0 fp32

A run that was started without a plan has none, and nothing is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.human import duration
from holdfast.monitor.story import amount

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
        """The spread as ±, or from and to where it leans to one side."""
        if self.seconds is None:
            return ""
        if self.low is None or self.high is None or not self.low < self.high:
            return duration(self.seconds)
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        if abs(middle - self.seconds) <= 0.2 * half:
            return f"{duration(self.seconds)} ±{duration(half).removesuffix(' 00s')}"
        return f"{duration(self.seconds)} ({duration(self.low)} to {duration(self.high)})"

    @property
    def words(self) -> str:
        said = [self.time] if self.time else []
        said += [] if self.cost_usd is None else [dollars(self.cost_usd)]
        if not said:
            return ""
        return f"the plan said {' and '.join(said)}{f' for {self.option}' if self.option else ''}"

    def beside(self, lasted_s: float | None) -> str:
        """For a run that is over: what was said, and what it was."""
        took = f", it took {duration(lasted_s)}" if lasted_s is not None and self.time else ""
        return f"{self.words}{took}"


def planned(plan: object) -> Planned | None:
    """From run.json, which may be anybody's: what is not a time is not one."""
    if not isinstance(plan, dict):
        return None
    seconds = _time(plan.get("seconds", plan.get("time_s")))
    low, high = _time(plan.get("low", plan.get("time_low_s"))), _time(plan.get("high", plan.get("time_high_s")))
    option, cost = plan.get("option"), amount(plan.get("cost_usd"))
    name = " ".join(option.split())[:_LONGEST] if isinstance(option, str) else ""
    found = Planned(seconds, low, high, cost if cost is not None and math.isfinite(cost) else None, name)
    return found if found.words else None


def dollars(amount: float) -> str:
    return f"${amount:.2f}" if amount >= 0.005 or not amount else "under $0.01"


def _time(value: object) -> float | None:
    found = amount(value)
    return found if found is not None and math.isfinite(found) and found >= 0 else None
