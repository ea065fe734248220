"""Which card a screen is connected to, from the kernel's files.

shown_by(Path("/"), "0000:03:00.0")      # True: a connector of it has a screen; None where no file tells
"""

from __future__ import annotations

from pathlib import Path

from holdfast.devices.survey.kernel_files import read


def shown_by(root: Path, pci: str | None) -> bool | None:
    """True where one of its connectors is connected, False where all are free, None where it has none we can see."""
    if pci is None:
        return None
    said: list[str] = []
    for card in sorted((root / "sys/class/drm").glob("card[0-9]*")):
        if "-" not in card.name and (card / "device").exists() and (card / "device").resolve().name == pci:
            said += [read(status).strip() for status in card.parent.glob(f"{card.name}-*/status")]
    return ("connected" in said) if said else None
