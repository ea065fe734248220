"""`holdfast plan`: the ways to get a job trained, with time, cost, risk and basis; one chosen.

    holdfast plan detection                             what each device here takes, measured
    holdfast plan train.py --deadline 12h --budget 5    rented GPUs count as well
    holdfast plan detection --why                       every number, and where it came from
    holdfast plan detection --save plan.json            what was measured
    holdfast plan --from plan.json --deadline 1h        decided again, nothing is run

What is decided is kept: `holdfast train` with the same words follows it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import ExitCode, HoldfastError, ScriptFailed, UserError
from holdfast.base.units import parse_duration
from holdfast.cli import plan_text
from holdfast.console.order import Order, add_device, read_order, read_script, split_words
from holdfast.console.output import Output, add_flags, print_error
from holdfast.console.usage import Parser, UsageError
from holdfast.planning.option import RISKS
from holdfast.planning.prices import Price, prices
from holdfast.run import workload_registry

if TYPE_CHECKING:
    from holdfast.planning.decide import Decided, Wanted
    from holdfast.planning.measured_jobs import Job
    from holdfast.planning.option import Option
    from holdfast.planning.plans import Plan
    from holdfast.planning.presets import Preset
    from holdfast.planning.world import World

LOCK = "plan.lock"


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "plan",
        description="""\
Measure how long a training takes on each device here, and choose a way to run it.

examples:
  holdfast plan my_script.py                         time and cost on each device here
  holdfast plan train.py lr=3e-4 --deadline 12h      the cheapest way that finishes in time
  holdfast plan detection --deadline 10m --budget 5  also consider rented GPUs, up to 5 dollars
  holdfast plan detection --why                      show where every number comes from
  holdfast plan detection data=sample.yaml --times 1000
      the time for a data set 1000 times as large
  holdfast plan detection --save plan.json           keep the measurements …
  holdfast plan --from plan.json --risk low          … and choose again without measuring

