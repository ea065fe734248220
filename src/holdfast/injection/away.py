"""A rank whose device is gone for a while: a process that ends before it can train. For tests and trials.

    HOLDFAST_PRETEND_AWAY="2=/tmp/no-card" holdfast launch --nproc 4 --min-ranks 2 train.py

Rank 2 cannot be started while that file exists. `check` is called where a rank opens its device.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "HOLDFAST_PRETEND_AWAY"


def check(seat: int) -> None:
    """OSError if the device of this rank is away now."""
    for each in os.environ.get(VARIABLE, "").split(","):
        number, _, path = each.partition("=")
        if number == str(seat) and path and Path(path).exists():
            raise OSError(f"{path} says that the device of rank {seat} is away")
