"""What the tests of evidence share: a run folder, a fault, and commands that say what they are told to say."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move
from holdfast.faults.terms import Action
from holdfast.run.folder import RunFolder

LOST = Fault(Kind.DEVICE_LOST, "cuda:0", step=3862, phase="backward", message="CUDA error: unspecified launch failure")
AGAIN = Move(Action.REPLACE, 0, reason="new worker on cuda:0 fp32, try 1 of 3")
XID_79 = "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."


def new_run(root: Path, **info: Any) -> RunFolder:
    return RunFolder.create(root, "job", info)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def command(folder: Path, name: str, *, says: str = "", on_stderr: str = "", code: int = 0, sleeps: float = 0) -> Path:
    """A program of that name, to be found first on PATH: a real process that prints, fails or does not end."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(
        "#!/bin/sh\n''':'\n"  # Python's path may have blanks, which the first line cannot take
        f'exec "{sys.executable}" "$0" "$@"\n'
        "'''\n"
        "import os, sys, time\n"
        f"open({str(folder / (name + '.pid'))!r}, 'a').write(str(os.getpid()) + '\\n')\n"
        f"time.sleep({sleeps})\n"
        f"sys.stdout.write({says!r})\n"
        f"sys.stderr.write({on_stderr!r})\n"
        f"sys.exit({code})\n"
    )
    script.chmod(0o700)
    return script


def started(folder: Path, name: str) -> list[int]:
    """The processes that program has been."""
    path = folder / f"{name}.pid"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def first_on_path(folder: Path) -> str:
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
