"""`holdfast chaos -- python train.py`: is an unchanged script exact when it is killed?

It runs the command undisturbed, then under `holdfast run --exact` with kills, and says what differs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode
from holdfast.cli import summary
from holdfast.console.output import Output, count, counted, duration
from holdfast.console.usage import UsageError
from holdfast.run.settings import Settings, parse_overrides


def run(args: argparse.Namespace, output: Output, few: int) -> int:
    """Check the order, run the experiment, print what it showed."""
    from holdfast.supervisor.scripts import script_start
    from holdfast.testing import script_experiment, script_signals

    words = [*([args.script] if args.script is not None else []), *args.words]
    if args.at_once:
        raise UsageError("--at-once is for a script, not for a command after `--`", command="chaos")
    for word in words:
        if "=" not in word:
            tips = ["`holdfast chaos my_script.py`, or `holdfast chaos -- python train.py`"]
            raise UsageError("a script and a command after `--` were given", command="chaos", tips=tips)
    overrides = dict(parse_overrides(words))
    settings = Settings.load({**overrides, "run.device": args.device} if args.device else overrides)
    script_start.check(args.script_argv)
    chosen = script_signals.parse(args.faults) if args.faults else None
    wanted = few if args.random is None else args.random
    result = script_experiment.run(
        args.script_argv,
        lambda steps: chosen or script_signals.draw(wanted, steps=steps, seed=args.seed),
        folder=Path.cwd(),
        runs=Path(settings.run.folder),
        words=[*words, *(["--device", args.device] if args.device else [])],
        references=args.references,
        seed=args.seed,
        quiet=output.quiet,
        say=output.note,
    )
    if output.as_json:
        output.json(result.summary)
    else:
        for line in verdict(result.summary):
            output.print(line)
    return exit_code(result.receipt)


def exit_code(receipt: dict[str, Any]) -> ExitCode:
    """The answer is no where the run was not exact, or where anything that can be compared differs."""
    parts = [receipt.get(f"{name}_equal") for name in ("weights", "lines", "files")]
    compared = any(each is not None for each in parts) and all(each is not False for each in parts)
    good = receipt.get("survived") and receipt.get("exact") and compared and not _missing(receipt)
    return ExitCode.OK if good else ExitCode.NO


def _missing(receipt: dict[str, Any]) -> int:
    return int(receipt.get("faults_planned") or 0) - int(receipt.get("faults_injected") or 0)


def verdict(result: dict[str, Any]) -> list[str]:
    """The receipt of the experiment in words."""
    receipt: dict[str, Any] = result.get("receipt") or {}
    good, missing = exit_code(receipt) is ExitCode.OK, _missing(receipt)
    times = counted(receipt.get("faults_injected") or 0, "fault")
    head = f"exact through {times}" if good else f"not the same after {times}"
    if not receipt.get("survived"):
        head = f"did not survive {times}"
    elif not receipt.get("exact"):
        head = f"not exact: {receipt.get('exact_reason') or 'its state was not handed out'}"
    elif missing > 0:
        head = f"only {times} of {receipt.get('faults_planned')}"
    return [
        f"{'✓' if good else '✗'} {head}",
        *([f"  {counted(missing, 'fault')} did not happen: the script never came to the step"] if missing > 0 else []),
        "",
        f"  faults   {summary.fault_words(receipt.get('faults')) or 'none'}",
        f"  receipt  {counted(receipt.get('steps') or 0, 'step')}: {count(receipt.get('steps_repeated'))} repeated",
        f"  time     {duration(receipt.get('seconds_lost'))} lost",
        f"  weights  {receipt.get('why')}",
        f"  printed  {receipt.get('lines_why')}",
        f"  files    {receipt.get('files_why')}",
        "",
        f"  holdfast show {result.get('run')}      show everything about the run with faults",
    ]
