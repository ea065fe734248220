"""The sensor net of the Healthy Brain Network: 128 electrodes named E1 to E128, and Cz, to which they refer.

names()        ["E1", ..., "E128", "Cz"]
positions()    (129, 3): unit vectors from the centre of the head; x to the right ear, y to the nose, z up
near((0, -0.7, 0.7), width=0.5)      (129,): how strongly each electrode sees a source below that point
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

REFERENCE = "Cz"


@cache
def _net() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Path(__file__).with_name("net.json").read_text(encoding="utf-8"))
    return data


def names() -> list[str]:
    return list(_net()["names"])


def positions() -> NDArray[np.float64]:
    return np.array(_net()["positions"], dtype=np.float64)


def near(point: tuple[float, float, float], width: float) -> NDArray[np.float64]:
    """A smooth bump on the scalp: 1 below the nearest electrode, falling with the angle in radians."""
    place = np.array(point) / np.linalg.norm(point)
    angle = np.arccos(np.clip(positions() @ place, -1, 1))
    bump: NDArray[np.float64] = np.exp(-0.5 * (angle / width) ** 2)
    return bump