The plan takes a few real steps on each device and compares them with smaller versions of the job and with rented
GPUs. `holdfast train` with the same script and arguments then follows the plan.
""",
    )
    parser.for_script()
    parser.add_argument(
        "script", nargs="?", metavar="SCRIPT", help="a Python file with `def train(session)`, or a workload such as eeg"
    )
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="the same arguments and settings as for `holdfast train`",
    )
    wanted = parser.add_argument_group("what the plan has to keep to")
    wanted.add_argument(
        "--deadline", metavar="T", help="when it must be finished: 12h (from now), 18:00, or 2026-11-16T09:00"
    )
    wanted.add_argument(
        "--budget", type=float, metavar="USD", help="the most it may cost; without it no rented GPU is chosen"
    )
    wanted.add_argument(
        "--min-score", type=float, metavar="X", help="only choose a way with a known score of at least X"
    )
    wanted.add_argument(
        "--risk", choices=RISKS, help="the highest risk to accept; low counts the slow end of each time"
    )
    how = parser.add_argument_group("measuring")
    how.add_argument("--measure", metavar="T", help="time for all measurements together (default: 30s)")
    how.add_argument("--steps", type=int, metavar="N", help="number of steps, if the script does not tell it")
    how.add_argument(
        "--times", type=int, default=1, metavar="N", help="the real data set is N times as large as the one given here"
    )
    how.add_argument("--prices", metavar="FILE", help="your own prices, a CSV file: gpu,cloud,usd_per_hour")
    how.add_argument("--save", metavar="FILE", help="write the measurements to a file")
    how.add_argument("--from", dest="source", metavar="FILE", help="choose from a saved plan; runs nothing")
    how.add_argument("--recorded", metavar="FOLDER", help="plan for a recorded machine; runs nothing")
    add_device(parser)
    parser.add_argument("--why", action="store_true", help="show every number and where it comes from")
    parser.add_argument("--all", action="store_true", help="list every rented GPU, not only the best few")
    add_flags(parser, progress=True)
    parser.set_defaults(run=run, script_argv=[])
    return parser


def run(args: argparse.Namespace) -> int:
    """Measure, reckon, decide, print. What is wrong with a wish does not keep the measurements from being shown."""
    output = Output.from_args(args)
    wrong: list[HoldfastError] = []
    wanted = _wanted(args, wrong)
    from holdfast.planning import plans

    if args.recorded:
        from holdfast.cli import recorded

        orders, _, world = surveyed(args, wrong)
        return recorded.plan(args, orders[0].facts.path.name, world, output, wrong)
    if args.source:
        plan = dataclasses.replace(plans.load(Path(args.source)), wanted=wanted)
    else:
        plan = _measured(args, wanted, output, wrong)
    rows = plan.rows()
    decided = plan.decided(rows)
    kept = not args.source and not wrong and bool(plan.measurements) and plan.world.larger == 1
    if kept:
        plans.keep(plan)
    if args.save:
        plans.save(plan, Path(args.save))
    wrong += _about_the_script(plan, rows)
    code = _code(decided, wrong)
    _tell(plan, rows, decided, args, output, wrong, code, kept)
    return code


def _code(decided: Decided, wrong: list[HoldfastError]) -> int:
    if wrong:
        return int(wrong[0].exit_code)
    return int(ExitCode.OK if decided.chosen is not None else ExitCode.NO)


def _tell(
    plan: Plan, rows: list[Option], decided: Decided, args: argparse.Namespace, output: Output,
    wrong: list[HoldfastError], code: int, kept: bool,
) -> None:  # fmt: skip
    if output.as_json:
        more = {"error": wrong[0].to_json(), "exit_code": code} if wrong else {}
        output.json({**plan_text.as_json(plan, rows, decided), **more})
    else:
        width = output.out.width
        for line in plan_text.page(plan, rows, decided, width=width, all_rows=args.all, why=args.why, kept=kept):
            output.print(line)
    for error in wrong:
        output.note()
        print_error(error, output.err)


# What is wanted -----------------------------------------------------------------------------------------------------


def _wanted(args: argparse.Namespace, wrong: list[HoldfastError]) -> Wanted:
    from holdfast.planning.decide import Wanted

    deadline, budget = None, args.budget
    if args.deadline is not None:
        try:
            deadline = _deadline(args.deadline)
        except UserError as error:
            wrong.append(error)
    if budget is not None and not 0 < budget < 1e9:
        cause = "even a run on this machine costs electricity" if budget == 0 else "the budget must be above zero"
        hints = ["leave --budget out to see what this machine can do without renting anything"]
        wrong.append(UserError(f"the budget is ${budget:g}", cause=cause, hints=hints))
        budget = None
    return Wanted(deadline, budget, args.min_score, args.risk)


def _deadline(text: str) -> float:
    """Seconds from now: "12h", "18:00", "2026-11-16", "2026-11-16T09:00"."""
    hints = ["write how long it may take (`--deadline 12h`) or when it has to be done (`--deadline 2026-11-16T09:00`)"]
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = None
    if seconds is not None:
        if seconds <= 0:
            raise UserError(f"the deadline is {text}", cause="it leaves no time", hints=hints)
        return seconds
    now = datetime.now()
    when = None
    with contextlib.suppress(ValueError):
        clock = datetime.strptime(text, "%H:%M")
        when = now.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    with contextlib.suppress(ValueError):
        when = when or datetime.fromisoformat(text)
    if when is None:
        raise UserError(f"the deadline `{text}` cannot be understood", hints=hints)
    left = when.timestamp() - now.timestamp()
    if left <= 0:
        raise UserError(f"the deadline {text} is in the past", cause=f"it is {now:%Y-%m-%d %H:%M} now", hints=hints)
    return left


def _prices(path: str | None, wrong: list[HoldfastError]) -> list[Price]:
    """The user's file; if something is wrong with it, that is told and the table that comes along is used."""
    try:
        return prices(Path(path).expanduser() if path else None)
    except UserError as error:
        wrong.append(error)
        return prices()


# Measuring ----------------------------------------------------------------------------------------------------------


def _measured(args: argparse.Namespace, wanted: Wanted, output: Output, wrong: list[HoldfastError]) -> Plan:
    from holdfast.devices.ledger import Ledger
    from holdfast.planning import job_survey, plans
    from holdfast.planning.measured_jobs import Bench
    from holdfast.planning.records import load

    orders, jobs, world = surveyed(args, wrong)
    settings = orders[0].settings
    seconds = _seconds(args.measure) if args.measure else settings.plan.measure
    status = _Status(output, f"measuring {args.script} here, {seconds:.0f} s at most")
    began, busy = time.monotonic(), load()
    with _alone(args), Bench(seconds, tell=status.more, ledger=Ledger()) as bench:
        found = job_survey.trials(jobs, world, bench, orders[0].threads, status.what)
    status.close()
    plan = plans.Plan(
        asked=args.script, words=tuple(sorted(args.words)), argv=tuple(args.script_argv), world=world,
        measurements=tuple(found), wanted=wanted, measured_s=round(time.monotonic() - began, 1),
        load=round(max(busy, load()), 1), cores=os.cpu_count() or 0,
        scripts=tuple((str(order.facts.path), plans.digest(order.facts.path)) for order in orders),
    )  # fmt: skip
    return plans.stamped(plan)


