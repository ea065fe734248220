"""What was asked for: a script or a workload, its words, the settings among them. Read and checked, nothing started.

order = read_order("my_script.py", ["epochs=3", "watchdog.floor=10s"], device="cpu")      # or UserError
folder = create(order)                                                                    # its run folder
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.base.errors import UserError
from holdfast.console.usage import UsageError, similar
from holdfast.run import kept_arguments, machine, script, workload_registry
from holdfast.run.events import utc_now
from holdfast.run.folder import RunFolder, redact
from holdfast.run.settings import Settings, parse_overrides
from holdfast.run.states import RunState


def add_script_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "script", metavar="SCRIPT", help="a Python file with `def train(session)`, or a workload such as eeg"
    )
    add_words(parser)


def add_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="an argument of train(), or a setting with a dot in its name (see `holdfast config`)",
    )


def add_device(parser: argparse.ArgumentParser, default: str = "auto") -> None:
    parser.add_argument(
        "--device",
        metavar="D",
        help=f"auto, cpu, cuda:0, …; the run falls back to the CPU if the device fails (default: {default})",
    )


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
    arguments, overrides = split_words(words, command)
    if device is not None:
        overrides["run.device"] = device
    if seed is not None:
        overrides["run.seed"] = str(seed)
    facts = read_script(asked, command)
    script.check_arguments(facts, arguments)
    settings = Settings.load(overrides)
    workload = workload_registry.find(asked)
    if workload is not None:
        workload.check_ready(arguments)
    return Order(facts, list(argv), arguments, settings, threads_for(settings.run.threads))


def threads_for(wanted: int | str, env: Mapping[str, str] | None = None) -> int:
    """CPU threads for torch: as asked, as OMP_NUM_THREADS says, or as many CPUs as this process may use."""
    if isinstance(wanted, int):
        return wanted
    said = threads_said(os.environ if env is None else env)
    if said is not None:
        return said
    allowed = machine.usable_cpus() or 1
    quota = machine.limits()["cpus"]
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


def threads_said(env: Mapping[str, str]) -> int | None:
    """What OMP_NUM_THREADS says. A list has a number for each level of nesting; torch uses the first."""
    first = env.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else None


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
    workload = workload_registry.find(asked)
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
    workload = workload_registry.find(asked)
    if workload is not None:
        tips = [f"give `holdfast {command}` one of them"]
        cause = f"it is made of several runs: {', '.join(workload.stages)}"
        return UsageError(f"`{asked}` is not one run", command=command, cause=cause, tips=tips)
    known = workload_registry.names()
    return UsageError(
        f"unknown workload `{asked}`",
        command=command,
        cause=f"the workloads are {', '.join(known)}",
        tips=[*similar(asked, known, "workload"), f"a script is named with its ending: `{asked}.py`"],
    )


def create(order: Order, **more: Any) -> RunFolder:
    """The folder of a new run; `more` is kept in its run.json."""
    path = order.facts.path
    workload = workload_registry.named_by(path) or re.sub(r"[^\w.-]+", "-", path.stem).strip("-") or "run"
    info = {**run_info(order), **more}
    folder = RunFolder.create(Path(order.settings.run.folder), workload, info)
    pairs = [f"{key}={value}" for key, value in order.arguments.items()]
    kept_arguments.keep(folder.path, info, argv=order.argv, arguments=pairs)
    return folder


def run_info(order: Order) -> dict[str, Any]:
    """What run.json says before the supervisor adds to it."""
    pairs = redact([f"{key}={value}" for key, value in order.arguments.items()])
    return {
        "created": utc_now(),
        "state": RunState.STARTING,
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


def root_of(args: argparse.Namespace) -> Path:
    """The folder that runs are in."""
    return Path(args.folder) if getattr(args, "folder", None) else Path(Settings.load().run.folder)
