"""Starting a script as it would start by itself: its arguments, folder, streams and signals, in a session of its own.

    check(["python", "train.py"])                          # UserError before anything is made: not found, no program
    script = launch(["python", "train.py"], streams, env)  # a Script: pid, exit code, the moment it began
    script.poll()                                          # its exit code, once it has ended
    script.send(signal.SIGTERM)                            # to everything in its group

The kernel is asked to end the script when we are killed: a script nobody watches would go on without its pipes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.base import processes
from holdfast.base.errors import UserError
from holdfast.supervisor.scripts.streams import Streams, controlling
from holdfast.supervisor.supervised_process import SupervisedProcess

_PR_SET_PDEATHSIG = 1


@dataclass(kw_only=True)
class Script(SupervisedProcess):
    """One process of the user's."""

    popen: subprocess.Popen[bytes]
    followed: int | None = None
    """The process it became when it went into the background by itself."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.exit_code is None:
            self.exit_code = self.popen.poll()
        return self.exit_code

    def send(self, number: int) -> bool:
        """A signal to the script and what is in its group, as a terminal would send it."""
        return processes.send_group(self.followed or self.pid, number)


def check(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """The program a command names; UserError with the reason if it cannot be started."""
    if not command:
        raise UserError(
            "no command was given", hints=["write the command after `--`: `holdfast run -- python train.py`"]
        )
    word = command[0]
    path = shutil.which(word, path=(env or os.environ).get("PATH"))
    if path is not None:
        return path
    place = Path(word)
    if os.sep in word and place.is_dir():
        raise UserError(f"`{word}` is a folder, not a program")
    if os.sep in word and place.exists():
        hints = [f"make it executable: `chmod +x {word}`"]
        if place.suffix == ".py":
            hints.insert(0, f"start it with Python: `holdfast run -- python {word}`")
        raise UserError(f"`{word}` is not executable", hints=hints)
    if place.suffix == ".py" and place.exists():
        raise UserError(
            f"`{word}` was not found as a command", hints=[f"start it with Python: `holdfast run -- python {word}`"]
        )
    cause = "there is no such file" if os.sep in word else "no folder in PATH contains it"
    raise UserError(f"the command `{word}` was not found", cause=cause)


def launch(command: Sequence[str], streams: Streams, env: Mapping[str, str], *, generation: int = 0) -> Script:
    """Start it. UserError if the system refuses."""
    parent, slave = os.getpid(), streams.slave
    libc = ctypes.CDLL(None, use_errno=True) if processes.LINUX else None

    def become() -> None:  # in the child, before it becomes the script
        controlling(slave)
        if libc is not None and sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    try:
        popen = subprocess.Popen(
            list(command),
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            env=dict(env),
            start_new_session=sys.platform != "win32",
            preexec_fn=become if sys.platform != "win32" else None,
        )
    except OSError as error:
        raise _refused(command[0], error) from None
    streams.started()
    script = Script(popen=popen, generation=generation)
    script.identify(popen.pid)
    return script


def _refused(word: str, error: OSError) -> UserError:
    hints = []
    cause = str(error.strerror or error)
    if error.errno == errno.ENOEXEC:
        cause = "it is neither a program for this machine nor a script with an interpreter line (#!…)"
        hints = [f"start it with its interpreter: `holdfast run -- python {word}` or `holdfast run -- sh {word}`"]
    elif error.errno == errno.E2BIG:
        cause = "its arguments and environment are too long"
    with contextlib.suppress(OSError):
        if error.errno == errno.ENOENT and Path(shutil.which(word) or word).read_bytes()[:2] == b"#!":
            cause = "the interpreter in its first line does not exist"
    return UserError(f"`{word}` cannot be started", cause=cause, hints=hints)
