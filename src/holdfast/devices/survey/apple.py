"""Apple's own chips: one question to sysctl. The GPU is part of the chip and shares all its memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from holdfast.devices.survey.kernel_files import number
from holdfast.devices.survey.records import Device
from holdfast.devices.survey.tools import Run

_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Told:
    values: dict[str, str] = field(default_factory=dict)

    @property
    def chip(self) -> str | None:
        return self.values.get("machdep.cpu.brand_string")

    @property
    def memory_bytes(self) -> int | None:
        return number(self.values.get("hw.memsize"))

    @property
    def version(self) -> str | None:
        return self.values.get("kern.osproductversion")


def ask(run: Run, troubles: list[str]) -> Told:
    answer = run(["sysctl", "hw", "machdep.cpu", "kern.osproductversion"], _DEADLINE_S)
    if answer.trouble:
        troubles.append(answer.trouble)
    return Told(dict(re.findall(r"^([\w.]+): (.*)$", answer.text or "", re.MULTILINE)))


def look(told: Told, machine: str) -> list[Device]:
    """The one GPU; none on Macs with Intel's processors, where torch no longer serves what there is."""
    if machine != "arm64":
        return []
    chip = re.fullmatch(r"Apple (M\d+)(?: (?:Pro|Max|Ultra))?", told.chip or "")
    return [
        Device(
            id="",
            kind="apple",
            name=told.chip,
            arch=chip[1].lower() if chip else None,
            arch_basis="name" if chip else None,
            memory_bytes=told.memory_bytes,
            driver=f"macOS {told.version}" if told.version else None,
            integrated=True,
        )
    ]
