"""Where a data.yaml keeps its images: the folders that its `path:`, `train:` and `val:` may mean, the likeliest first.

    bases("coco8", Path("configs/coco8.yaml"))               # configs/coco8, ./coco8, the datasets folders, configs
    spellings("../train/images", [base])                     # base/../train/images, then base/train/images

Two habits are known. A relative `path:` is meant from the file, from the current folder, or from a folder `datasets`
(the one in the settings of ultralytics, or beside the file or the current folder). Roboflow writes `../train/images`
for what lies in `train/images` beside the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.base import files


def bases(given: Any, file: Path) -> list[Path]:
    """Where relative paths may start. The folder of the file is always the last."""
    here = file.parent
    if not given or not isinstance(given, str):
        return [here]
    path = Path(given).expanduser()
    starts = [Path()] if path.is_absolute() else [here, Path.cwd(), *datasets_folders(here)]
    return [*dict.fromkeys(start / path for start in starts if (start / path).is_dir()), here]


def datasets_folders(here: Path) -> list[Path]:
    """Folders in which ultralytics and its users put their sets, as far as they exist."""
    around = [here, here.parent, Path.cwd(), Path.cwd().parent]
    told = files.read_json(_settings())
    named = told.get("datasets_dir") if isinstance(told, dict) else None
    found = [Path(named)] if isinstance(named, str) and os.path.isabs(named) else []
    return [each for each in [*found, *(start / "datasets" for start in around)] if each.is_dir()]


def _settings() -> Path:
    """Its settings file: plain JSON, of which one path is read."""
    if os.environ.get("YOLO_CONFIG_DIR"):
        return Path(os.environ["YOLO_CONFIG_DIR"]) / "settings.json"
    if sys.platform == "win32":
        base = Path.home() / "AppData" / "Roaming"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path.home() / ".config"
    return base / "Ultralytics" / "settings.json"


class Spelling(NamedTuple):
    """One place that a path may mean."""

    place: Path
    start: Path
    literal: bool
    """False if the `..` at its beginning was left out."""


def spellings(given: str, starts: list[Path]) -> list[Spelling]:
    """Every place that a path of a data.yaml may mean, the literal ones first."""
    path = Path(given).expanduser()
    if path.is_absolute():
        return [Spelling(path, starts[0], True)]
    inner = _without_up(path)
    found = [Spelling(start / path, start, True) for start in starts]
    return found + [Spelling(start / inner, start, False) for start in starts if inner != path]


def _without_up(path: Path) -> Path:
    parts = list(path.parts)
    while parts and parts[0] == os.pardir:
        parts.pop(0)
    return Path(*parts)
