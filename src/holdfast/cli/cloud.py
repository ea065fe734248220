"""`holdfast launch --cloud`: a task file for SkyPilot, the price and the cap, and a question before money is spent.

holdfast launch --cloud --gpu L4 --dryrun my_script.py                     the file alone: no account is needed
holdfast launch --cloud --gpu L4 --spot --bucket my-runs --cap 5 my_script.py
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.order import read_script, root_of, split_words
from holdfast.console.output import Output, duration
from holdfast.console.usage import Parser, UsageError
from holdfast.distributed import sky
from holdfast.record import transfer
from holdfast.run import script
from holdfast.run.folder import find_run
from holdfast.run.names import new_name
from holdfast.run.reference import shown
from holdfast.run.settings import Settings


def add_flags(parser: Parser) -> None:
    flags = parser.add_argument_group("in a cloud, with SkyPilot")
    flags.add_argument(
        "--cloud", action="store_true", help="rent a machine: write a task file, show the price, ask, start"
    )
    flags.add_argument("--dryrun", action="store_true", help="only write the task file; starts nothing")
    flags.add_argument(
        "--gpu", default="L4", metavar="NAME", help="L4, A100, RTX4090, …; NAME:8 for eight of them (default: L4)"
    )
    flags.add_argument(
        "--infra", metavar="CLOUD", help="cloud to use: aws, gcp, runpod, vast, … (default: the cheapest)"
    )
    flags.add_argument(
        "--spot", action="store_true", help="use cheaper machines that the cloud may take back; needs --bucket"
    )
    flags.add_argument("--bucket", metavar="NAME", help="bucket that keeps the run folder")
    flags.add_argument(
        "--cap", type=float, default=5.0, metavar="USD", help="the most it may cost, in dollars (default: 5)"
    )
    flags.add_argument(
        "--price", type=float, metavar="USD", help="price of a machine per hour, if holdfast does not know it"
    )
    flags.add_argument(
        "--setup", metavar="SHELL", help="command that installs what the run needs (default: pip install holdfast)"
    )
    flags.add_argument("--name", metavar="NAME", help="name of the task")
    flags.add_argument("--output", metavar="FILE", help="path of the task file (default: NAME.yaml)")
    flags.add_argument("--yes", action="store_true", help="do not ask before spending")


def run(args: argparse.Namespace, output: Output) -> int:
    """Everything that can be checked here first; then the file; then the question."""
    task, price = _task(args, output)
    path = Path(args.output or f"{task.name}.yaml")
    if not args.dryrun:
        sky.check_ready(task, Path.home())
        if task.hours is None:
            raise UserError(
                f"the price of {task.gpu} is not known",
                cause="the cap in dollars needs a price per hour, and SkyPilot's price list is not on this machine",
                hints=["give the price: `--price 0.80`", "or download the price list: `sky gpus list`"],
            )
    _write(path, task.to_yaml())
    command = [*task.command, str(path)]
    if output.as_json:
        output.json(_as_json(task, price, path, command))
    else:
        _show(task, price, path, command, output, dry=args.dryrun)
    if args.dryrun:
        return ExitCode.OK
    _confirm(args, output)
    return subprocess.call(command)


def _task(args: argparse.Namespace, output: Output) -> tuple[sky.Task, sky.Price | None]:
    if args.cap <= 0:
        raise UsageError(f"--cap is {args.cap:g}, but it must be above zero", command="launch")
    if args.price is not None and args.price <= 0:
        raise UsageError(f"--price is {args.price:g}, but it must be above zero", command="launch")
    where, words, staged = _what(args, output)
    name = args.name or f"{re.sub(r'[^a-z0-9-]+', '-', where.stem.lower()).strip('-') or 'run'}-{new_name(set())}"
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", name):
        raise UsageError(f"`{name}` cannot name a task", command="launch", cause="small letters, digits and dashes")
    gpu, _, number = args.gpu.partition(":")
    if number and not number.isdecimal():
        raise UsageError(f"--gpu {args.gpu} is not NAME or NAME:COUNT", command="launch")
    task = sky.Task(
        name,
        str(where),
        words,
        gpu=gpu,
        gpus=int(number or 1),
        nodes=args.nodes,
        spot=args.spot,
        cloud=args.infra,
        bucket=args.bucket,
        setup=args.setup or _setup(),
        cap=args.cap,
        staged=None if staged is None else f"./.cloud/{name}",
    )
    if staged is not None and not args.dryrun:
        transfer.copy_run(staged, Path(".cloud") / name / name)
    price = sky.Price(args.price, "given") if args.price else sky.catalog_price(task, Path.home())
    return (task, None) if price is None else (dataclasses.replace(task, price=price.dollars * args.nodes), price)


def _what(args: argparse.Namespace, output: Output) -> tuple[Path, list[str], Path | None]:
    """The script relative to this folder, which is sent along; its words; the run that goes on there, if one does."""
    if args.resume:
        from holdfast.cli import resume

        run_folder = find_run(root_of(args), args.resume)
        facts, _, _ = resume._script(run_folder, [], args.moved, output, keep=False)
        asked, words = str(facts.path), []
    else:
        run_folder, asked, words = None, args.script, list(args.words)
        if not asked:
            raise UsageError("which script?", command="launch")
        arguments, overrides = split_words(words, "launch")
        script.check_arguments(read_script(asked, "launch"), arguments)
        Settings.load(overrides)
    try:
        relative = Path(asked).resolve().relative_to(Path.cwd())
    except ValueError:
        raise UserError(
            f"{asked} is not in this folder",
            cause="only this folder is sent to the rented machine",
            hints=["run the command in the folder of the script"],
        ) from None
    return relative, words, None if run_folder is None else run_folder.path


def _setup() -> str:
    lines = ["pip install holdfast"]
    return "\n".join([*lines, "pip install -r requirements.txt"] if Path("requirements.txt").is_file() else lines)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written", cause=str(error.strerror or error)) from None


def _as_json(task: sky.Task, price: sky.Price | None, path: Path, command: list[str]) -> dict[str, Any]:
    return {
        "schema": 1,
        "task": task.name,
        "file": str(path),
        "command": command,
        "price_per_hour": task.price,
        "price_basis": None if price is None else price.basis,
        "cap_usd": task.cap,
        "hours": task.hours,
        "runs": f"{task.runs}/{task.name}",
    }


def _show(
    task: sky.Task, price: sky.Price | None, path: Path, command: list[str], output: Output, *, dry: bool
) -> None:
    machines = f"{task.nodes} machines with {task.gpus}" if task.nodes > 1 else f"{task.gpus}"
    kind = "spot" if task.spot else "on demand"
    output.print(f"task     {task.name}: {machines} x {task.gpu}, {kind}, {task.cloud or 'the cheapest cloud'}")
    if price is None or task.hours is None:
        output.print(
            "price    not known: give it with `--price`, or download SkyPilot's price list with `sky gpus list`"
        )
        output.print(f"cap      ${task.cap:.2f}; without a price nothing is started")
    else:
        output.print(f"price    ${task.price:.2f} an hour ({price.basis})")
        output.print(f"cap      ${task.cap:.2f}: it ends {duration(task.hours * 3600)} after it begins, state saved")
    output.print(
        f"stops    by itself after {task.idle_minutes} idle minutes; exit code 75 means: continue it elsewhere"
    )
    kept = f"bucket {task.bucket}" if task.bucket else "the machine's own disk, lost with it"
    output.print(f"runs     {task.runs}/{task.name} ({kept})")
    output.print(f"file     {shown(path)}")
    output.print(f"{'would run' if dry else 'runs'}  {' '.join(command)}")
    if not task.bucket:
        output.print(f"fetch it with `holdfast pull {task.name}:{sky.SYNCED.removeprefix('~/')}/{task.name}/FOLDER`")


def _confirm(args: argparse.Namespace, output: Output) -> None:
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UserError(
            "nothing was started: there is no terminal to ask you in",
            cause="it would spend money",
            hints=["add `--yes`, or start it yourself with the command above"],
        )
    output.note(f"Spend up to ${args.cap:.2f}? Type yes: ")
    if sys.stdin.readline().strip().lower() != "yes":
        raise UserError("nothing was started", cause="the answer was not yes")
