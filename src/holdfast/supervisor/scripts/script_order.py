"""What to run, as `holdfast run` and `holdfast resume` say it."""

from __future__ import annotations

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
    notes: list[str] = field(default_factory=list)
    """What to say before it begins."""
