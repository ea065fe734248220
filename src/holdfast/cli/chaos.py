"""`holdfast chaos`: inject faults into a run and print the receipt.

    holdfast chaos my_script.py                                       a few random faults
    holdfast chaos my_script.py --faults sigkill@40,hang@60:backward  these, at these steps and phases
    holdfast chaos my_script.py --random 20 --seed 3                  twenty, drawn by seed
    holdfast chaos -- python train.py                                 an unchanged script under `run --exact`, killed

The reference is run first, twice: a job that is not deterministic by itself is told so.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import ExitCode
from holdfast.cli import chaos_command, summary
from holdfast.console.order import add_device, add_words, read_order
from holdfast.console.output import Output, add_flags, counted, duration
from holdfast.console.usage import Parser, UsageError

if TYPE_CHECKING:
    from holdfast.injection.chaos import FaultPlan

FEW = 5
"""Faults that are drawn when none were asked for."""


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "chaos",
        description="""\
Inject faults into a training, and check that weights and logged numbers are the
same as without them.

examples:
  holdfast chaos my_script.py                         a few random faults
  holdfast chaos my_script.py --faults sigkill@40,hang@60:backward
                                                      these faults, at a step and a phase
  holdfast chaos my_script.py --random 20 --seed 3    twenty random faults, drawn with seed 3
  holdfast chaos -- python train.py --epochs 1        an unchanged script under `holdfast run --exact`,
                                                      killed at random steps

It trains the script without faults, trains it again with faults, and compares: steps repeated, steps lost, seconds
lost, and whether the weights are equal. Of a command after `--` it also compares what it prints and the files it
writes; each run begins in a copy of the current folder.
""",
    )
    parser.add_argument(
        "script", metavar="SCRIPT", nargs="?",
        help="a Python file with `def train(session)`, or a workload such as eeg; or none, and a command after `--`",
    )  # fmt: skip
    add_words(parser)
    add_device(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--faults", metavar="KIND[@STEP][:PHASE],…", help="the faults to inject")
    which.add_argument("--random", type=int, metavar="N", help=f"number of random faults (default: {FEW})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random faults (default: 0)")
    parser.add_argument(
        "--references", type=int, choices=(1, 2), default=2, metavar="N",
        help="trainings without faults to compare with: 1 is quicker, 2 also tell whether the job repeats itself"
        " (default: 2)",
    )  # fmt: skip
    parser.add_argument(
        "--at-once", action="store_true",
        help="train one reference beside the run with faults: quicker where cores and memory are free; needs --faults",
    )  # fmt: skip
    add_flags(parser, plain=True, progress=True)
    parser.set_defaults(run=run, script_argv=[])
    return parser


def run(args: argparse.Namespace) -> int:
    """Check the order, run the experiment, print what it showed."""
    from holdfast.injection.chaos import FaultPlan
    from holdfast.testing import experiment

    output = Output.from_args(args)
    if args.script_argv:
        return chaos_command.run(args, output, FEW)
    if args.script is None:
        raise UsageError(
            "no script was given",
            command="chaos",
            tips=["name a script, or write a command after `--`: `holdfast chaos -- python train.py`"],
        )
    if args.at_once and not args.faults:
        raise UsageError(
            "--at-once needs --faults",
            command="chaos",
            cause="random faults are drawn over the steps of the reference, which is not done yet",
        )
    order = read_order(args.script, args.words, device=args.device, command="chaos")
    chosen = FaultPlan.parse(args.faults) if args.faults else None

    def make_plan(steps: int) -> FaultPlan:
        wanted = FEW if args.random is None else args.random
        return chosen or FaultPlan.random(wanted, steps=steps, seed=args.seed)

    words = [*args.words, *([f"run.device={args.device}"] if args.device else [])]
    flags = [flag for flag, wanted in (("-q", output.quiet), ("--plain", output.plain)) if wanted]
    folder = Path(order.settings.run.folder)
    result = experiment.run(
        order.facts.path,
        words,
        make_plan,
        runs=folder,
        references=args.references,
        say=output.note,
        flags=flags,
        at_once=args.at_once,
    )
    if output.as_json:
        output.json(result.summary)
    else:
        for line in verdict(result.summary):
            output.print(line)
    return exit_code(result.receipt)


def exit_code(receipt: dict[str, Any]) -> ExitCode:
    """The answer is no where a fault was not survived or did not come, or where weights or logged numbers differ."""
    same = receipt.get("weights_equal") is not False and receipt.get("logged_equal") is not False
    good = receipt.get("survived") and same and not _missing(receipt)
    return ExitCode.OK if good else ExitCode.NO


def _missing(receipt: dict[str, Any]) -> int:
    """Faults that were planned and did not come: their step or phase was never reached."""
    planned, injected = receipt.get("faults_planned"), receipt.get("faults_injected")
    return planned - injected if isinstance(planned, int) and isinstance(injected, int) else 0


def verdict(result: dict[str, Any]) -> list[str]:
    """The receipt of an experiment in words."""
    receipt: dict[str, Any] = result.get("receipt") or {}
    good = exit_code(receipt) is ExitCode.OK
    sign = "✗" if not good else "✓" if receipt.get("weights_equal") else "•"
    injected, missing = receipt.get("faults_injected"), _missing(receipt)
    lines = [
        f"{sign} {'survived' if receipt.get('survived') else 'did not survive'} "
        f"{counted(injected, 'injected fault') if isinstance(injected, int) else 'the faults'}",
        *(
            [f"  {counted(missing, 'fault')} did not happen: the training never reached the step or phase"]
            if missing
            else []
        ),
        "",
        f"  faults   {summary.fault_words(receipt.get('faults')) or 'none'}",
        f"  receipt  {summary.receipt_words(receipt)}",
        f"  time     {duration(receipt.get('seconds_lost'))} lost",
        f"  weights  {_equal_words(receipt)}",
        *([f"  logged   {receipt['logged_why']}"] if receipt.get("logged_why") else []),
        "",
        f"  holdfast show {result.get('run')}      show everything about the run with faults",
    ]
    return lines


def _equal_words(receipt: dict[str, Any]) -> str:
    why = str(receipt.get("why") or "")
    difference = receipt.get("max_rel_diff")
    return f"{why}; largest relative difference {difference:.1e}" if difference else why
