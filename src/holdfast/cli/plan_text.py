"""A plan as people and programs read it: the table, the choice in sentences, `--why`, `--json`.

for line in page(plan, plan.rows(), plan.decided()): print(line)
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

from holdfast.base.dataclass_json import write
from holdfast.base.human import counted, duration, table
from holdfast.console.text import without_control
from holdfast.planning.decide import Decided
from holdfast.planning.measurement import Measurement
from holdfast.planning.option import Option
from holdfast.planning.plans import Plan
from holdfast.planning.presets import AS_ASKED

FEW = 4
"""Rented GPUs in the table, unless all are asked for."""
_HEADER = (" #", "WHERE", "MODEL", "TIME", "COST", "RISK", "SCORE", "BASIS")
_SHORT = {"costs money: give --budget": "needs --budget"}


def numbers(rows: Sequence[Option]) -> dict[int, int]:
    """The number that each row is called by, from its place; rows that cannot be taken have none."""
    able = [place for place, row in enumerate(rows) if not row.refused_by]
    return {place: number for number, place in enumerate(able, 1)}


def command(plan: Plan, verb: str, *flags: str) -> str:
    """`holdfast …` for the words that were planned, to be typed."""
    argv = ("--", *plan.argv) if plan.argv else ()
    return shlex.join(["holdfast", verb, plan.asked, *plan.words, *flags, *argv])


def page(
    plan: Plan,
    rows: Sequence[Option],
    decided: Decided,
    *,
    width: int = 100,
    all_rows: bool = False,
    why: bool = False,
    kept: bool = True,
) -> list[str]:
    """All of it, in the order of the design. `kept`: the choice is the one that `holdfast train` follows by itself."""
    called = numbers(rows)
    shown = _shown(rows, decided, all_rows)
    lines = [_head(plan), ""]
    lines += table([_cells(plan, rows, decided, called, place) for place in shown], header=_HEADER)
    left = len(rows) - len(shown)
    if left:
        lines.append(f"    and {counted(left, 'more rented GPU')}: `--all`")
    lines += ["", *_sentences(rows, decided, called, width), *_wrapped(_not_measured(rows, called), width)]
    lines += _wrapped(_busy(plan), width)
    lines += _wrapped(_basis(plan, rows), width)
    if why:
        lines += ["", *_why(plan, rows, decided, called, width)]
    lines += ["", *_next(plan, rows, decided, called, kept)]
    return [without_control(line) for line in lines]


def _head(plan: Plan) -> str:
    seen = [each for each in plan.measurements if each.usable]
    steps = sum(each.steps_seen for each in seen)
    where = len({(each.device, each.precision, each.threads) for each in seen})
    if not seen:
        return f"Nothing of {_asked(plan)} could be measured here ({duration(plan.measured_s)})."
    ways = f" in {counted(where, 'way')}" if where > 1 else ""
    larger = f" Times are for {plan.world.larger:,} times the data." if plan.world.larger > 1 else ""
    return f"Measured {_asked(plan)} here: {counted(steps, 'step')}{ways}, {duration(plan.measured_s)}.{larger}"


def _busy(plan: Plan) -> list[str]:
    """Steps that wait for a processor take longer, and whether they will in the run nobody knows."""
    if not plan.load:
        return []
    many = f"{plan.load:.0f} processes wanted {counted(plan.cores, 'core')}" if plan.cores else f"load {plan.load:.0f}"
    return [f"The machine was busy while this was measured ({many}): on a quiet one the times are shorter."]


def _asked(plan: Plan) -> str:
    return f"`{' '.join([plan.asked, *plan.words])}`"


def _shown(rows: Sequence[Option], decided: Decided, all_rows: bool) -> list[int]:
    """Everything local, the few rented GPUs that nothing beats, advice."""
    cloud = [place for place, row in enumerate(rows) if row.kind == "cloud"]
    order = sorted(cloud, key=lambda place: (decided.judged[place].dominated_by is not None, place))
    kept = set(cloud if all_rows else order[:FEW]) | {decided.chosen}
    return [place for place, row in enumerate(rows) if row.kind != "cloud" or place in kept]


def _cells(plan: Plan, rows: Sequence[Option], decided: Decided, called: dict[int, int], place: int) -> tuple[str, ...]:
    row, judged = rows[place], decided.judged[place]
    number = f"{called[place]:>2}" if place in called else " -"
    mark = "←" if decided.chosen == place else ""
    if row.refused_by and row.kind != "advice":
        why = _cut(row.refused_by.removeprefix("refused "), 60)
        return (
            number,
            row.where,
            _model(row),
            when(row),
            "-",
            "-",
            "-",
            f"{'refused' if row.basis == 'refused' else '-'}  {why}",
        )
    if not mark and row.kind != "advice":
        mark = _SHORT.get(judged.refused_by, judged.refused_by)
        if not mark and judged.dominated_by is not None:
            mark = f"({called.get(judged.dominated_by, '-')} is {judged.dominated_how})"
    score = "-" if row.score is None else f"{row.score:g}"
    basis = "advice" if row.kind == "advice" else row.basis
    return (number, row.where, _model(row), when(row), money(row), _risk(row), score, f"{basis}  {mark}".rstrip())


def _model(row: Option) -> str:
    return row.preset


def _risk(row: Option) -> str:
    return "-" if row.kind == "advice" else row.risk


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def when(row: Option) -> str:
    """3h 10m ±20m; from – to where the ends are far apart; the lower end alone, where nothing else is known."""
    if row.time_s is None:
        return "-" if row.low_s is None else f"more than {_about(row.low_s)}"
    if row.high_s is None or row.low_s is None:
        return f"{_about(row.time_s)} or more"
    if row.high_s > 2.2 * row.low_s:
        return f"{_about(row.low_s)} to {_about(row.high_s)}"
    return f"{duration(row.time_s)} ±{_about((row.high_s - row.low_s) / 2)}"


def _about(seconds: float) -> str:
    """Rounded as one would say it."""
    if seconds < 10:
        return f"{max(1, round(seconds))}s"
    if seconds < 100:
        return f"{round(seconds)}s"
    if seconds < 5400:
        return f"{round(seconds / 60)}m"
    hours = seconds / 3600
    return f"{hours:.1f}h" if hours < 10 else f"{round(hours)}h" if hours < 72 else f"{round(hours / 24)}d"


def money(row: Option) -> str:
    if row.cost_usd is not None:
        return "<$0.01" if 0 < row.cost_usd < 0.01 else f"${row.cost_usd:.2f}"
    if row.energy_wh is not None:
        return f"{row.energy_wh / 1000:.2f} kWh" if row.energy_wh >= 10 else f"{row.energy_wh:.1f} Wh"
    return "-"


def _sentences(rows: Sequence[Option], decided: Decided, called: dict[int, int], width: int) -> list[str]:
    if decided.chosen is None:
        return _wrapped([decided.why], width)
    row = rows[decided.chosen]
    said = [f"Chosen: row {called[decided.chosen]}. {decided.why}"]
    if row.faults >= 0.5:
        said.append(f"It will probably fault {_times(row.faults)}; the time above counts that.")
    if decided.after is not None:
        said.append(f"If {row.device} fails for good, the run continues as row {called[decided.after]}.")
    return _wrapped([" ".join(said)], width)


def _times(faults: float) -> str:
    whole = round(faults)
    return {0: "once", 1: "once", 2: "twice"}.get(whole, f"{whole} times")


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, min(width, 100), break_long_words=False)]


def _not_measured(rows: Sequence[Option], called: dict[int, int]) -> list[str]:
    """What a row goes by whose trial came to no step."""
    told = [
        (place, row)
        for place, row in enumerate(rows)
        if row.kind == "local" and row.basis in ("estimated", "remembered")
    ]
    return [f"Row {called[place]}: {'; '.join(row.origin)}." for place, row in told if place in called]


def _basis(plan: Plan, rows: Sequence[Option]) -> list[str]:
    """Whence the money: electricity and the age of prices."""
    world = plan.world
    said = []
    if world.electricity is not None:
        said.append(f"Electricity {world.electricity:g} $/kWh ({world.electricity_from}).")
    elif any(row.energy_wh is not None for row in rows):
        said.append("The price of electricity is not set (plan.electricity in holdfast.toml): local rows show no cost.")
    if any(row.kind == "cloud" for row in rows):
        ages = sorted(each.age_days for each in world.prices if each.age_days is not None)
        sources = ", ".join(dict.fromkeys(each.source for each in world.prices))
        old = (
            f"{ages[0]} to {ages[-1]} days old"
            if ages and ages[0] != ages[-1]
            else f"{ages[0] if ages else '?'} days old"
        )
        said.append(f"Cloud prices: {sources}, {old}.")
    return [" ".join(said)] if said else []


def _why(plan: Plan, rows: Sequence[Option], decided: Decided, called: dict[int, int], width: int) -> list[str]:
    lines = ["Why"]
    for place, row in enumerate(rows):
        if row.kind == "cloud" and place not in _shown(rows, decided, False):
            continue
        judged = decided.judged[place]
        lines.append(f"  {called.get(place, '-')}  {row.where}, {row.preset}: {when(row)}")
        said = list(row.origin)
        said += [f"refused: {row.refused_by or judged.refused_by}"] if row.refused_by or judged.refused_by else []
        if judged.dominated_by is not None:
            said.append(
                f"row {called.get(judged.dominated_by, '-')} is {judged.dominated_how}, and not worse in any column"
            )
        for each in said:
            lines += textwrap.wrap(
                each, max(60, width), initial_indent="       ", subsequent_indent="         ", break_long_words=False
            )
    if decided.chosen is not None:
        lines.append(f"  chosen  {decided.why}")
    return lines


def _next(plan: Plan, rows: Sequence[Option], decided: Decided, called: dict[int, int], kept: bool) -> list[str]:
    commands: list[tuple[str, str]] = []

    def start(place: int, *, plainly: bool = False) -> None:
        number = str(called[place])
        words = command(plan, "train", *(() if plainly else ("--row", number)))
        commands.append((f"  {words}", f"start row {number}"))

    if decided.chosen is not None and rows[decided.chosen].kind == "local":
        start(decided.chosen, plainly=kept and not rows[decided.chosen].rank)  # a smaller form is taken by its name
    other = next((p for p, row in enumerate(rows) if row.kind == "local" and p in called and p != decided.chosen), None)
    if other is not None:
        start(other)
    larger = ("--times", str(plan.world.larger)) if plan.world.larger > 1 else ()
    if larger:  # these words train on the small set: no row of the table is that
        commands = []
    commands.append((f"  {command(plan, 'plan', *larger, '--why')}", "every number, and where it came from"))
    return table(commands, gap=6)


# --json -------------------------------------------------------------------------------------------------------------


def as_json(plan: Plan, rows: Sequence[Option], decided: Decided) -> dict[str, Any]:
    called = numbers(rows)
    chosen = None if decided.chosen is None else called[decided.chosen]
    return {
        "asked": plan.asked,
        "words": list(plan.words),
        "times_the_data": plan.world.larger,
        "options": [_option(rows, decided, called, place) for place in range(len(rows))],
        "chosen": chosen,
        "why": decided.why,
        "after": None if decided.after is None else called.get(decided.after),
        "wanted": write(plan.wanted),
        "measured_s": plan.measured_s,
        "busy": plan.load > 0,
        "load": plan.load or None,
        "cores": plan.cores or None,
        "made": plan.made,
        "measurements": [_measurement(each) for each in plan.measurements],
    }


def _option(rows: Sequence[Option], decided: Decided, called: dict[int, int], place: int) -> dict[str, Any]:
    row, judged = rows[place], decided.judged[place]
    return {
        "row": called.get(place),
        "kind": row.kind,
        "where": row.where,
        "preset": None if row.preset == "-" else row.preset,
        "device": row.device or None,
        "precision": row.precision or None,
        "threads": row.threads or None,
        "time_s": row.time_s,
        "time_low_s": row.low_s,
        "time_high_s": row.high_s,
        "cost_usd": row.cost_usd,
        "energy_wh": row.energy_wh,
        "risk": row.risk,
        "score": row.score,
        "basis": row.basis if row.basis in ("measured", "estimated", "remembered") else None,
        "chosen": decided.chosen == place,
        "refused_by": row.refused_by or judged.refused_by or None,
        "dominated_by": None if judged.dominated_by is None else called.get(judged.dominated_by),
        "expected_faults": row.faults,
        "memory_bytes": row.memory_bytes,
        "time_parts_s": row.spends,
        "arguments": {part.job: part.arguments for part in row.parts if part.arguments},
        "origin": list(row.origin),
    }


def _measurement(found: Measurement) -> dict[str, Any]:
    return write(found)


__all__ = ["AS_ASKED", "as_json", "money", "numbers", "page", "when"]
