"""What a process of crowd.py can do: looks at a network, a planted error, …"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.zoo.looks import look_at

Row = dict[str, Any]


def _looks(item: Row) -> Row:
    keep = Path(item["keep"]) if item.get("keep") else None
    try:
        return look_at(
            item["network"], item["precision"], device=item["device"], looks=item["looks"],
            channels_last=item["channels_last"], seconds=item["seconds"], keep=keep,
        )  # fmt: skip
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


DO: dict[str, Callable[[Row], Row]] = {"looks": _looks}
