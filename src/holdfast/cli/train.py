"""`holdfast train`: a supervised run of a script, or of a workload that comes with holdfast.

    holdfast train my_script.py                        on the best device here
    holdfast train eeg                                 a workload by its name: workloads/registry.py
    holdfast train my_script.py lr=3e-4 epochs=20      arguments of its train(session, lr=…, epochs=…)
    holdfast train my_script.py checkpoint.every=30s   settings of holdfast have a dot
    holdfast train my_script.py --detach               in the background

The script is read before anything starts, so that a typo costs milliseconds, not the import of torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.cli.output import Output, add_flags
from holdfast.cli.usage import Parser, UsageError, similar
from holdfast.distributed.place import Place
from holdfast.errors import UserError
from holdfast.events import utc_now
from holdfast.runfolder import RunFolder, redact
from holdfast.runtime import script
from holdfast.settings import Settings, parse_overrides
from holdfast.workloads import registry


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "train",
        help="a supervised run",
        description="""\
Train a script, or a workload by its name, under supervision. It survives crashes, hangs, kill -9 and memory
exhaustion of the process that trains it, and ends with the same weights.

examples:
  holdfast train my_script.py                       as `holdfast plan` chose; without a plan on the best device here
  holdfast train eeg                                a workload: EEG, simulated if no data are given
  holdfast train my_script.py lr=3e-4 epochs=20     arguments of its train(session, …)
  holdfast train my_script.py checkpoint.every=30s  a setting of holdfast: it has a dot
  holdfast train my_script.py --detach              in the background
  holdfast train my_script.py -- --data /datasets   sys.argv of the script
""",
    )
    parser.for_script()
    add_script_arguments(parser)
    add_device(parser)
    parser.add_argument("--row", type=int, metavar="N", help="this row of the plan (default: the one it chose)")
    parser.add_argument("--seed", type=int, metavar="N", help="the same as run.seed=N (default: 0)")
    parser.add_argument("--detach", action="store_true", help="leave the run in the background")
    parser.add_argument("--background", metavar="FOLDER", help=argparse.SUPPRESS)
    add_flags(parser, plain=True, progress=True)
    parser.set_defaults(run=run, script_argv=[])
    return parser


def add_script_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "script", metavar="SCRIPT", help="a Python file with `def train(session)`, or the name of a workload"
    )
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="an argument of train(), or with a dot a setting: `holdfast config` lists them",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", metavar="D", help="auto, cpu, cuda:0, …; the CPU stays as the last resort (default: auto)"
    )


def run(args: argparse.Namespace) -> int:
    """Check everything that can be checked, make the run folder, supervise."""
    output = Output.from_args(args)
    place = Place.of(os.environ)
    if place is not None and place.job:
        from holdfast.distributed import nest

        code = nest.ask(Path(place.job), sys.argv[1:])
        if code is not None:
            return code if code >= 0 else 128 - code
    workload = registry.find(args.script)
    if workload is not None and workload.stages:
        from holdfast.cli import stages

        return stages.run(workload, args, output)
    order = read_order(args.script, args.words, device=args.device, seed=args.seed, argv=args.script_argv)
    if place is not None:  # torchrun started us: one of several
        from holdfast.distributed import rank

        rank.leave(rank.live(order, place, lambda: create(order, ranks=place.ranks)))
    from holdfast.cli import planned
    from holdfast.cli.supervise import rungs_for

    rungs = rungs_for(order.settings.run.device, output.note)
    plan = planned.find(args, order.settings, output.note)
    more: dict[str, Any] = {}
    if plan is not None:
        order, rungs = plan.applied(order, rungs)
        more = {"plan": plan.info(order)}
    if args.detach:
        from holdfast.cli import detach

        return detach.train(create(order, **more), args, output)
    run_folder = RunFolder.open(Path(args.background)) if args.background else create(order, **more)
    if args.background:
        from holdfast.cli import detach

        detach.survive_hangup()
    return supervise(run_folder, order, rungs, output)


def supervise(run_folder: RunFolder, order: Order, rungs: list[Any], output: Output) -> int:
    """One run to its end."""
    from holdfast.cli.supervise import conduct, preload_for
    from holdfast.runtime.supervisor import Plan

    run_folder.lock()
    plan = Plan(
        script=order.facts.path,
        argv=order.argv,
        arguments=order.arguments,
        rungs=rungs,
        seed=order.settings.run.seed,
        threads=order.threads,
        preload=preload_for(order.facts),
    )
    return conduct(run_folder, plan, order.settings, output)


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What was asked for, checked."""

    facts: script.Facts
    argv: list[str]
    arguments: dict[str, str]
    settings: Settings
    threads: int


