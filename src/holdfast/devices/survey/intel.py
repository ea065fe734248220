"""Intel GPUs: from the kernel's PCI files, then from xpu-smi and sycl-ls in processes of their own.

The drivers i915 and xe have no file that tells how much memory a card has. xpu-smi knows; where it is not installed
the answer is unknown, since the window that PCI shows may be smaller than the memory behind it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.devices.survey.kernel_files import address, number
from holdfast.devices.survey.records import Device
from holdfast.devices.survey.tools import Run, ask_json

DRIVERS = ("i915", "xe")
_DEADLINE_S = 15.0
_OWN_GRAPHICS = "0000:00:02.0"
"""Where Intel's processors have their own GPU, always."""
_SYCL = re.compile(
    r"^\[(?:ext_oneapi_)?level_zero:gpu[^\]]*\](?:\[[^\]]*\])?\s*(.+?), (.+?)\s+[\d.]+ \[([^\]]+)\]", re.M
)


def look(found: Sequence[Mapping[str, Any]], run: Run, troubles: list[str]) -> tuple[list[Device], dict[str, str]]:
    cards = {str(card["pci"]): _card(card) for card in found}
    if not cards:
        return [], {}
    for place, told in _ask_smi(run, troubles).items():
        if place in cards:
            cards[place] = _with_tool(cards[place], told)
    names, versions = _ask_sycl(run, troubles)
    if len(cards) == len(names) == 1:
        (place,) = cards
        cards[place] = _with_tool(cards[place], {"device_name": names[0]})
    return [cards[place] for place in sorted(cards)], versions


def _card(card: Mapping[str, Any]) -> Device:
    return Device(
        id="",
        kind="intel",
        name=card["name"],
        pci=str(card["pci"]),
        pci_id=card["id"],
        memory_bytes=card["memory_bytes"],
        driver=card["driver"],
        integrated=card["pci"] == _OWN_GRAPHICS,
        notes=[] if card["driver"] else ["no driver has taken this card"],
    )


def _with_tool(card: Device, told: Mapping[str, Any]) -> Device:
    name = told.get("device_name")
    name = re.sub(r"\((?:R|TM)\)", "", name) if isinstance(name, str) and name else card.name
    return replace(
        card, name=name, memory_bytes=number(str(told.get("memory_physical_size_byte"))) or card.memory_bytes
    )


def _ask_smi(run: Run, troubles: list[str]) -> dict[str, dict[str, Any]]:
    said = ask_json(run, ["xpu-smi", "discovery", "-j"], _DEADLINE_S, troubles)
    listed = said.get("device_list") if isinstance(said, dict) else None
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return {address(str(row.get("pci_bdf_address"))) or "": row for row in rows}


def _ask_sycl(run: Run, troubles: list[str]) -> tuple[list[str], dict[str, str]]:
    answer = run(["sycl-ls"], _DEADLINE_S)
    if answer.trouble:
        troubles.append(answer.trouble)
    found = _SYCL.findall(answer.text or "")
    return [name for _, name, _ in found], {"level_zero": found[0][2]} if found else {}


def order(cards: Sequence[Device], root: Path) -> list[str] | None:
    """One is that one; of several, no file says which comes first."""
    drawn = (root / "dev/dri").is_dir() or (root / "dev/dxg").exists()
    places = [card.pci or "" for card in cards if (card.driver or "").split(" ")[0] in DRIVERS] if drawn else []
    return places if len(places) <= 1 else None
