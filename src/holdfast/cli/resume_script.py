"""`holdfast resume` for a run of `holdfast run`: the same command again, from the newest state there is.

The state is what the script handed out (`holdfast.attach`, the callbacks), or else its own newest checkpoint that is
whole. It runs in the folder it was started in.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError
from holdfast.base.secret_words import HIDDEN
from holdfast.cli.resume_trust import check_own
from holdfast.cli.run import about, conduct
from holdfast.console.output import Output
from holdfast.run import kept_arguments
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.run.states import RunKind
from holdfast.state import checkpoint


def is_one(folder: RunFolder) -> bool:
    """Was this run made by `holdfast run`?"""
    return folder.info.get("kind") == RunKind.SCRIPT


def read_command(folder: RunFolder, words: list[str]) -> tuple[list[str], Path]:
    """The command and its folder, checked; `words`: the command, if it is given again.

    A command that is typed for a run that was not started here means the folder it is typed in: run.json has no say.
    """
    from holdfast.supervisor.scripts import script_start

    if words and not folder.vouched:
        command, cwd = words, Path.cwd()
    else:
        command, cwd = _command(folder, words)
    program = script_start.check(command) if os.sep not in command[0] else str((cwd / command[0]).absolute())
    check_own(folder, Path(shutil.which(program) or program).absolute())
    return command, cwd


def given(command: list[str], cwd: Path, folder: RunFolder) -> dict[str, Any]:
    """What run.json says from now on, where it was not to be trusted: nothing of what it named is used."""
    if folder.vouched:
        return {}
    nothing = dict.fromkeys(("resume_with", "fits", "fitted", "saves"))
    return {**nothing, **about(command), "cwd": str(cwd)}


def go_on(
    folder: RunFolder,
    command: list[str],
    cwd: Path,
    settings: Settings,
    args: argparse.Namespace,
    output: Output,
    *,
    account: Callable[[RunFolder, checkpoint.Checkpoint | None], int | None],
    newest: Callable[[RunFolder, Output], checkpoint.Checkpoint | None],
) -> int:
    """Start it again. The run is locked by the caller."""
    from holdfast.supervisor.scripts.rungs import rungs_for
    from holdfast.supervisor.scripts.script_order import Order

    attached = any(checkpoint.candidates(folder.path / "checkpoints"))
    good = newest(folder, output) if attached else None
    account(folder, good)
    info = folder.info
    notes: list[str] = []
    rungs = rungs_for(settings.run.device, notes.append)
    here = [number for number, rung in enumerate(rungs) if rung.device == info.get("device")]
    resume_with = info.get("resume_with")
    order = Order(
        command,
        cwd,
        rungs,
        rung=here[0] if here and not args.device else 0,
        resume_with=resume_with if isinstance(resume_with, str) else None,
        since_ns=_created_ns(info.get("created")),
        resume=good,
        going_on=True,
        notes=notes,
    )
    order.exact, order.hash_seed = bool(info.get("exact")) and good is not None, int(info.get("hash_seed") or 0)
    folder.update_info(settings=settings.recorded())
    os.chdir(cwd)
    return conduct(folder, order, settings, output)


def _command(folder: RunFolder, given: list[str]) -> tuple[list[str], Path]:
    info = folder.info
    saved, cwd = info.get("command"), info.get("cwd")
    shown = [str(word) for word in saved] if isinstance(saved, list) else []
    command = given or kept_arguments.find(folder.path, info, "command", shown) or shown
    if not command:
        raise UserError(f"{folder.path} does not name its command", cause="its run.json has no `command`")
    if any(HIDDEN in word for word in command):
        raise UserError(
            "this run was started with a secret, and secrets are not stored",
            cause="run.json holds *** in its place",
            hints=[f"give the command again: `holdfast resume {folder.name} -- …`"],
        )
    place = Path(str(cwd)) if isinstance(cwd, str) else Path.cwd()
    if not place.is_dir():
        raise UserError(f"the folder {folder.name} was started in is gone", cause=str(place))
    return command, place


def _created_ns(created: object) -> int:
    """When the run was made: checkpoints from before are somebody else's."""
    try:
        return int(datetime.fromisoformat(str(created).replace("Z", "+00:00")).timestamp() * 1e9)
    except ValueError:
        return 0
