"""Which NVIDIA cards are here: from the kernel's files, then from the driver, in a process of its own.

    cards, told = look(found, root, run, troubles)    # Devices without a label yet; {"nvidia": "570.86.15"}
    order(cards, root, env, run, troubles)            # their places on the bus in the order in which torch counts them

CUDA counts the fastest card first unless CUDA_DEVICE_ORDER says otherwise, and no file tells which that is. Where it
matters, the driver is asked by a child that does nothing else (`cuda_order`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.base import interpreter
from holdfast.devices import identity, nvidia
from holdfast.devices.survey.kernel_files import address, number, read
from holdfast.devices.survey.records import Device
from holdfast.devices.survey.tools import Run

_DEADLINE_S = 20.0
"""Without persistence mode the driver initialises every card first, which takes seconds on a large machine."""
_MIB = 1024 * 1024


def look(
    found: Sequence[Mapping[str, Any]], root: Path, run: Run, troubles: list[str], *, always: bool = False
) -> tuple[list[Device], dict[str, str]]:
    """The cards of the kernel (`found`, as machine.gpus gives them) and those only the driver shows, as in WSL."""
    uuids = _uuids(root)
    cards = {str(card["pci"]): _from_kernel(card, uuids) for card in found}
    rows = None
    if cards or always or any((root / path).exists() for path in ("dev/nvidiactl", "dev/dxg")):
        rows = _ask_smi(run, troubles)
        rows = _ask_library(run) if rows is None else rows
    versions: dict[str, str] = {}
    for row in rows or []:
        place = address(row.get("pci.bus_id", "")) or ""
        cards[place] = _with_driver(cards.get(place, Device("", "nvidia", pci=place or None)), row)
        if row.get("driver_version"):
            versions["nvidia"] = row["driver_version"]
    return [cards[place] for place in sorted(cards)], versions


def _from_kernel(card: Mapping[str, Any], uuids: Mapping[str, str]) -> Device:
    notes = [] if card["driver"] else ["no driver has taken this card"]
    if card["driver"] == "nouveau":
        notes = ["it is driven by nouveau, which torch cannot use: install NVIDIA's own driver"]
    return Device(
        id="",
        kind="nvidia",
        name=card["name"],
        pci=str(card["pci"]),
        pci_id=card["id"],
        uuid=uuids.get(str(card["pci"])),
        driver=card["driver"],
        notes=notes,
    )


def _with_driver(card: Device, row: Mapping[str, str]) -> Device:
    """The driver knows names, memory and compute capability that no file has."""
    capability = re.fullmatch(r"(\d+)\.(\d+)", row.get("compute_cap", ""))
    memory = number(row.get("memory.total"))
    version = row.get("driver_version")
    ids = re.fullmatch(r"0x([0-9a-fA-F]{4})10[dD][eE]", row.get("pci.device_id", ""))
    return replace(
        card,
        name=row.get("name") or card.name,
        uuid=row.get("uuid") or card.uuid,
        arch=f"sm_{capability[1]}{capability[2]}" if capability else card.arch,
        arch_basis="driver" if capability else card.arch_basis,
        pci_id=card.pci_id or (f"10de:{ids[1].lower()}" if ids else None),
        memory_bytes=memory * _MIB if memory else card.memory_bytes,
        driver=f"nvidia {version}" if version else card.driver,
        # One that shares the machine's memory has none of its own to report.
        integrated=False if memory else None,
    )


def _uuids(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        uuid = re.search(r"^GPU UUID:\s*(\S+)", read(path), re.MULTILINE)
        if uuid and "?" not in uuid[1]:  # GPU-????????-…: the driver has not initialised it yet
            found[path.parent.name] = uuid[1]
    return found


def _ask_smi(run: Run, troubles: list[str]) -> list[dict[str, str]] | None:
    fields: Sequence[str] = nvidia.CARD
    answer = run(nvidia.query(*fields), _DEADLINE_S)
    if answer.trouble and "compute_cap" in answer.trouble:  # a driver older than the field refuses the whole question
        fields = fields[:-1]
        answer = run(nvidia.query(*fields), _DEADLINE_S)
    if answer.trouble:
        troubles.append(answer.trouble)
    return None if answer.text is None else nvidia.rows(answer.text, fields)


def _ask_library(run: Run) -> list[dict[str, str]] | None:
    """The driver's library, where nvidia-smi is missing: some containers leave it out. Its absence is no trouble."""
    said = _objects(run(interpreter.module("holdfast.devices.nvidia"), _DEADLINE_S).text)
    return None if said is None else [{str(name): str(value) for name, value in row.items()} for row in said]


def order(
    cards: Sequence[Device], root: Path, env: Mapping[str, str], run: Run, troubles: list[str]
) -> list[str] | None:
    """Places on the bus in torch's order; None where nothing tells it."""
    driven = [card for card in cards if (card.driver or "").startswith("nvidia")]  # not nouveau, not vfio-pci
    shown = {card.pci or "": card.uuid or "" for card in driven}
    given = identity.nvidia_cards(root)
    if given:
        shown = {place: uuid for place, uuid in shown.items() if place in given}
    alike = len({card.pci_id or card.name for card in cards if (card.pci or "") in shown}) <= 1
    ordered = alike or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    listed = identity.visible(shown, ordered, env.get("CUDA_VISIBLE_DEVICES"))
    return listed if listed is not None else _ask_cuda(run, troubles)


def _ask_cuda(run: Run, troubles: list[str]) -> list[str] | None:
    answer = run(interpreter.module("holdfast.devices.survey.cuda_order"), _DEADLINE_S)
    if answer.trouble:
        troubles.append(answer.trouble)
    rows = _objects(answer.text)
    places = [address(str(row.get("pci", ""))) for row in rows] if rows else []
    return [place for place in places if place] if places and None not in places else None


def _objects(text: str | None) -> list[dict[str, Any]] | None:
    try:
        said = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    return [row for row in said if isinstance(row, dict)] if isinstance(said, list) else None
