"""`holdfast run`: supervise any script without changing it.

    holdfast run -- python train.py --lr 3e-4          the command as it is, with everything it prints
    holdfast run -- yolo detect train data=x.yaml      or accelerate launch …, torchrun …, any program
    holdfast run --resume-with '--ckpt {checkpoint}' -- python train.py

What the script prints, reads and returns passes through untouched. Lines of ours go to stderr and begin with
`holdfast`; where stderr is no terminal, there are none unless something happened. With --json what the script prints to
stdout goes to stderr, and stdout has the receipt.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import __version__
from holdfast.console.output import Output, add_flags
from holdfast.console.usage import Parser, UsageError
from holdfast.devices import inventory
from holdfast.run import kept_arguments
from holdfast.run.events import Event, utc_now
from holdfast.run.folder import RunFolder, redact
from holdfast.run.settings import Settings, parse_overrides
from holdfast.run.states import RunKind, RunState

if TYPE_CHECKING:
    from holdfast.supervisor.scripts.script_order import Order
    from holdfast.supervisor.scripts.script_setup import Process, ScriptSetup


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "run",
        description="""\
Run any training command unchanged, and restart it when it is killed, crashes or hangs.

examples:
  holdfast run -- python train.py --lr 3e-4     a plain loop, Lightning or the HF Trainer
  holdfast run -- yolo detect train data=x.yaml model=yolo11n.yaml
  holdfast run -- accelerate launch train.py    also torchrun, or any other program
  holdfast run --resume-with '--ckpt {checkpoint}' -- python train.py
                                                say how your script continues from a checkpoint
  holdfast run --exact -- python train.py       nothing is saved by the script, and it still goes on at the same batch
  holdfast run watchdog.loop=30s -- python train.py
                                                set a holdfast setting (its name has a dot)

The command restarts from its own newest checkpoint, on another device if necessary. holdfast passes on the command's
own errors, output and exit code. With --json, its stdout goes to stderr and the receipt to stdout.
""",
    )
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting of holdfast (see `holdfast config`)",
    )
    parser.add_argument("--device", metavar="D", help="hide all other devices from the command (default: hide none)")
    parser.add_argument(
        "--resume-with",
        metavar="WORDS",
        help="arguments to add at a restart; {checkpoint} is the newest intact checkpoint",
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="hand out the script's whole state while it trains; after a fault it goes on at the same batch, "
        "with the same bits (docs/any-script.md)",
    )
    parser.add_argument(
        "--no-rehearsal", action="store_true", help="with --exact: do not try it out by a restart in the first minute"
    )
    add_flags(parser)
    parser.set_defaults(run=run, script_argv=[])
    return parser


def run(args: argparse.Namespace) -> int:
    """Check everything that can be checked, make the run folder, supervise."""
    from holdfast.supervisor.scripts import script_start
    from holdfast.supervisor.scripts.rungs import rungs_for
    from holdfast.supervisor.scripts.script_order import Order

    output = Output.from_args(args)
    command = list(args.script_argv)
    if not command:
        tips = ["write the command after `--`: `holdfast run -- python train.py`"]
        raise UsageError("no command was given", command="run", tips=tips)
    if args.resume_with is not None:
        from holdfast.supervisor.scripts.frameworks import check_template

        check_template(args.resume_with)
    script_start.check(command)
    overrides = dict(parse_overrides(args.words))
    settings = Settings.load({**overrides, "run.device": args.device} if args.device else overrides)
    inventory.check_here(settings.run.device)
    notes: list[str] = []
    rungs = rungs_for(settings.run.device, notes.append)
    info = _info(command, args, settings)
    folder = RunFolder.create(Path(settings.run.folder), workload(command), info)
    kept_arguments.keep(folder.path, info, command=command)
    folder.lock()
    if folder.without_locks:
        output.note(f"! {folder.without_locks}")
    order = Order(command, Path.cwd(), rungs, resume_with=args.resume_with, notes=notes)
    order.exact, order.rehearse = args.exact, not args.no_rehearsal
    order.hash_seed = int(info["hash_seed"] or 0)
    return conduct(folder, order, settings, output)


def workload(command: list[str]) -> str:
    """A word for the folder's name: the script, or the program."""
    scripts = [word for word in command if word.endswith(".py")]
    name = Path(scripts[0]).stem if scripts else Path(command[0]).name
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def about(command: list[str]) -> dict[str, Any]:
    """What run.json says of the command."""
    return {
        "script": next((str(Path(word).absolute()) for word in command if word.endswith(".py")), command[0]),
        "command": redact(command),
        "argv": redact(command[1:]),
    }


def _info(command: list[str], args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    return {
        "created": utc_now(),
        "state": RunState.STARTING,
        "kind": RunKind.SCRIPT,
        **about(command),
        "arguments": {},
        "resume_with": args.resume_with,
        "exact": args.exact,
        "hash_seed": random.SystemRandom().randrange(1, 1 << 32) if args.exact else None,
        "cwd": os.getcwd(),
        "settings": settings.recorded(),
        "holdfast": __version__,
        "python": platform.python_version(),
        "exit_code": None,
    }


def conduct(folder: RunFolder, order: Order, settings: Settings, output: Output) -> int:
    """Supervise it to its end; the run is locked by the caller."""
    from holdfast.supervisor.scripts.exact_output import Gate
    from holdfast.supervisor.scripts.script_setup import ScriptSetup

    start = Event.now("start", run=folder.name, command=redact(order.command), holdfast=__version__)
    folder.append(start)
    if settings.notify.webhook or settings.notify.command:
        from holdfast.cli import notify

        notify.start(folder, settings)  # before the setup: what it finds running is no part of the script
    if settings.track.to:
        from holdfast.cli import track

        for problem in track.start(folder, settings):
            folder.append(Event.now("note", text=problem))
            output.note(f"! {problem}")
    try:
        with _own_stdout(output), ScriptSetup(folder, settings) as setup:
            setup.gate = Gate() if order.exact else None
            first = setup.first(order)
            outcome, shown = _supervise(folder, order, settings, output, setup, first)
    finally:
        folder.close()
    shown.conclude(outcome)
    if output.as_json:
        from holdfast.cli.run_facts import Look

        output.json({**Look(folder).result(), "error": outcome.error.to_json() if outcome.error else None})
    return int(outcome.exit_code)


@contextlib.contextmanager
def _own_stdout(output: Output) -> Iterator[None]:
    """With --json stdout has one object and nothing else: what the script prints there goes to stderr."""
    if not output.as_json:
        yield
        return
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _supervise(
    folder: RunFolder, order: Order, settings: Settings, output: Output, setup: ScriptSetup, first: Process | None
) -> Any:
    """What is imported here is imported while the script begins."""
    from holdfast.cli.faces import Careful
    from holdfast.cli.run_face import RunFace
    from holdfast.supervisor.scripts.script_supervisor import ScriptSupervisor

    shown = RunFace(output, folder)
    face = Careful(shown)
    try:
        supervisor = ScriptSupervisor(folder, order, settings, setup, face)
        shown.supervisor = supervisor
        return supervisor.run(first), shown
    finally:
        face.close()
