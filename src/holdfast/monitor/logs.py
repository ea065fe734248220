"""What a script printed, as lines that are safe to show.

tail_of(run / "output.log", 200)       # the last lines, a progress bar drawn over itself counts once
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.base.control_characters import without_control
from holdfast.base.files import open_regular

_LONGEST = 4000


def tail_of(path: Path, lines: int, *, most: int = 1 << 20) -> list[str]:
    """The last lines of a file that may be anybody's; nothing if it cannot be read."""
    try:
        with open_regular(path, buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            want = min(size, most, max(4096, lines * 400))
            file.seek(size - want)
            data = file.read(want)
    except OSError:
        return []
    text = data.decode(errors="replace").replace("\r\n", "\n")
    if want < size:
        text = text.partition("\n")[2]
    return [clean(line) for line in text.rstrip("\n").split("\n")[-lines:]] if text.strip() else []


def clean(line: str) -> str:
    """As it was last drawn, without control characters."""
    return without_control(line.rstrip("\r").rpartition("\r")[2])[:_LONGEST]
