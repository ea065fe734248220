"""What to run, as `holdfast run` and `holdfast resume` say it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.faults.ladder import Rung


@dataclass(slots=True)
class Order:
    """One command, and the ways to run it."""

    command: list[str]
    cwd: Path
    rungs: list[Rung]
    rung: int = 0
    resume_with: str | None = None
    since_ns: int = field(default_factory=time.time_ns)
    """Checkpoints from before are somebody else's."""
    resume: Any = None
    """A checkpoint of an attached run that goes on, or None."""
    going_on: bool = False
    """`holdfast resume`: the first process begins at what the run has already."""
    exact: bool = False
    """`--exact`: the script's variables are handed out, and a new process is led back to them."""
    rehearse: bool = True
    hash_seed: int = 0
    """By which all processes of an exact run order their sets."""
    notes: list[str] = field(default_factory=list)
    """What to say before it begins."""


def exact_environment(hash_seed: int) -> dict[str, str]:
    """What a process needs to find the engine of `--exact`, and to order its sets as the process before."""
    return {"HOLDFAST_EXACT": "1", **({} if "PYTHONHASHSEED" in os.environ else {"PYTHONHASHSEED": str(hash_seed)})}
