"""Everything a plan depends on besides the measurements: devices with their history, prices, presets, earlier runs.

    world = World(jobs=…, devices=…, prices=…)
    read(World, write(world)) == world          # so a saved plan can be made again, anywhere, any time

Gathering it is `job_survey.py`; here it is only data. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.devices.ledger_summary import LedgerState
from holdfast.planning.history import Past
from holdfast.planning.presets import Preset
from holdfast.planning.prices import Price


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One run of the job."""

    name: str
    """As runs of it are called in the history."""
    parameters: tuple[str, ...] = ()
    """Arguments that its `train` takes."""
    arguments: tuple[tuple[str, str], ...] = ()
    """Those that were given, sorted, as the history of runs has them."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of this machine, as the doctor and the ledger know it."""

    id: str
    name: str = ""
    verdict: str = ""
    """trusted, use_with_care, inference_only, refused; empty where there is none."""
    why: str = ""
    codes: tuple[str, ...] = ()
    """Findings of the doctor."""
    trust: str = ""
    hours: float = 0.0
    """Of use here, by the ledger."""
    faults: int = 0
    freezes: int = 0

    @property
    def rate(self) -> float:
        """Faults an hour."""
        return self.faults / self.hours if self.hours > 0 else 0.0

    @property
    def refused(self) -> str:
        """Why it cannot be trained on; nothing if it can."""
        if self.verdict in ("inference_only", "refused"):
            code = f"{self.codes[0]}: " if self.codes else ""
            return f"refused by the doctor: {code}{self.why or self.verdict.replace('_', ' ')}"
        if not self.verdict and self.id != "cpu":
            return "no verdict: run `holdfast doctor` first"
        if self.trust == LedgerState.QUARANTINED:
            return "in quarantine: `holdfast ledger` says why"
        return ""


@dataclass(frozen=True, slots=True)
class World:
    """All of it."""

    jobs: tuple[JobFacts, ...]
    devices: tuple[Device, ...]
    cores: int = 1
    cpu: str = ""
    system: str = ""
    """linux, wsl, windows or darwin."""
    cards: tuple[str, ...] = ()
    """Accelerators that are in this machine, whether or not torch can use them."""
    prices: tuple[Price, ...] = ()
    electricity: float | None = None
    """Dollars for a kilowatt-hour."""
    electricity_from: str = ""
    presets: tuple[Preset, ...] = ()
    score: float | None = None
    """Of the job as it was asked for, where it is known."""
    score_name: str = ""
    score_basis: str = ""
    past: tuple[Past, ...] = ()
    steps: int | None = None
    """Where the script does not say how many it takes."""
    larger: int = 1
    """How many times as large as the set that was measured the real one is."""
    save_every_s: float = 60.0
