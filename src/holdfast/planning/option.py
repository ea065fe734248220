"""One row of a plan, as data. options.py (here) and rented_options.py (elsewhere) fill it; decide.py takes one."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.planning.presets import AS_ASKED

RISKS = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Part:
    """One run of an option, for run.json: what was said about it."""

    job: str
    time_s: float
    low_s: float
    high_s: float
    raw_s: float
    arguments: dict[str, str] = field(default_factory=dict)
    """What the option changes in the run's arguments."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row."""

    kind: str
    """local, cloud or advice."""
    where: str
    preset: str = AS_ASKED
    device: str = ""
    precision: str = ""
    threads: int = 0
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    cost_usd: float | None = None
    energy_wh: float | None = None
    risk: str = "medium"
    score: float | None = None
    rank: int = 0
    """0 for the job as it was asked for, more for smaller ones, in the order in which they are named."""
    basis: str = "measured"
    """measured, estimated or remembered; advice rows have the kind of basis in words."""
    refused_by: str = ""
    faults: float = 0.0
    parts: tuple[Part, ...] = ()
    spends: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of the time."""
    memory_bytes: int | None = None
    origin: tuple[str, ...] = ()
