"""What is in the folder of a detection run, or beside a file of weights: which weights, what they are for. No torch.

path, about = find(Path("runs/calm-heron"))       # UserError if there is no detector, or a damaged one
about["names"], about["imgsz"], about["channels"], about["size"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.base import files
from holdfast.base.errors import UserError

ABOUT = "detector.json"
SIZES = ("nano", "tiny")


def find(where: Path) -> tuple[Path, dict[str, Any]]:
    """The file of weights of a run, or the file itself; and what stands in `detector.json`."""
    folder = where if where.is_dir() else where.parent
    about = files.read_json(folder / ABOUT)
    if about is None:
        raise UserError(f"{folder} holds no detector", cause=f"there is no {ABOUT}")
    names, size, channels = about.get("names"), about.get("size"), about.get("channels")
    good = isinstance(names, list) and 0 < len(names) <= 100_000 and size in SIZES and channels in (1, 3)
    if not good or not 32 <= files.whole(about.get("imgsz")) <= 8192:
        raise UserError(f"{folder / ABOUT} is damaged", hints=["is it the folder of a detection run?"])
    path = where
    if where.is_dir():
        there = [where / name for name in ("final.safetensors", "best.safetensors") if (where / name).is_file()]
        if not there:
            raise UserError(f"{where.name} has no weights yet", cause="no final.safetensors, no best.safetensors")
        path = there[0]
    return path, about
