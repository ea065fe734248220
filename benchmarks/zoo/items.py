"""What a process of crowd.py can do: looks at a network, a planted error, …"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.zoo.looks import look_at
from benchmarks.zoo.planted import curve, find

Row = dict[str, Any]


def _looks(item: Row) -> Row:
    keep = Path(item["keep"]) if item.get("keep") else None
    try:
        return look_at(
            item["network"], item["precision"], device=item["device"], looks=item["looks"],
            channels_last=item["channels_last"], seconds=item["seconds"], keep=keep, seed=item["seed"],
        )  # fmt: skip
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _planted(item: Row) -> Row:
    return find(
        item["network"], item["kind"], looks=item["looks"], precision=item["precision"], seed=item["seed"],
        device=item["device"], seconds=item["seconds"],
    )  # fmt: skip


def _curve(item: Row) -> Row:
    return curve(item["network"], item["family"], item["precision"], device=item["device"], seed=item["seed"])


DO: dict[str, Callable[[Row], Row]] = {"looks": _looks, "planted": _planted, "curve": _curve}