def surveyed(args: argparse.Namespace, wrong: list[HoldfastError]) -> tuple[list[Order], list[Job], World]:
    """The runs of the job, and everything a plan depends on but the measurements."""
    from holdfast.planning import job_survey

    if not args.script:
        raise UsageError(
            "nothing to plan: no script was given", command="plan", tips=["name a script or a workload, or use --from"]
        )
    if args.times < 1 or (args.times > 1 and args.steps):
        cause = (
            "it is 1 or more" if args.times < 1 else "with --steps, give the number of steps of the real job instead"
        )
        raise UserError(f"--times {args.times} cannot be", cause=cause)
    orders = orders_for(args.script, args.words, args.script_argv, args.device)
    settings = orders[0].settings
    presets, score = _forms(args.script, orders)
    jobs = [_job(order) for order in orders]
    only = None if settings.run.device == "auto" else settings.run.device
    world = job_survey.look(
        jobs, [order.facts.parameters for order in orders], settings,
        prices=_prices(args.prices or settings.plan.prices, wrong), presets=presets, only=only, score=score,
        steps=args.steps, larger=args.times,
    )  # fmt: skip
    return orders, jobs, world


def orders_for(asked: str, words: list[str], argv: list[str], device: str | None = None) -> list[Order]:
    """The runs that `holdfast train` would make of these words."""
    workload = workload_registry.find(asked)
    if workload is None or not workload.stages:
        return [read_order(asked, words, device=device, argv=argv, command="plan")]
    workload.check_installed()
    arguments, _ = split_words(words, "plan")
    orders = []
    for name in workload.stages:
        known = read_script(name, "plan").parameters
        mine = [word for word in words if word.partition("=")[0] not in arguments or word.partition("=")[0] in known]
        orders.append(read_order(name, mine, device=device, command="plan"))
    return orders


def job_name(path: Path) -> str:
    """What runs of this script are called in the history of plans."""
    return workload_registry.named_by(path) or str(path)


def _job(order: Order) -> Job:
    from holdfast.planning.measured_jobs import Job

    return Job(
        name=job_name(order.facts.path),
        script=order.facts.path,
        settings=order.settings.to_json(),
        argv=order.argv,
        arguments=order.arguments,
        seed=order.settings.run.seed,
        env=workload_registry.environment_of(order.facts.path),
    )


def _forms(asked: str, orders: list[Order]) -> tuple[tuple[Preset, ...], tuple[float, str, str] | None]:
    """Smaller forms of the job, and the score of the job as it is, if its workload knows that."""
    from holdfast.planning import presets

    workload = workload_registry.find(asked)
    given = orders[0].arguments
    if workload is None:
        return presets.for_script(orders[0].facts.path, given), None
    named = presets.from_table(list(workload.presets))
    return presets.smaller_than(given, named, orders[0].facts.path), workload.score if not given else None


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        hints = ["for example `--measure 2m`"]
        raise UserError(f"`--measure {text}` is not a duration", hints=hints)
    return seconds


@contextlib.contextmanager
def _alone(args: argparse.Namespace) -> Iterator[None]:
    """Two that measure at once would measure each other."""
    from holdfast.base.folders import make_private
    from holdfast.base.locks import Lock, holder
    from holdfast.devices.ledger import state_folder

    lock, free = Lock(state_folder() / LOCK), True
    with contextlib.suppress(OSError):  # a state folder that cannot be written to is no reason not to measure
        make_private(state_folder())
        free = lock.take(f"pid {os.getpid()}, {args.script}")
    if not free:
        raise UserError(
            "another `holdfast plan` is measuring on this machine",
            cause=f"{holder(lock.path) or 'another process'} has the lock; two would disturb each other",
            hints=["wait for it, or choose from a saved plan with `holdfast plan --from FILE`"],
        )
    try:
        yield
    finally:
        lock.release()


class _Status:
    """One line on stderr: what is being measured, and how far it is."""

    def __init__(self, output: Output, head: str) -> None:
        self._screen, self._on = output.err, output.progress and not output.quiet
        self._text, self._drawn = "", False
        if self._on and not self._screen.tty:
            self._screen.write(head)

    def what(self, text: str) -> None:
        self._text = text
        if self._on and not self._screen.tty:
            self._screen.write(f"  {text}")
        self.more("")

    def more(self, text: str) -> None:
        if self._on and self._screen.tty:
            self._screen.redraw(" · ".join(filter(None, (f"measuring {self._text}", text))))
            self._drawn = True

    def close(self) -> None:
        if self._drawn:
            self._screen.wipe()


def _about_the_script(plan: Plan, rows: list[Option]) -> list[HoldfastError]:
    """A script that could be measured nowhere is told apart from rows that do not fit a wish."""
    tried = [each for each in plan.measurements if not each.preset]
    if not tried:
        if any(row.kind == "local" and not row.refused_by for row in rows):
            return []
        hints = ["`holdfast doctor` says what each device can do", "the table still lists rented GPUs"]
        return [ScriptFailed("no device here can train", cause="the doctor refuses every device", hints=hints)]
    if any(each.usable for each in tried) or any(row.kind == "local" and row.time_s is not None for row in rows):
        return []
    first = tried[0]
    hints = (
        ["`holdfast train` shows its whole traceback"]
        if first.raised
        else ["give it more time to measure: `--measure 5m`"]
    )
    return [ScriptFailed(f"{plan.asked} could not be measured", cause=first.why, hints=hints)]
