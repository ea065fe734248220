"""`holdfast resume --at-boot`: have a run go on by itself after a reboot; and what that start does, and leaves.

    holdfast resume --at-boot calm-heron              install
    holdfast resume --at-boot --print calm-heron      show the file, install nothing
    holdfast resume --at-boot --remove calm-heron     take it away

What is written and where is in `holdfast.supervisor.at_boot`; this decides and prints.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from pathlib import Path

from holdfast.base import interpreter
from holdfast.base.errors import ExitCode, UserError
from holdfast.console.output import Output, shorten, table
from holdfast.console.usage import UsageError
from holdfast.run import machine
from holdfast.run.folder import RunFolder
from holdfast.run.reference import handle
from holdfast.run.states import RunState
from holdfast.supervisor import at_boot

_NOT_NEEDED = re.compile(
    r"LANG|LC_ALL|TERM|NO_COLOR|FORCE_COLOR|COLUMNS|CI|TMPDIR|PYTHONUNBUFFERED|VIRTUAL_ENV|CONDA_DEFAULT_ENV|HOLDFAST_.*"
)
"""Variables that may be shown and are not missed: they change no training, or are settings, kept with the run."""


def check_flags(args: argparse.Namespace) -> None:
    """Flags that mean something only together."""
    for flag in ("remove", "print_only"):
        if getattr(args, flag) and not args.at_boot:
            name = "--print" if flag == "print_only" else "--remove"
            raise UsageError(f"`{name}` belongs to `--at-boot`", command="resume")
    if args.at_boot and args.script_argv:
        raise UsageError(
            "`--at-boot` takes no arguments after `--`",
            command="resume",
            cause="they would be stored in a start-up file, secrets included",
        )
    if args.at_boot and args.detach:
        raise UsageError(
            "`--at-boot` and `--detach` cannot be combined: `--at-boot` starts nothing now",
            command="resume",
            tips=["use `--detach` alone to continue the run now"],
        )


def run(folder: RunFolder, args: argparse.Namespace, output: Output) -> int:
    """Install, show or remove."""
    path = folder.path.resolve()
    system = "systemd" if args.print_only and os.name == "posix" and not _has_system() else at_boot.find_system()
    if args.remove:
        return _removed(folder, at_boot.remove(path, system), output)
    words = [*args.words, *(["--device", args.device] if args.device else [])]
    job = at_boot.Job(folder.name, path, _cwd(folder), tuple(words))
    if args.print_only:
        output.note(f"{shorten(str(at_boot.place(job, system)))}:")
        output.print(at_boot.render(job, system).rstrip("\n"))
        if output.as_json:
            output.json(
                {
                    "run": folder.name,
                    "system": system,
                    "path": str(at_boot.place(job, system)),
                    "text": at_boot.render(job, system),
                }
            )
        return ExitCode.OK
    _check_start(job)
    done = at_boot.install(job, system)
    done.notes += _missing_variables()
    _tell(folder, job, done, system, output)
    return ExitCode.OK if done.enabled else ExitCode.NO


def _has_system() -> bool:
    try:
        at_boot.find_system()
    except UserError:
        return False
    return True


def _cwd(folder: RunFolder) -> Path:
    """Where the run was started, or else here."""
    said = folder.info.get("cwd")
    return Path(said) if isinstance(said, str) and os.path.isabs(said) and Path(said).is_dir() else Path.cwd()


def _check_start(job: at_boot.Job) -> None:
    """With nothing but a home and a path, as at boot: does holdfast start at all?"""
    bare = {name: os.environ[name] for name in ("HOME", "PATH", "SYSTEMROOT") if name in os.environ}
    words = interpreter.module("holdfast", "--version", python=job.python)
    try:
        told = subprocess.run(words, cwd=job.cwd, env=bare, capture_output=True, text=True, timeout=60, check=False)
        problem = None if told.returncode == 0 else (told.stderr.strip().splitlines() or ["it said nothing"])[-1]
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(error)
    if problem is not None:
        raise UserError(
            "holdfast cannot start after a boot",
            cause=f"without this shell's environment: {problem}",
            hints=["install it where it is found without PYTHONPATH: `pip install holdfast`"],
        )


def _missing_variables() -> list[str]:
    """Variables set here that change how training behaves, which no boot will set. Named, never copied."""
    named = [name for name in machine.environment(os.environ) if not _NOT_NEEDED.fullmatch(name)]
    named += [name for name in ("HOLDFAST_STATE", "XDG_STATE_HOME") if os.environ.get(name)]
    if not named:
        return []
    return [f"set here but not after a boot: {', '.join(named)}; docs/after-a-reboot.md says where to set them"]


def _tell(folder: RunFolder, job: at_boot.Job, done: at_boot.Done, system: str, output: Output) -> None:
    if output.as_json:
        output.json(
            {
                "run": folder.name,
                "system": system,
                "path": str(done.path),
                "enabled": done.enabled,
                "cwd": str(job.cwd),
                "command": job.command,
                "notes": done.notes,
            }
        )
        return
    sign = "✓" if done.enabled else "!"
    output.print(f"{sign} {folder.name} continues automatically after a reboot, until it is finished")
    rows = [
        ("  file", shorten(str(done.path))),
        ("  starts in", shorten(str(job.cwd))),
        ("  undo", f"holdfast resume --at-boot --remove {handle(folder)}"),
    ]
    for line in table(rows):
        output.print(line)
    for note in done.notes:
        output.note(f"• {note}")


def _removed(folder: RunFolder, path: Path | None, output: Output) -> int:
    if output.as_json:
        output.json({"run": folder.name, "removed": str(path) if path else None})
    elif path is None:
        output.print(f"{folder.name} does not continue after a reboot: nothing to remove")
    else:
        output.print(f"✓ {folder.name} no longer continues after a reboot")
    return ExitCode.OK


# The start itself -----------------------------------------------------------------------------------------------


def left_alone(folder: RunFolder, output: Output, *, more: bool = False) -> bool:
    """After a boot: True if there is nothing to go on with. A finished run needs no file any more.

    `more`: stages that come after it are not finished.
    """
    state = folder.state()
    if state == RunState.FINISHED and more:
        return False
    if state == RunState.FINISHED:
        clean_up(folder)
        output.note(f"{folder.name} is finished; it is no longer started after a boot")
    elif state == RunState.FAILED:
        output.note(f"{folder.name} waits for you: its script failed; `holdfast resume {folder.path}` continues it")
    elif folder.in_use():
        output.note(f"{folder.name} is already running")
    else:
        return False
    return True


def clean_up(folder: RunFolder) -> None:
    """Once a run is finished, nothing of it is left in the start-up files."""
    if folder.info.get("state") != RunState.FINISHED:
        return
    try:
        at_boot.remove(folder.path.resolve(), at_boot.find_system())
    except UserError:
        return
