"""What NVIDIA's management library says about the cards: the recovery it asks for, memory errors, slowdowns.

    command()                # ["nvidia-smi", "-q", "-x"], or None where there is nothing to ask
    cards(its_output)        # [{"device": "0000:65:00.0", "recovery_action": "Reset", "ecc": {...}, ...}]

A sick driver hangs whoever asks it, so this is only ever asked by a child with a deadline. `nvidia-smi` is that child:
it comes with every driver, speaks NVML and nothing else, and no Python package is needed.
"""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as xml
from typing import Any


def command() -> list[str] | None:
    """What to start, or None where no NVIDIA driver is installed."""
    found = shutil.which("nvidia-smi")
    return [found, "-q", "-x"] if found else None


def cards(text: str) -> list[dict[str, Any]] | str:
    """What it said of each card, or why it said nothing. A value the card does not have is left out."""
    try:
        root = xml.fromstring(text)
    except xml.ParseError:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[0][:200] if lines else "it said nothing"
    return [_card(gpu) for gpu in root.iter("gpu")]


def _card(gpu: xml.Element) -> dict[str, Any]:
    slowdowns = gpu.find("clocks_event_reasons")
    card = {
        "device": _address(gpu.get("id", "")),
        "name": gpu.findtext("product_name"),
        "recovery_action": gpu.findtext("gpu_recovery_action"),
        "ecc": _numbers(gpu, "ecc_errors/volatile"),
        "ecc_ever": _numbers(gpu, "ecc_errors/aggregate"),
        "remapped_rows": _numbers(gpu, "remapped_rows"),
        "retired_pages": {
            name: count
            for name in ("multiple_single_bit_retirement", "double_bit_retirement")
            if (count := _number(gpu.findtext(f"retired_pages/{name}/retired_count"))) is not None
        },
        "pcie_replays": _number(gpu.findtext("pci/replay_counter")),
        "temperature_c": _number(gpu.findtext("temperature/gpu_temp")),
        "slowed_by": [
            reason.tag.removeprefix("clocks_event_reason_")
            for reason in (slowdowns if slowdowns is not None else ())
            if (reason.text or "").strip() == "Active" and not reason.tag.endswith("_idle")
        ],
    }
    return {name: value for name, value in card.items() if value not in (None, {}, "N/A")}


def needs(card: dict[str, Any]) -> str | None:
    """The recovery the driver asks for, or None: "Reset", "Reboot", "Drain P2P" …"""
    action = str(card.get("recovery_action") or "None")
    return None if action.lower() in ("none", "n/a", "unknown error") else action


def _address(text: str) -> str:
    """00000000:65:00.0, as NVML writes it, is 0000:65:00.0 everywhere else."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else text


def _numbers(gpu: xml.Element, path: str) -> dict[str, int | str]:
    """The numbers below a heading, and what is answered by yes or no."""
    values: dict[str, int | str] = {}
    for child in gpu.findall(f"{path}/*"):
        text = (child.text or "").strip()
        number = _number(text)
        if number is not None or text in ("Yes", "No"):
            values[child.tag.removeprefix("remapped_row_")] = text if number is None else number
    return values


def _number(text: str | None) -> int | None:
    word = (text or "").split(" ")[0]
    return int(word) if word.isdigit() else None