def read_order(
    asked: str,
    words: list[str],
    *,
    device: str | None = None,
    seed: int | None = None,
    argv: Sequence[str] = (),
    command: str = "train",
) -> Order:
    """UserError for a script that cannot be one, a key that does not exist, a value that is not allowed."""
    from holdfast.cli.supervise import threads_for

    arguments, overrides = split_words(words, command)
    if device is not None:
        overrides["run.device"] = device
    if seed is not None:
        overrides["run.seed"] = str(seed)
    facts = read_script(asked, command)
    script.check_arguments(facts, arguments)
    settings = Settings.load(overrides)
    return Order(facts, list(argv), arguments, settings, threads_for(settings.run.threads))


def split_words(words: list[str], command: str) -> tuple[dict[str, str], dict[str, str]]:
    """Arguments of the script, and settings of holdfast, which have a dot."""
    arguments: dict[str, str] = {}
    dotted = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"`{word}` is not a setting",
                command=command,
                cause="after the script, words are written as key=value",
                tips=[f"arguments for the script's sys.argv stand after `--`: `-- {word}`"],
            )
        if "." in key:
            dotted.append(word)
        else:
            arguments[key.strip()] = value
    return arguments, dict(parse_overrides(dotted))


def read_script(asked: str, command: str) -> script.Facts:
    """The script as it was named, for messages; its absolute path, so that a run can be resumed from anywhere."""
    path = Path(asked).expanduser()
    workload = registry.find(asked)
    if workload is not None and workload.script is not None:
        workload.check_installed()
        return script.read(workload.script)
    if path.name == asked and not path.suffix and not path.exists():
        raise _no_workload(asked, command)
    try:
        facts = script.read(path)
    except UserError as error:
        if path.exists():
            raise
        raise UsageError(error.message, command=command, cause=error.cause, tips=error.hints) from None
    return dataclasses.replace(facts, path=path.absolute())


def _no_workload(asked: str, command: str) -> UsageError:
    workload = registry.find(asked)
    if workload is not None:
        tips = [f"give `holdfast {command}` one of them"]
        cause = f"it is made of several runs: {', '.join(workload.stages)}"
        return UsageError(f"`{asked}` is not one run", command=command, cause=cause, tips=tips)
    known = registry.names()
    return UsageError(
        f"unknown workload `{asked}`",
        command=command,
        cause=f"the workloads are {', '.join(known)}",
        tips=[*similar(asked, known, "workload"), f"a script is named with its ending: `{asked}.py`"],
    )


def create(order: Order, **more: Any) -> RunFolder:
    """The folder of a new run; `more` is kept in its run.json."""
    path = order.facts.path
    workload = registry.named_by(path) or re.sub(r"[^\w.-]+", "-", path.stem).strip("-") or "run"
    return RunFolder.create(Path(order.settings.run.folder), workload, {**run_info(order), **more})


def run_info(order: Order) -> dict[str, Any]:
    """What run.json says before the supervisor adds to it."""
    pairs = redact([f"{key}={value}" for key, value in order.arguments.items()])
    return {
        "created": utc_now(),
        "state": "STARTING",
        "script": str(order.facts.path),
        "script_sha256": hashlib.sha256(order.facts.path.read_bytes()).hexdigest(),
        "cwd": os.getcwd(),
        "argv": redact(order.argv),
        "arguments": dict(pair.split("=", 1) for pair in pairs),
        "parent": order.arguments.get("parent") or None,
        "seed": order.settings.run.seed,
        "threads": order.threads,
        "settings": order.settings.recorded(),
        "holdfast": __version__,
        "python": platform.python_version(),
        "exit_code": None,
    }
