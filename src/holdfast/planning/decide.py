"""Which way to take: a pure function of the rows and of what is wanted. The same rows give the same answer, any time.

decided = decide(options, Wanted(deadline_s=43200, budget_usd=5))
decided.chosen                # the number of a row, counted from 0; None if none will do
decided.judged[2].refused_by  # "late", "costs $6.10 of $5.00", …; empty for one that will do
decided.judged[2].dominated_by
decided.why                   # in a sentence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.base.human import duration
from holdfast.planning.option import RISKS, Option

ALIKE = 0.03
"""Times that are no further apart than this part of them are not told apart."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a plan has to keep to; None is no limit."""

    deadline_s: float | None = None
    budget_usd: float | None = None
    min_score: float | None = None
    risk: str | None = None
    """The most that is taken: low, medium or high."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found about one row."""

    refused_by: str = ""
    dominated_by: int | None = None
    dominated_how: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    chosen: int | None
    judged: tuple[Judged, ...]
    why: str
    after: int | None = None
    """The row a run goes on as, if the device of the chosen one fails for good."""


def decide(options: Sequence[Option], wanted: Wanted) -> Decided:
    """Judge each row, then take the best of those that will do."""
    refused = [refusal(option, wanted) for option in options]
    good = [number for number, why in enumerate(refused) if not why]
    by = [_dominator(number, options) for number in range(len(options))]
    judged = tuple(
        Judged(why, *(_told(options, number, other) if other is not None else (None, "")))
        for number, (why, other) in enumerate(zip(refused, by, strict=True))
    )
    if not good:
        return Decided(None, judged, _why_none(options, refused))
    chosen = min(good, key=lambda number: _preference(options[number], number, wanted))
    after = [n for n in good if options[n].device == "cpu" and options[chosen].device not in ("cpu", "")]
    last = min(after, key=lambda number: _preference(options[number], number, wanted)) if after else None
    return Decided(chosen, judged, _why(options, good, chosen, wanted), last)


def refusal(option: Option, wanted: Wanted) -> str:
    """Why a row will not do; nothing if it will."""
    if option.refused_by:
        return option.refused_by
    if option.kind == "advice":
        return "advice"
    if option.time_s is None:
        return "its time is not known"
    if option.kind == "cloud" and wanted.budget_usd is None:
        return "costs money: give --budget"
    careful = wanted.risk == "low"
    until = option.high_s if careful and option.high_s is not None else option.time_s
    if wanted.deadline_s is not None and until > wanted.deadline_s:
        return "late" if until == option.time_s else f"may be late: up to {duration(until)}"
    if wanted.budget_usd is not None and (option.cost_usd or 0.0) > wanted.budget_usd:
        return f"costs ${option.cost_usd:.2f} of ${wanted.budget_usd:.2f}"
    if wanted.min_score is not None:
        if option.score is None:
            return "its score is not known"
        if option.score < wanted.min_score:
            return f"scores {option.score:g}, not {wanted.min_score:g}"
    if wanted.risk is not None and RISKS.index(option.risk) > RISKS.index(wanted.risk):
        return f"risk {option.risk}"
    return ""


def _preference(option: Option, number: int, wanted: Wanted) -> tuple[float, ...]:
    """The smallest is taken. The job as it was asked for comes before any smaller one. With a deadline, what is in
    time and costs least; without one, what is done first."""
    cost, time_s = option.cost_usd or 0.0, option.time_s or 0.0
    smaller = float(option.rank)
    risk = float(RISKS.index(option.risk))
    if wanted.deadline_s is not None:
        return (smaller, float(option.kind == "cloud"), cost, risk, time_s, float(number))
    return (smaller, float(option.kind == "cloud"), time_s, cost, risk, float(number))


def _dominator(number: int, options: Sequence[Option]) -> int | None:
    """The first row that is at least as good in everything, and better in something."""
    mine = options[number]
    if mine.refused_by or mine.time_s is None or mine.kind == "advice":
        return None
    for other, theirs in enumerate(options):
        if other == number or theirs.refused_by or theirs.time_s is None or theirs.kind == "advice":
            continue
        if _better(theirs, mine):
            return other
    return None


def _pairs(one: Option, other: Option) -> list[tuple[str, float, float]]:
    """What is compared: smaller is better in all of it."""
    return [
        ("faster", *_apart(one.time_s or 0.0, other.time_s or 0.0)),
        ("cheaper", one.cost_usd or 0.0, other.cost_usd or 0.0),
        ("less risky", RISKS.index(one.risk), RISKS.index(other.risk)),
        ("less reduced", one.rank, other.rank),
    ]


def _apart(one: float, other: float) -> tuple[float, float]:
    """Times that a measurement cannot tell apart count as the same."""
    return (0.0, 0.0) if abs(one - other) < ALIKE * max(one, other) else (one, other)


def _better(one: Option, other: Option) -> bool:
    if one.score is not None and other.score is not None and one.score < other.score:
        return False
    pairs = _pairs(one, other)
    return all(mine <= theirs for _, mine, theirs in pairs) and any(mine < theirs for _, mine, theirs in pairs)


def _told(options: Sequence[Option], number: int, other: int) -> tuple[int, str]:
    words = [word for word, theirs, mine in _pairs(options[other], options[number]) if theirs < mine]
    return other, " and ".join(words)


def _why(options: Sequence[Option], good: list[int], chosen: int, wanted: Wanted) -> str:
    row = options[chosen]
    alike = [number for number in good if options[number].rank == row.rank and options[number].kind == row.kind]
    as_asked = "" if row.rank == 0 else f" The job as it was asked for does not fit, so it is {row.preset}."
    if len(good) == 1:
        return f"It is the only row that will do.{as_asked}"
    if wanted.deadline_s is not None:
        said = "Of the rows that are in time, it costs least."
        costs = {round(options[number].cost_usd or 0.0, 2) for number in alike}
        if len(costs) == 1:
            said = "Of the rows that are in time, none is cheaper, and it has the least risk and time."
        return said + as_asked
    if len(alike) == 1:
        only = "It is the only way here to do the job as it was asked for."
        return only if row.rank == 0 and row.kind == "local" else f"Of the rows that will do, none is better.{as_asked}"
    return f"Of the rows that will do, it is done first.{as_asked}"


def _why_none(options: Sequence[Option], refused: list[str]) -> str:
    told = [why for option, why in zip(options, refused, strict=True) if option.kind != "advice"]
    return "No row will do" + (f": {', '.join(dict.fromkeys(told))}." if told else ".")
