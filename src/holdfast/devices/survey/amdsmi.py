"""AMD's cards as amd-smi tells them, where rocminfo is missing or silent: a container may have one and not the other.

    amd-smi static --asic --bus --driver --json

Unlike rocminfo it asks the kernel, not the runtime, so that HSA_OVERRIDE_GFX_VERSION does not reach it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.devices.survey.kernel_files import address
from holdfast.devices.survey.records import Device
from holdfast.devices.survey.tools import Run, ask_json

_DEADLINE_S = 15.0


def ask(run: Run, troubles: list[str]) -> dict[str, dict[str, Any]]:
    """What it says of each card, by place on the bus. Newer versions wrap the list in an object."""
    said = ask_json(run, ["amd-smi", "static", "--asic", "--bus", "--driver", "--json"], _DEADLINE_S, troubles)
    rows = said.get("gpu_data") if isinstance(said, dict) else said
    found = {}
    for row in rows if isinstance(rows, list) else []:
        place = address(str(_part(row, "bus").get("bdf", "")))
        if place:
            found[place] = row
    return found


def merged(card: Device, told: Mapping[str, Any]) -> Device:
    """The card with what was not known of it."""
    asic, driver = _part(told, "asic"), _part(told, "driver")
    name, version = _word(asic.get("market_name")), _word(driver.get("version"))
    arch = re.fullmatch(r"gfx[0-9a-f]+", str(asic.get("target_graphics_version")))
    return replace(
        card,
        name=card.name if card.name and "[" not in card.name else name or card.name,
        arch=card.arch or (arch[0] if arch else None),
        arch_basis=card.arch_basis or ("driver" if arch else None),
        driver=f"amdgpu {version}" if version and card.driver in (None, "amdgpu") else card.driver,
    )


def _part(row: Any, name: str) -> dict[str, Any]:
    part = row.get(name) if isinstance(row, Mapping) else None
    return part if isinstance(part, dict) else {}


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "N/A") else None
