"""The child of `holdfast optimize --verify`: loads a bundle's engine, answers the kept inputs, times itself.

It is asked like worker.py, in JSON lines; its one argument is the bundle, whose digests the parent has checked.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import files
from holdfast.optimize import engines, worker
from holdfast.optimize.bundle import CHECK, MANIFEST
from holdfast.optimize.post import apply

_BEGAN = time.perf_counter()


class Checker:
    """Holds the engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = files.read_json(folder / MANIFEST) or {}
        self.engine: Any = None
        with np.load(folder / CHECK, allow_pickle=False) as kept:
            self.inputs = [kept[f"i{number}"] for number in range(len(self.manifest["inputs"]))]

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "load":
            self.engine = engines.load(self.folder, self.manifest)
            return {"cold_s": time.perf_counter() - _BEGAN}
        if command["do"] == "answers":
            return {"answers": [each.tolist() for each in self.engine.run_all(self.inputs)]}
        times: list[float] = []
        until = time.perf_counter() + float(command["seconds"])
        while len(times) < command["count"] and (not times or time.perf_counter() < until):
            at = len(times) % len(self.inputs[0])
            began = time.perf_counter()
            apply(self.manifest.get("post"), self.engine.run([each[at : at + 1] for each in self.inputs]))
            times.append(time.perf_counter() - began)
        return {"times": times}


if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:], Checker))
