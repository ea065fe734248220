"""What a process that runs the script is told when it is started: all of it, in one record.

launcher.start(WorkerConfig(generation=3, …), arenas)       # the supervisor
config = read_strictly(WorkerConfig, data)                  # the worker, or the process that asks the CPU
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.base import dataclass_json
from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Rung
from holdfast.run.messages import SlotsAt


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Of one generation."""

    generation: int
    name: str
    folder: str
    """Of the run."""
    scratch: str
    script: str
    argv: tuple[str, ...]
    arguments: dict[str, str]
    settings: dict[str, Any]
    rungs: tuple[Rung, ...]
    rung: int
    seed: int
    threads: int | None
    checkpoint: str | None
    """Where to go on from, if no slot holds a snapshot."""
    pieces: int = 1
    cpu_batch: bool = False
    chaos: dict[str, Any] | None = None
    pretend: str | None = None
    """The file with the ailments of a pretended device."""
    pids: dict[str, int | None] = field(default_factory=dict)
    """Who is who, for the faults of `holdfast chaos`."""
    # What follows is the order of recovery.py.
    trial: dict[str, Any] | None = None
    """A step to keep the state of, or to compute on the CPU as well."""
    probation: int = 0
    """Steps to compare with the CPU."""
    leave_out: tuple[Any, ...] = ()
    """Samples that make a step fail wherever it is computed."""
    sentinel: bool = True
    between_faults: float | None = None
    workers_lost: int = 0
    watched_s: float = 0.0
    # What follows is filled in by the launcher.
    arenas: tuple[SlotsAt, ...] = ()
    board: str | None = None
    # For the process that asks the CPU about a fault alone.
    opinion: int | None = None
    """The sequence of the snapshot before the step."""
    fault: Fault | None = None

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)

    @property
    def device(self) -> str:
        return self.rungs[self.rung].device
