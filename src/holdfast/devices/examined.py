"""What goes into an examination of a device and what comes out of it.

    Patient("cuda:0", "Radeon RX 7900 XTX", "gfx1100", "rocm")     # a device to be examined
    seen.verdict.state, seen.results, seen.remembered              # Examined: what was seen on it

The examination itself is in doctor.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.devices.findings import Finding
from holdfast.devices.remedies import Found, Remedy
from holdfast.devices.results import ProbeResult
from holdfast.devices.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Patient:
    """A device to be examined, and what is known about it beforehand."""

    device: str
    name: str | None = None
    arch: str | None = None
    backend: str | None = None
    """cuda, rocm, xpu, mps or cpu; None takes any remedy."""
    findings: tuple[Finding, ...] = ()
    """What the inventory and the books say."""
    unusable: str = ""
    """Why there is nothing to probe."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A device and everything that was seen on it."""

    verdict: Verdict
    results: tuple[ProbeResult, ...] = ()
    found: Found = field(default_factory=Found)
    remembered: bool = False
    age_s: float | None = None
    stale: str = ""
    """Why an earlier verdict was not good enough."""
    seconds: float = 0.0
    script: ProbeResult | None = None
    """What came of one step of the user's own script."""


class Listener:
    """Told what happens; does nothing."""

    def begins(self, device: str, checks: int) -> None: ...
    def checks(self, device: str, name: str) -> None: ...
    def result(self, result: ProbeResult) -> None: ...
    def tries(self, device: str, remedy: Remedy, probe: str) -> None: ...
    def ends(self, seen: Examined) -> None: ...
