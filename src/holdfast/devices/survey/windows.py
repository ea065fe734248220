"""What Windows knows of its cards, CPU and memory: one question to PowerShell, in a process of its own.

    told = ask(run, troubles)           # also from inside WSL, whose Linux sees no card
    told.cards[0].pci_id                # "1002:7550"

There is no rocminfo, no amd-smi and no sysfs here. `hipInfo` of AMD's SDK tells the architecture where it is
installed. The memory that Win32_VideoController reports ends at 4 GB, so that comes from the registry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.devices.survey.kernel_files import number
from holdfast.devices.survey.records import Device
from holdfast.devices.survey.tools import Run

_DEADLINE_S = 20.0
_KINDS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
_SCRIPT = r"""
$class = 'HKLM:\SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}\0*'
$memory = Get-ItemProperty $class -ErrorAction SilentlyContinue | ForEach-Object {
  @{ name = $_.DriverDesc; bytes = $_.'HardwareInformation.qwMemorySize' } }
@{ cards = @(Get-CimInstance Win32_VideoController | Select-Object Name, PNPDeviceID, DriverVersion, Status);
   memory = @($memory);
   cpu = @(Get-CimInstance Win32_Processor | Select-Object Name, NumberOfCores, NumberOfLogicalProcessors);
   computer = @(Get-CimInstance Win32_ComputerSystem | Select-Object TotalPhysicalMemory);
   system = @(Get-CimInstance Win32_OperatingSystem | Select-Object Caption, Version) } | ConvertTo-Json -Depth 4
"""


@dataclass(frozen=True, slots=True)
class Told:
    cards: list[Device] = field(default_factory=list)
    cpu: dict[str, Any] = field(default_factory=dict)
    memory_bytes: int | None = None
    os_name: str | None = None
    kernel: str | None = None


def ask(run: Run, troubles: list[str], program: str = "powershell.exe") -> Told:
    answer = run([program, "-NoProfile", "-NonInteractive", "-Command", _SCRIPT], _DEADLINE_S)
    if answer.trouble:
        troubles.append(answer.trouble)
    try:
        said = json.loads((answer.text or "null").lstrip("\ufeff"))
    except (ValueError, RecursionError):
        return Told()
    if not isinstance(said, dict):
        return Told()
    memory = {row.get("name"): _whole(row.get("bytes")) for row in _rows(said, "memory")}
    cards = [_card(row, memory.get(row.get("Name"))) for row in _rows(said, "cards")]
    system = next(iter(_rows(said, "system")), {})
    return Told(
        cards=[card for card in cards if card],
        cpu=next(iter(_rows(said, "cpu")), {}),
        memory_bytes=_whole(next(iter(_rows(said, "computer")), {}).get("TotalPhysicalMemory")),
        os_name=system.get("Caption") if isinstance(system.get("Caption"), str) else None,
        kernel=system.get("Version") if isinstance(system.get("Version"), str) else None,
    )


def _card(row: dict[str, Any], memory: int | None) -> Device | None:
    """None for what is no card: remote desktops, virtual displays."""
    ids = re.match(r"PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})", str(row.get("PNPDeviceID", "")), re.IGNORECASE)
    kind = _KINDS.get(ids[1].lower()) if ids else None
    if not ids or not kind:
        return None
    broken = row.get("Status") not in (None, "OK")
    return Device(
        id="",
        kind=kind,
        name=str(row["Name"]) if row.get("Name") else None,
        pci_id=f"{ids[1]}:{ids[2]}".lower(),
        memory_bytes=memory or None,
        driver=str(row["DriverVersion"]) if row.get("DriverVersion") else None,
        notes=[f"Windows reports its state as {row['Status']}"] if broken else [],
    )


def with_hip(cards: Sequence[Device], run: Run, troubles: list[str]) -> tuple[list[Device], list[str] | None]:
    """AMD's cards with what hipInfo tells of them, and their places in the order in which HIP counts them.

    Windows gives no place on the bus, so the two lists meet by name. HIP counts the GPU inside the processor too,
    often first.
    """
    answer = run(["hipInfo"], _DEADLINE_S)
    if answer.trouble:
        troubles.append(answer.trouble)
    found, order = list(cards), []
    for part in re.split(r"^device#\s+\d+\s*$", answer.text or "", flags=re.MULTILINE)[1:]:
        values = {key: value.strip() for key, value in re.findall(r"^(\w+):\s+(.*)$", part, re.MULTILINE)}
        for index, card in enumerate(found):
            if card.kind == "amd" and card.pci is None and card.name == values.get("Name"):
                found[index] = _with_hip(card, values)
                order.append(found[index].pci or "")
                break
    return found, order if order and all(order) else None


def _with_hip(card: Device, values: dict[str, str]) -> Device:
    arch = re.fullmatch(r"(gfx[0-9a-f]+)(?::.*)?", values.get("gcnArchName", ""))
    place = [number(values.get(name)) for name in ("pciDomainID", "pciBusID", "pciDeviceID")]
    domain, bus, device = (part if part is not None else -1 for part in place)
    return replace(
        card,
        arch=arch[1] if arch else None,
        arch_basis="runtime" if arch else None,
        pci=f"{domain:04x}:{bus:02x}:{device:02x}.0" if min(domain, bus, device) >= 0 else None,
        integrated={"0": False, "1": True}.get(values.get("isIntegrated", "")),
    )


def _rows(said: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = said.get(name)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else number(str(value))
