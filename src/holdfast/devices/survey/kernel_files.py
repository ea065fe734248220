"""Reading the kernel's files of this machine or, below another root, of a machine made of files."""

from __future__ import annotations

import re

from holdfast.run.machine import children, read

__all__ = ["address", "children", "number", "read"]


def number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def address(text: str) -> str | None:
    """A place on the bus as the kernel writes it: nvidia-smi says 00000000:1B:00.0."""
    match = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", text.strip())
    if not match:
        return None
    return f"{int(match[1] or '0', 16):04x}:{match[2].lower()}:{match[3].lower()}.{match[4]}"
