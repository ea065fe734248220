"""What a check of a probe ended with. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import dataclass_json
from holdfast.devices.probe_catalog import Probe

STATUSES = ("passed", "failed", "crashed", "hung", "skipped")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How one check ended."""

    probe: str
    """Its full name: "conv2d fp16 backward"."""
    device: str
    status: str
    """One of STATUSES."""
    error: float | None = None
    bound: float | None = None
    seconds: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)
    """What it is about (family, phase, precision, batch, situation), `why` it did not pass, and what was measured."""

    @property
    def ok(self) -> bool:
        return self.status == "passed"

    @property
    def why(self) -> str:
        """In words that can follow the name of the probe; empty if it passed."""
        return str(self.evidence.get("why") or "")

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)


def skipped(probe: Probe, device: str, checks: Iterable[str], why: str, **more: Any) -> Iterator[ProbeResult]:
    for check in checks:
        evidence = {**probe.traits(check), "why": why, **more}
        yield ProbeResult(probe.named(check), device, "skipped", evidence=evidence)
