"""What plans said and what it took: the runs that finished here, by which the next estimate is corrected.

    remember(Past(job="detection", device="cpu", took_s=214.0, raw_s=190.0, …))
    past = recall("detection")
    correction(past, device="cpu")          # Correction(factor=1.08, sigma=0.09, runs=3)

One line a run in `plans.jsonl` of the state folder, beside the ledger. What is no such line is passed over. No torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.dataclass_json import read, write
from holdfast.base.files import private
from holdfast.base.folders import make_private
from holdfast.run.folder import read_lines

FILE = "plans.jsonl"
MOST = 500
"""Runs that are kept; at twice as many the older ones go."""
SIGMA = 0.12
"""The spread of took / said before any run finished here, in logarithms: nine of ten within 20 %."""
BELIEF = 1.5
"""How many runs that first guess of the spread is worth."""
PULL = 0.5
"""So many runs that took as long as was said are assumed before the first: one run does not move it all the way."""


@dataclass(frozen=True, slots=True)
class Past:
    """One run that finished here."""

    job: str
    device: str
    took_s: float
    raw_s: float | None = None
    """What the measurement said, before correction; None where there was no plan."""
    said_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    lost_s: float = 0.0
    faults: int = 0
    arguments: tuple[tuple[str, str], ...] = ()
    steps: int = 0
    run: str = ""
    ended: str = ""

    @property
    def ratio(self) -> float | None:
        """Took over what was measured, without what faults took."""
        took = self.took_s - self.lost_s
        return took / self.raw_s if self.raw_s and took > 0 else None


@dataclass(frozen=True, slots=True)
class Correction:
    """What earlier runs say about an estimate."""

    factor: float = 1.0
    sigma: float = SIGMA
    runs: int = 0


def path() -> Path:
    from holdfast.devices.ledger import state_folder

    return state_folder() / FILE


def remember(past: Past) -> None:
    """Keep it; a disk that does not take it costs an estimate its correction, nothing else."""
    where = path()
    with contextlib.suppress(OSError):
        make_private(where.parent)
        with open(where, "a", encoding="utf-8", opener=private) as file:
            file.write(json.dumps(write(past)) + "\n")
        _make_small(where)


def _make_small(where: Path) -> None:
    lines = where.read_text(encoding="utf-8").splitlines()
    if len(lines) > 2 * MOST:
        beside = where.with_name(f".{FILE}.{os.getpid()}.tmp")
        with open(beside, "w", encoding="utf-8", opener=private) as file:
            file.write("\n".join(lines[-MOST:]) + "\n")
        os.replace(beside, where)


def recall(*jobs: str) -> list[Past]:
    """The runs of these jobs, the oldest first."""
    where = path()
    if not where.is_file():
        return []
    found = (read(Past, line) for line in read_lines(where))
    return [each for each in found if each is not None and each.job in jobs and each.took_s > 0]


def correction(past: list[Past], job: str, device: str) -> Correction:
    """The factor and the spread that the last runs of this job on this device show."""
    ratios = [each.ratio for each in past if each.job == job and each.device == device]
    logs = [math.log(ratio) for ratio in ratios[-10:] if ratio is not None and 0.05 < ratio < 20]
    if not logs:
        return Correction()
    shift = sum(logs) / (len(logs) + PULL)
    around = sum((each - shift) ** 2 for each in logs)
    spread = (BELIEF * SIGMA**2 + around) / (BELIEF + len(logs) - 1)  # one of them went into the middle
    few = 1.0 + 1.1 / (BELIEF + len(logs) - 1)  # a spread that is known from few runs: Student's t, nearly
    sigma = few * math.sqrt(spread * (1.0 + 1.0 / len(logs)))  # of the next run, not of those that were
    return Correction(math.exp(shift), sigma, len(logs))


def seconds_per_fault(past: list[Past]) -> float | None:
    """What a fault took in the runs that finished here; None if none had one."""
    faults = sum(each.faults for each in past)
    return sum(each.lost_s for each in past) / faults if faults else None
