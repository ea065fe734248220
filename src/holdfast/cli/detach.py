"""Runs in the background: started by one process, supervised by another, which no terminal can take along.

    detach.train(run, args, output)      # the command the user typed; returns once the run lives or failed
    detach.survive_hangup()              # in the other process

The background process is the same command with a hidden flag that names the run folder. It is the leader of a
session of its own, ignores SIGHUP, and writes to `supervisor.log` in the run folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.base import interpreter
from holdfast.base.errors import ExitCode, HoldfastError, InternalError, from_json
from holdfast.base.files import open_regular
from holdfast.base.folders import open_growing
from holdfast.cli.run_facts import Look
from holdfast.console.output import Output, table
from holdfast.run.folder import RunFolder
from holdfast.run.reference import handle, shown
from holdfast.run.states import LIVE_STATES, RunState

LOG = "supervisor.log"
PATIENCE = 20.0
"""Seconds to wait for the script's first sign of life: long enough to see a script that fails at import."""


def train(run: RunFolder, args: argparse.Namespace, output: Output) -> int:
    """Start `holdfast train` for a run folder that was just made."""
    words = ["train", args.script, *args.words, "--background", str(run.path.absolute())]
    words += ["--device", args.device] if args.device else []
    words += ["--row", str(args.row)] if getattr(args, "row", None) is not None else []
    words += ["--seed", str(args.seed)] if args.seed is not None else []
    words += ["--", *args.script_argv] if args.script_argv else []
    return start(run, words, output)


def start(run: RunFolder, words: list[str], output: Output) -> int:
    """Start a command in the background and say what became of it."""
    before = run.info.get("pid")
    with open(open_growing(run.path / LOG), "ab") as log:
        child = subprocess.Popen(
            interpreter.module("holdfast", *words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **_of_its_own(),
        )
    failed = _await_life(run, child, before)
    return _tell(run, child, failed, output)


def survive_hangup() -> None:
    """The terminal that started us may close."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _of_its_own() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _await_life(run: RunFolder, child: subprocess.Popen[bytes], before: object) -> bool:
    """True if the background process ended while we looked."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if child.poll() is not None:
            return True
        info = run.info
        if info.get("pid") == child.pid != before and info.get("state") in LIVE_STATES - {RunState.STARTING}:
            return False
        time.sleep(0.05)
    return False


def _tell(run: RunFolder, child: subprocess.Popen[bytes], ended: bool, output: Output) -> int:
    look = Look(run)
    if not ended and look.state not in LIVE_STATES:  # it came to its end between two looks
        ended = True
        with contextlib.suppress(subprocess.TimeoutExpired):  # what is known by now is in the run folder
            child.wait(PATIENCE)
        look = Look(run)
    code = _code(run, child) if ended else ExitCode.OK
    if code != ExitCode.OK:
        error = _what_it_said(run, look, code)
        error.folder = str(run.path.absolute())
        raise error
    if output.as_json:
        output.json({**look.result(), "pid": None if ended else child.pid})
        return ExitCode.OK
    if output.quiet:
        output.print(shown(run.path))
        return ExitCode.OK
    doing = "finished" if ended else "running" if look.state == RunState.RUNNING else look.state.lower()
    output.print(
        f"{look.name} is {doing} in the background, pid {child.pid}" if not ended else f"{look.name} is {doing}"
    )
    rows = [
        ("  folder", shown(run.path)),
        ("  log", shown(run.path / LOG)),
        ("  status", f"holdfast status {handle(run)}"),
        ("  stop", f"holdfast stop {handle(run)}"),
    ]
    for line in table(rows):
        output.print(line)
    return ExitCode.OK


def _code(run: RunFolder, child: subprocess.Popen[bytes]) -> int:
    """How the background process ended; as the run folder says where it has not quite."""
    said = run.info.get("exit_code")
    if child.returncode is not None:
        return child.returncode
    return int(said) if isinstance(said, int) else int(ExitCode.INTERNAL)


def _what_it_said(run: RunFolder, look: Look, code: int) -> HoldfastError:
    """The error the background process ended with: from the journal, else the end of its log."""
    for event in reversed(look.events):
        error = event.data.get("error")
        if event.kind == "end" and isinstance(error, dict):
            return from_json(error)
    lines = _tail(run.path / LOG)
    return InternalError(
        f"the background process ended with {code}",
        cause="\n".join(lines) or None,
        hints=[f"its output is in {shown(run.path / LOG)}"],
    )


def _tail(path: Path, lines: int = 5) -> list[str]:
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4096))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
