"""`holdfast train` follows the plan: which row, what it changes, what run.json keeps of it, what it took in the end.

    planned = find(args, order.settings, output.note)      # None where there is no plan that holds
    order, rungs = planned.applied(order, rungs)
    create(order, plan=planned.info(order))                # "the plan said 3m 10s ±20s"
    remember(look)                                         # afterwards: the next estimate is corrected by it

A device that was named on the command line or in a file is the user's choice, and no plan is asked.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import UserError
from holdfast.base.human import duration
from holdfast.planning import history
from holdfast.planning.history import Past
from holdfast.run.settings import DEFAULT, Settings
from holdfast.run.states import RunState

if TYPE_CHECKING:
    from holdfast.cli.run_facts import Look
    from holdfast.console.order import Order
    from holdfast.faults.ladder import Rung
    from holdfast.planning.option import Option, Part
    from holdfast.planning.plans import Plan

SOURCE = "the plan"


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """The row of a kept plan that a run follows."""

    plan: Plan
    option: Option
    row: int

    def applied(self, order: Order, rungs: list[Rung]) -> tuple[Order, list[Rung]]:
        """The order with what the row changes; its device first, in its precision."""
        part = self._part(order)
        changes = {} if part is None else part.arguments
        threads, settings = order.threads, order.settings
        if self.option.threads and settings.source("run.threads") == DEFAULT:
            threads = self.option.threads
        order = dataclasses.replace(order, arguments={**order.arguments, **changes}, threads=threads)
        return order, self._ladder(rungs)

    def _ladder(self, rungs: list[Rung]) -> list[Rung]:
        """Its device first, in its precision; the CPU stays the last resort, and is all there is if it was chosen."""
        device, precision = self.option.device, self.option.precision
        if device == "cpu":
            return [rung for rung in rungs if rung.on_cpu]
        return sorted(rungs, key=lambda rung: (rung.on_cpu, rung.device != device, rung.precision != precision))

    def info(self, order: Order) -> dict[str, Any] | None:
        """What run.json keeps: the words that the end of the run is compared with."""
        part = self._part(order)
        if part is None or self.option.time_s is None:
            return None
        share = part.time_s / self.option.time_s
        cost, energy = self.option.cost_usd, self.option.energy_wh
        return {
            "row": self.row,
            "where": self.option.where,
            "preset": self.option.preset,
            "basis": self.option.basis,
            "time_s": round(part.time_s, 3),
            "time_low_s": round(part.low_s, 3),
            "time_high_s": round(part.high_s, 3),
            "raw_s": round(part.raw_s, 3),
            "cost_usd": None if cost is None else round(cost * share, 4),
            "energy_wh": None if energy is None else round(energy * share, 3),
            "usd_per_kwh": self.plan.world.electricity,
            "device": self.option.device,
            "made": self.plan.made,
        }

    def _part(self, order: Order) -> Part | None:
        from holdfast.cli.plan import job_name

        name = job_name(order.facts.path)
        return next((part for part in self.option.parts if part.job == name), None)

    def words(self) -> str:
        """• by the plan of 5m ago: row 1, cpu, 2 threads; 3m 10s ±20s"""
        from holdfast.cli.plan_text import when

        form = f", {self.option.preset}" if self.option.rank else ""
        ago = duration(self.plan.age_s)
        return f"• by the plan of {ago} ago: row {self.row}, {self.option.where}{form}; {when(self.option)}"


def find(args: argparse.Namespace, settings: Settings, tell: Callable[[str], None]) -> Planned | None:
    """The kept plan for these words, if it holds; UserError where a row was asked for and there is none."""
    row = getattr(args, "row", None)
    if row is None and (settings.source("run.device") != DEFAULT or os.environ.get("HOLDFAST_CHAOS")):
        return None
    from holdfast.planning import plans

    plan = plans.kept(args.script, args.words, args.script_argv)
    make = f"`holdfast plan {' '.join([args.script, *args.words])}` makes one"
    if plan is None:
        if row is not None:
            raise UserError(
                "there is no plan, so --row has no meaning",
                cause="no plan was saved for this script with these arguments",
                hints=[make],
            )
        return None
    if plan.stale:
        if row is not None:
            raise UserError(f"the plan for {args.script} is out of date", cause=plan.stale, hints=[make])
        tell(f"• the plan for {args.script} is not followed: {plan.stale}")
        return None
    return _chosen(plan, row, tell)


def _chosen(plan: Plan, row: int | None, tell: Callable[[str], None]) -> Planned | None:
    from holdfast.cli.plan_text import command, numbers

    rows = plan.rows()
    called = numbers(rows)
    if row is None:
        chosen = plan.decided(rows).chosen
        if chosen is None:
            return None
    else:
        found = next((place for place, number in called.items() if number == row), None)
        if found is None:
            raise UserError(f"the plan has no row {row}", cause=f"its rows are 1 to {len(called)}")
        chosen = found
    option = rows[chosen]
    if option.kind == "cloud":
        hint = "`holdfast launch --cloud` rents a machine; it shows the price and asks first"
        if row is not None:
            raise UserError(f"row {row} is {option.where}, which is not here", hints=[hint])
        tell(f"• the plan chose {option.where}: {hint}; this run trains here")
        return None
    given = _given(plan, option)
    if row is None and given:
        start = f"`{command(plan, 'train', '--row', str(called[chosen]))}` starts it"
        tell(f"• the plan chose row {called[chosen]}, {option.preset}: {start}; this run has {given} as given")
        return None
    planned = Planned(plan, option, called[chosen])
    tell(planned.words())
    return planned


def _given(plan: Plan, option: Option) -> str:
    """The words of the command that a smaller form would change: only who names its row has said that it may."""
    changed = {key for part in option.parts for key in part.arguments}
    return ", ".join(word for word in plan.words if word.partition("=")[0].strip() in changed)


def remember(look: Look, job: str) -> None:
    """A run that finished in one sitting is what the next estimate goes by."""
    took = look.lasted_s
    if look.state != RunState.FINISHED or took is None or took <= 0 or os.environ.get("HOLDFAST_CHAOS"):
        return
    said = look.info.get("plan")
    plan = said if isinstance(said, dict) else {}
    devices = {str(row.get("device")) for row in look.device_timeline}
    receipt = look.receipt or {}
    faults = receipt.get("faults")
    given = look.info.get("arguments")
    arguments = given if isinstance(given, dict) else {}
    if len(devices) != 1:  # it moved: that says nothing about either device
        return
    device = devices.pop()

    def number(key: str) -> float | None:
        value = plan.get(key) if plan.get("device") == device else None
        return float(value) if isinstance(value, (int, float)) and value > 0 else None

    history.remember(
        Past(
            job=job,
            device=device,
            took_s=round(took, 3),
            raw_s=number("raw_s"),
            said_s=number("time_s"),
            low_s=number("time_low_s"),
            high_s=number("time_high_s"),
            lost_s=round(float(receipt.get("seconds_lost") or 0.0), 3),
            faults=sum(each for each in faults.values() if isinstance(each, int)) if isinstance(faults, dict) else 0,
            arguments=tuple(sorted((str(key), str(value)) for key, value in arguments.items())),
            steps=int(look.step or 0),
            run=look.name,
            ended=str(look.info.get("ended") or ""),
        )
    )


def job_of(script: Path) -> str:
    from holdfast.cli.plan import job_name

    return job_name(script)
