"""Asking a vendor's tool, in a process of its own, with a deadline.

    answer = run_tool(["nvidia-smi", "-L"], 10.0)
    answer.text         # what it printed, or None
    answer.trouble      # "nvidia-smi gave no answer in 10 s"; None where it answered, or is not installed

These tools talk to a driver, and a driver that is stuck takes them along: rocm-smi has been seen in state D after a
GPU fault, where even SIGKILL has to wait. Such a process is left behind, never waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Any

from holdfast.base import interpreter, processes

_GRACE_S = 1.0
"""How long a killed tool may take to die before it is left alone."""
_MOST = 4_000_000
_PLACES = ("/usr/bin", "/opt/rocm/bin", "/usr/lib/wsl/lib", "/usr/sbin", "/sbin")
"""Beside the PATH: where these tools are on machines whose PATH does not say so."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str | None = None
    trouble: str | None = None


Run = Callable[[Sequence[str], float], Answer]


def run_tool(words: Sequence[str], deadline_s: float) -> Answer:
    """What the tool prints; nothing at all where it is not installed."""
    program = shutil.which(words[0]) or shutil.which(words[0], path=os.pathsep.join(_PLACES))
    if program is None:
        return Answer()
    name = tool_name(words)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                [program, *words[1:]], stdin=subprocess.DEVNULL, stdout=out, stderr=err, **processes.own_session()
            )
        except OSError as error:
            return Answer(None, f"{name} could not be started: {error.strerror or error}")
        try:
            code = child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return Answer(None, f"{name} gave no answer in {deadline_s:.0f} s" + _end(child))
        if code:
            return Answer(None, f"{name} ended with code {code}" + _first_line(out, err))
        return Answer(_read(out))


def ask_json(run: Run, words: Sequence[str], deadline_s: float, troubles: list[str]) -> Any:
    """What a tool that prints JSON has to say; None where it says nothing of the kind."""
    answer = run(words, deadline_s)
    if answer.trouble:
        troubles.append(answer.trouble)
    try:
        return json.loads(answer.text or "null")
    except (ValueError, RecursionError):
        return None


def tool_name(words: Sequence[str]) -> str:
    """nvidia-smi for ["/usr/bin/nvidia-smi", …]; the module's name for `python -m`."""
    module = interpreter.module_of(words)
    if module is not None:
        return module.rpartition(".")[2]
    return PurePath(words[0]).name.removesuffix(".exe")


def _end(child: subprocess.Popen[bytes]) -> str:
    processes.send_group(child.pid, processes.KILL)
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        return f", and its process {child.pid} cannot be killed"
    return ""


def _first_line(out: IO[bytes], err: IO[bytes]) -> str:
    said = _read(err) or _read(out)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f": {lines[0][:200]}" if lines else ""


def _read(file: IO[bytes]) -> str:
    with contextlib.suppress(OSError):
        file.seek(0)
        return file.read(_MOST).decode(errors="replace")
    return ""
