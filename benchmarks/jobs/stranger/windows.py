"""Times of a loop, by windows of steps, for a script that runs bare and under holdfast alike.

    windows = Windows(times, device, 50)
    for batch in data:
        ...
        windows.step()                     # every 50 steps a line in the file `times`: milliseconds a step

`arguments()` reads `key=value` words for the bare form of a script, as `holdfast train` does for the other.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch


class Windows:
    """One loop. The device is waited for at the end of each window, and only there."""

    def __init__(self, path: str, device: torch.device, size: int) -> None:
        self._path, self._device, self._size = path, device, size
        self._steps = 0
        self._since = time.perf_counter()

    def step(self) -> None:
        self._steps += 1
        if self._steps % self._size or not self._path:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(f"{1e3 * (now - self._since) / self._size:.6f}\n")
        self._since = time.perf_counter()


def arguments(**defaults: Any) -> dict[str, Any]:
    """The defaults with the words of the command line."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    return {key: type(default)(given.get(key, default)) for key, default in defaults.items()}
